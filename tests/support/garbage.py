"""Input that anyone may send to a port: other protocols, noise, and targets that are no URL."""

import random
from typing import Final

_HOST: Final = b"Host: a\r\n\r\n"
#: Each is refused; a server may close the connection without an answer.
GARBAGE: Final = (
    b"\x00" * 4096,
    b"\r\n" * 2000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"*1\r\n$4\r\nPING\r\n",
    b"\x00\x00\x00\x1a\x00\x12\x00\x04\x00\x00\x00\x01\x00\x09kafka-cli\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET //[ HTTP/1.1\r\n" + _HOST,
    b"GET //[::1 HTTP/1.1\r\n" + _HOST,
    b"GET http://[::1/livez HTTP/1.1\r\n" + _HOST,
    b"GET http://a]b/livez HTTP/1.1\r\n" + _HOST,
    b"GET http://\xef\xbc\x8f/ HTTP/1.1\r\n" + _HOST,
    b"GET / HTTP/9.9\r\n" + _HOST,
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + _HOST,
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
)


def noise(seed: int, count: int) -> list[bytes]:
    """Random bytes, every second time as the target or a header of a request."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        some = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 120)))
        text = some.replace(b"\n", b"").replace(b"\r", b"").replace(b" ", b"")
        shapes = (
            some + b"\r\n\r\n",
            b"GET /" + bytes(33 + byte % 94 for byte in text) + b" HTTP/1.1\r\n" + _HOST,
            some,
            b"GET / HTTP/1.1\r\nA: " + text + b"\r\n" + _HOST,
        )
        found.append(shapes[number % len(shapes)])
    return found
