"""Free ports of the loopback interface."""

import itertools
import os
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the ports of outgoing connections (ip_local_port_range of Linux): no connection takes a
#: chosen port before a server listens on it.
CHOICE: Final = range(15_000, 32_000)
#: The distance between the first choices of processes that choose at the same time.
STRIDE: Final = 97

_turns: Final = itertools.count(os.getpid() * STRIDE)


def free_ports(count: int) -> list[int]:
    """Return `count` free ports; no port is returned twice before all of CHOICE were tried.

    Raises: OSError when fewer are free.
    """
    found: list[int] = []
    for turn in itertools.islice(_turns, len(CHOICE)):
        if len(found) == count:
            return found
        port = CHOICE[turn % len(CHOICE)]
        if is_free(port):
            found.append(port)
    raise OSError(f"no {count} free ports from {CHOICE.start} to {CHOICE.stop}")


def is_free(port: int) -> bool:
    """Whether no program listens on the port now."""
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False
