"""Whether a broker or Redis answers; real ones are asked in tests/acceptance/test_up_local.py."""

import socket
import threading

import pytest

from yardmaster_localcluster import probes
from yardmaster_localcluster.probes import why_kafka_is_silent, why_redis_is_silent


def test_a_server_that_accepts_and_says_nothing_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert why_redis_is_silent(f"redis://127.0.0.1:{port}/0") == "no answer within 0 s"
        assert why_kafka_is_silent(f"kafka://127.0.0.1:{port}") == "no answer within 0 s"
    closed = why_redis_is_silent(f"redis://127.0.0.1:{port}/0")
    assert closed is not None
    assert "Connection refused" in closed


def test_another_program_is_neither() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def greet() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(b"220 mail.example.org ESMTP\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        found = why_kafka_is_silent(f"kafka://127.0.0.1:{port}")
        assert found == "another program answers there"
        assert why_redis_is_silent(f"redis://127.0.0.1:{port}/0") == found
        greeter.join()
