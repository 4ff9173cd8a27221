"""The listening socket of every HTTP server."""

import socket

import pytest

from yardmaster_runtime.http import CannotListen, listen


def test_an_accepted_connection_sends_at_once() -> None:
    """Otherwise each answer on a reused connection waits for the client's delayed ACK."""
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
    ):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CannotListen, match=str(port)):
            listen("127.0.0.1", port)
