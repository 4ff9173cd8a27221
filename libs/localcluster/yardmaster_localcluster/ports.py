"""Choose and reserve free ports of the loopback interface, and port ranges for gangs.

A server that is down for a while does not listen, so its port looks free. For this reason, a
process that chooses a port reserves the port until the process ends. The reservation is a lock on
the byte whose offset is the port number, in a file that all processes of the user share.
"""

import fcntl
import itertools
import os
import socket
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from yardmaster_localcluster.errors import NoGangPorts

HOST: Final = "127.0.0.1"
#: The ports of gangs, and how many of them each node of a cluster on this machine has.
GANG_CHOICE: Final = range(29_600, 65_500)
GANG_PORTS: Final = 100
#: The ports to choose from. They are below the ports of outgoing connections (ip_local_port_range
#: of Linux) and of gangs, so that no connection and no gang takes a chosen port before a server
#: listens on it.
CHOICE: Final = range(15_000, GANG_CHOICE.start)
#: The distance between the first ports that processes try if they choose at the same time.
STRIDE: Final = 97

_turns: Final = itertools.count(os.getpid() * STRIDE)
_gang_turns: Final = itertools.count()


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
    return _lock(range(port, port + 1)) and is_free(port)


@dataclass(slots=True)
class GangPorts:
    """The port ranges for gangs of one cluster's nodes, so that clusters of one machine share none.

    A range is reserved on first use, until this process ends. A gang listens on its port only while
    it runs, so a port that is not in use may still belong to a gang of another cluster.
    """

    chosen: dict[int, range] = field(default_factory=dict)

    def node(self, number: int) -> range:
        """The `GANG_PORTS` ports of node `number` of this cluster, the same at each call.

        Raises:
            NoGangPorts: other clusters have all ranges.
        """
        if number not in self.chosen:
            self.chosen[number] = _free_range()
        return self.chosen[number]


def _free_range() -> range:
    choice = range(GANG_CHOICE.start, GANG_CHOICE.stop, GANG_PORTS)
    for turn in itertools.islice(_gang_turns, len(choice)):
        first = choice[turn % len(choice)]
        found = range(first, first + GANG_PORTS)
        if _lock(found):
            return found
    raise NoGangPorts(
        first=GANG_CHOICE.start,
        last=GANG_CHOICE.stop - 1,
        hint="stop another cluster of this machine, or start fewer nodes",
    )


def _lock(ports: range) -> bool:
    """Reserve consecutive ports until this process ends; False: another process has one of them."""
    try:
        # The lock belongs to this process; its forks do not inherit it.
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    except BlockingIOError:
        return False
    return True


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
