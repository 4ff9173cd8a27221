"""`yard login`: a server is asked before it is saved."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

ADA: dict[str, Any] = {
    "user": "ada",
    "method": "token",
    "issuer": "x",
    "credential_id": None,
    "roles": [],
}
DENIED = {"type": "x", "title": "t", "status": 401, "detail": "no", "code": "unauthenticated"}


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("YARD_TOKEN", raising=False)
    return tmp_path / "yardmaster" / "config.yaml"


def test_a_server_that_answers_is_saved_and_used(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Answer(ADA)) as server:
        code = run(["login", "prod", server.url, "--token-command", "echo secret"])
    assert code == 0
    assert "you are ada" in capsys.readouterr().err
    assert server.asked[0][1]["Authorization"] == "Bearer secret"
    assert yaml.safe_load(config.read_text()) == {
        "contexts": {"prod": {"server": server.url, "token_command": "echo secret"}},
        "current": "prod",
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["http://127.0.0.1:9"], Exit.UNREACHABLE),
        (["http://127.0.0.1:9", "--token-command", "false"], Exit.NOT_ALLOWED),
        (["https://127.0.0.1:9", "--ca", "/nonexistent"], Exit.UNREACHABLE),
        (["notaurl"], Exit.USAGE),
        (["http://"], Exit.USAGE),
        (["http://["], Exit.USAGE),
        (["http://127.0.0.1:9", "--token-command", "it's"], Exit.USAGE),
        (["http://127.0.0.1:9", "--token-command", "echo \u00f6"], Exit.USAGE),
    ],
)
def test_a_server_that_does_not_answer_is_not_saved(
    words: list[str], code: Exit, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["login", "prod", *words]) == code
    assert not config.exists()
    assert run(["login", "prod", "http://127.0.0.1:9", "--no-check"]) == 0
    assert config.exists()


def test_a_token_that_the_server_does_not_accept_is_an_error_and_no_token_is_a_hint(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Answer(DENIED, 401)) as server:
        words = ["login", "prod", server.url]
        assert run([*words, "--token-command", "echo wrong"]) == Exit.NOT_ALLOWED
        assert not config.exists()
        assert "--no-check" in capsys.readouterr().err
        assert run(words) == 0
    assert "requires a token" in capsys.readouterr().err
    assert config.exists()


def test_a_context_without_a_name_is_refused(config: Path) -> None:
    assert run(["login", "", "http://127.0.0.1:9", "--no-check"]) == Exit.USAGE
    assert not config.exists()
