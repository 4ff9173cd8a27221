"""Completions in a shell: commands, options, and the names that the server knows."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.main import yard

JOBS = Answer(
    {
        "items": [
            {"job_id": "4kq7w2mz9c1f", "name": "train"},
            {"job_id": "4kq9xd0h5t6v", "name": "eval"},
        ]
    }
)
TASKS = Answer(
    {"items": [{"task_id": "4kq7w2mz9c1f.0", "name": "train", "phase": "running"}]},
)
NAMES = Answer({"items": [{"name": "alpha"}, {"name": "beta"}]})


def offered(*words: str) -> list[str]:
    """The completions of the last word."""
    completion = ShellComplete(yard, {}, "yard", "_YARD_COMPLETE")
    return [item.value for item in completion.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("YARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_commands_are_offered_without_importing_them() -> None:
    assert offered("lo") == ["logs", "log", "login"]
    assert offered("nodes", "un") == ["uncordon"]
    assert offered("nodes", "") == [
        *("cordon", "drain", "enroll", "ls", "revoke", "show", "slots", "uncordon")
    ]


def test_options_are_offered() -> None:
    assert offered("ls", "--co") == ["--columns", "--context"]
    assert offered("--ser") == ["--server"]


@pytest.mark.parametrize(
    ("words", "answer", "expected", "asked"),
    [
        (("show", "4k"), JOBS, ["4kq7w2mz9c1f", "4kq9xd0h5t6v"], "/v1/jobs?"),
        (("cancel", "4kq7w2mz9c1f", "4kq9"), JOBS, ["4kq9xd0h5t6v"], "/v1/jobs?"),
        (("logs", "4kq7w2mz9c1f."), TASKS, ["4kq7w2mz9c1f.0"], "/v1/tasks?"),
        (("ls", "--node", "al"), NAMES, ["alpha"], "/v1/nodes?"),
        (("ls", "-p", "b"), NAMES, ["beta"], "/v1/projects?"),
        (("ls", "--pool", ""), NAMES, ["alpha", "beta"], "/v1/pools?"),
        (("submit", "--pool", "a"), NAMES, ["alpha"], "/v1/pools?"),
        (("nodes", "drain", ""), NAMES, ["alpha", "beta"], "/v1/nodes?"),
        (("pools", "set", "be"), NAMES, ["beta"], "/v1/pools?"),
        (("projects", "show", ""), NAMES, ["alpha", "beta"], "/v1/projects?"),
    ],
)
def test_names_that_the_server_knows_are_offered(
    words: tuple[str, ...],
    answer: Answer,
    expected: list[str],
    asked: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with answering(answer) as server:
        monkeypatch.setenv("YARD_SERVER", server.url)
        assert offered(*words) == expected
    assert server.asked[0][0].startswith(asked)


def test_completion_queries_the_server_given_before_or_after_the_command() -> None:
    with answering(NAMES) as server:
        assert offered("--server", server.url, "nodes", "show", "a") == ["alpha"]
        assert offered("nodes", "show", "--server", server.url, "a") == ["alpha"]
    assert len(server.asked) == 2


def test_phases_and_kinds_are_offered_without_a_server() -> None:
    assert offered("ls", "--phase", "p") == ["pending"]
    assert offered("ls", "--phase", "pending,ru") == ["pending,running"]
    assert offered("submit", "--kind", "in") == ["interactive", "inference"]


def test_contexts_are_offered(tmp_path: Path) -> None:
    file = tmp_path / "yardmaster" / "config.yaml"
    file.parent.mkdir()
    file.write_text("contexts: {prod: {server: 'http://127.0.0.1:1'}}\n")
    assert offered("contexts", "use", "") == ["dev", "prod"]
    assert offered("ls", "--context", "p") == ["prod"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_without_a_server_or_with_an_error_nothing_is_offered_and_nothing_is_said(
    shell: str,
) -> None:
    denied = {"type": "x", "title": "t", "status": 401, "detail": "no", "code": "unauthenticated"}
    with answering(Answer(denied, 401)) as server:
        for url in (server.url, "http://127.0.0.1:1", "nonsense"):
            assert said(shell, url) == (0, "", "")


def test_a_server_that_does_not_answer_holds_the_shell_up_no_longer_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert said("bash", f"http://127.0.0.1:{silent.getsockname()[1]}") == (0, "", "")


def said(shell: str, server: str) -> tuple[int, str, str]:
    """The output for a shell that completes the id after `yard show`."""
    env = {"_YARD_COMPLETE": f"{shell}_complete", "YARD_SERVER": server, "COMP_CWORD": "2"}
    env["COMP_WORDS"] = "yard show 4k"
    done = subprocess.run(
        [sys.executable, "-c", "from yardmaster_cli.main import main; main()"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.strip(), done.stderr
