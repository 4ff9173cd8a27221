"""The proxy breaks links as it says, and mends them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.tcp_proxy import HOST, Mode, TcpProxy

QUIET_S = 0.3


def _answer(connection: socket.socket, heard: list[bytes]) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(100):
            heard.append(data)
            connection.sendall(data.upper())


@pytest.fixture
def heard() -> list[bytes]:
    """The bytes that arrived at the server."""
    return []


@pytest.fixture
def proxy(heard: list[bytes]) -> Iterator[TcpProxy]:
    """In front of a server that answers in capital letters."""
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=_answer, args=(connection, heard), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        with TcpProxy(listening.getsockname()[1]) as proxy:
            yield proxy
        listening.shutdown(socket.SHUT_RDWR)


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=10)


def answer(client: socket.socket, said: bytes) -> bytes:
    client.sendall(said)
    return client.recv(100)


def assert_quiet(client: socket.socket) -> None:
    client.settimeout(QUIET_S)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(10)


def test_it_passes_both_ways(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        assert answer(client, b"hello") == b"HELLO"
        assert answer(client, b"again") == b"AGAIN"


def test_a_cut_resets_what_is_open_and_what_is_new(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        assert answer(client, b"a") == b"A"
        proxy.set(Mode.CUT)
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    with pytest.raises(ConnectionError), connect(proxy) as client:
        answer(client, b"b")
    proxy.set(Mode.PASS)
    with connect(proxy) as client:
        assert answer(client, b"c") == b"C"


def test_a_black_hole_swallows_and_what_it_tore_is_reset_when_it_heals(
    proxy: TcpProxy, heard: list[bytes]
) -> None:
    with connect(proxy) as client, connect(proxy) as idle:
        assert answer(client, b"a") == b"A"
        assert answer(idle, b"i") == b"I"
        proxy.set(Mode.BLACKHOLE)
        with connect(proxy) as new:
            for each in (client, new):
                each.sendall(b"lost")
                assert_quiet(each)
            connect(proxy).close()
            proxy.set(Mode.PASS)
            for each in (client, new):
                with pytest.raises(ConnectionResetError):
                    each.recv(100)
        assert answer(idle, b"j") == b"J", "of an idle connection nothing was lost"
    assert heard == [b"a", b"i", b"j"]


@pytest.mark.parametrize("mode", [Mode.UP_ONLY, Mode.DOWN_ONLY])
def test_one_way_lets_one_way_through(proxy: TcpProxy, heard: list[bytes], mode: Mode) -> None:
    with connect(proxy) as client:
        assert answer(client, b"a") == b"A"
        proxy.set(mode)
        client.sendall(b"b")
        assert_quiet(client)
    assert heard == ([b"a", b"b"] if mode is Mode.UP_ONLY else [b"a"])


def test_what_is_held_comes_later(proxy: TcpProxy, heard: list[bytes]) -> None:
    with connect(proxy) as client:
        proxy.set(Mode.HOLD)
        client.sendall(b"late")
        assert_quiet(client)
        assert heard == []
        proxy.set(Mode.PASS)
        assert client.recv(100) == b"LATE"


def test_a_server_that_is_away_is_a_reset(proxy: TcpProxy) -> None:
    with TcpProxy(1) as nowhere, pytest.raises(ConnectionError), connect(nowhere) as client:
        answer(client, b"a")
