"""Free ports of the loopback interface."""

import socket
from contextlib import ExitStack
from typing import Final

HOST: Final = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` ports nobody listened on a moment ago; others may take one meanwhile."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def is_free(port: int) -> bool:
    """Nobody listens there now."""
    try:
        with socket.create_server((HOST, port)):
            return True
    except OSError:
        return False
