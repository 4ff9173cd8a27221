"""Free ports of the loopback interface."""

import itertools
import os
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below those that Linux gives to outgoing connections (ip_local_port_range): what is chosen here
#: is not taken by somebody's connection before it is listened on.
CHOICE: Final = range(15_000, 32_000)
#: Processes that choose at the same time begin this far apart.
STRIDE: Final = 97

_turns: Final = itertools.count(os.getpid() * STRIDE)


def free_ports(count: int) -> list[int]:
    """`count` ports nobody listens on; none is given twice until all of CHOICE had their turn.

    Raises: OSError when not so many are free.
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
    """Nobody listens there now."""
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False
