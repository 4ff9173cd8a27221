"""Check whether a broker or a Redis answers; each answers a first message without a password."""

import socket
import struct
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

#: The longest wait for a connection, and for the answer, in seconds.
ANSWER_S: Final = 3.0
#: The request ApiVersions, version 0, which brokers answer before a login: its key and version, the
#: correlation id that the answer repeats, and the client's id.
_API_VERSIONS: Final = struct.pack(">hhih", 18, 0, 1, len(b"yard")) + b"yard"
_PING: Final = b"*1\r\n$4\r\nPING\r\n"


def why_kafka_is_silent(url: str) -> str | None:
    """Why the first broker of `kafka://HOST:PORT,...` does not answer; None when it answers."""
    first = url.removeprefix("kafka://").partition(",")[0]
    request = struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS
    # The answer starts with its size (4 bytes), then the correlation id (4 bytes).
    return _why_silent(first, request, lambda answer: answer[4:8] == b"\0\0\0\1")


def why_redis_is_silent(url: str) -> str | None:
    """Why the Redis of `redis://HOST:PORT/DB` does not answer; None when it answers.

    An error that demands a password counts as an answer.
    """
    address = urlsplit(url)
    where = f"{address.hostname}:{address.port}"
    return _why_silent(where, _PING, lambda answer: answer.startswith((b"+PONG", b"-NOAUTH")))


def _why_silent(address: str, request: bytes, answers: Callable[[bytes], bool]) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as connection:
            connection.sendall(request)
            answer = connection.recv(64)
    except TimeoutError:
        return f"no answer within {ANSWER_S:.0f} s"
    except (OSError, ValueError) as error:
        return f"no answer: {error}"
    return None if answers(answer) else "another program answers there"
