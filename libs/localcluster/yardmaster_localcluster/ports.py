"""Choose and reserve free ports of the loopback interface.

A server that is down for a while does not listen, so its port looks free. For this reason, a
process that chooses a port reserves the port until the process ends. The reservation is a lock on
the byte whose offset is the port number, in a file that all processes of the user share.
"""

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
#: The ports to choose from. They are below the ports of outgoing connections (ip_local_port_range
#: of Linux) and of gangs (YARD_AGENT_PORT_FIRST), so that no connection and no gang takes a chosen
#: port before a server listens on it.
CHOICE: Final = range(15_000, 29_600)
#: The distance between the first ports that processes try if they choose at the same time.
STRIDE: Final = 97

_turns: Final = itertools.count(os.getpid() * STRIDE)


def free_ports(count: int) -> list[int]:
    """Reserve `count` free ports; none is returned twice before all of CHOICE were tried.

    Raises: OSError when fewer are free.
    """
    found: list[int] = []
    for turn in itertools.islice(_turns, len(CHOICE)):
        if len(found) == count:
            return found
        port = CHOICE[turn % len(CHOICE)]
        if reserve(port):
            found.append(port)
    raise OSError(f"no {count} free ports from {CHOICE.start} to {CHOICE.stop}")


def reserve(port: int) -> bool:
    """Reserve a port until this process ends; False: it is in use or reserved elsewhere."""
    try:
        # The lock belongs to this process; its forks do not inherit it.
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return is_free(port)


@cache
def _reservations() -> int:
    """The descriptor of the file with the locks.

    It is opened once, because closing any descriptor of this file would release all locks.
    """
    path = Path(tempfile.gettempdir()) / f"yardmaster-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def is_free(port: int) -> bool:
    """Whether no program listens on the port now."""
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False
