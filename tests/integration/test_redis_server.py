"""The Redis of the other tests answers, requires its password and keeps its address."""

import socket
import stat
from pathlib import Path

import pytest

from tests.support.redis_server import RedisFailed, RedisServer


def say(server: RedisServer, *lines: str) -> str:
    """Send inline commands; return all answers."""
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall("".join(f"{line}\r\n" for line in lines).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer.decode()


def test_it_serves(redis_server: RedisServer) -> None:
    assert say(redis_server, "SET test:a 1", "GET test:a", "DEL test:a").startswith(
        "+OK\r\n$1\r\n1"
    )


def test_after_a_kill_it_is_empty_at_the_same_address(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        before = server.url
        say(server, "SET a 1")
        assert server.restart() == before
        assert say(server, "DBSIZE") == ":0\r\n"


def test_its_password_is_required_and_is_in_no_command_line(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password="let-me-in-please") as server:
        assert say(server, "DBSIZE").startswith("-NOAUTH")
        assert say(server, "AUTH let-me-in-please", "DBSIZE") == "+OK\r\n:0\r\n"
        assert "let-me-in" not in server.url
        assert server.process is not None
        assert b"let-me-in" not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600


def test_a_server_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, settings={"nonsense": "yes"})
    with pytest.raises(RedisFailed, match="nonsense"):
        server.start()
    assert not server.running


def test_it_has_a_memory_limit_and_evicts_nothing(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        said = say(server, "CONFIG GET maxmemory", "CONFIG GET maxmemory-policy")
    assert said.endswith("\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n")
    assert f"\r\n{2**30}\r\n" in said
