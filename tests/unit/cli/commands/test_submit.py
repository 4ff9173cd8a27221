"""`yard submit`: the id before everything that can be slow, and what is said while it waits."""

import threading
import time
from typing import Any

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.output.test_describe import task
from yardmaster_cli.commands import submit
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

JOB = "4kq7w2mz9c1f"
POSITION = "main@r6"
RECORDED = Answer(
    {"job_id": JOB, "task_ids": [f"{JOB}.0"], "position": POSITION, "warnings": []},
    202,
    {"Yard-Position": POSITION},
)
UNAVAILABLE = Answer(
    {
        **{"type": "about:blank", "title": "x", "status": 503, "instance": "/"},
        **{"detail": "The views are unavailable.", "code": "views_unavailable"},
    },
    503,
    {"Content-Type": "application/problem+json"},
)
WORDS = ("-p", "nlp", "--", "true")


def shown_task(**given: Any) -> dict[str, Any]:
    return (
        task(
            **{"task_id": f"{JOB}.0", "job_id": JOB, "index": 0, "phase": "pending", "pool": None},
            **{"user": "ana", "kind": "training", "labels": {}, "gpu_milli": 1000, "attempt": 0},
            **{"submitted_at": "2026-01-01T09:00:00Z", "admitted_at": None, "ended_at": None},
            **{"preemptible": True, "weight": 1, "restarts": 0},
        )
        | given
    )


def at_paths(reads: Answer) -> Any:
    """A submission is recorded; each read gets `reads`."""
    return lambda path: RECORDED if path.startswith("/v1/jobs") else reads


@pytest.mark.parametrize("reads", [UNAVAILABLE, Answer("", once=threading.Event())])
def test_the_id_is_printed_and_the_wait_ends_in_time_while_the_views_fail_or_hang(
    reads: Answer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "VERDICT_S", 1.0)
    with answering(choose=at_paths(reads)) as server:
        started = time.monotonic()
        assert run(["submit", "--server", server.url, *WORDS]) == 0
        took_s = time.monotonic() - started
    shown = capsys.readouterr()
    assert shown.out == f"{JOB}\n"
    assert shown.err == f"{JOB}: recorded; no verdict after 1s\n"
    assert took_s < 8, "the answer that never comes takes 15 s and more"
    assert [path for path, _ in server.sent] == ["/v1/jobs"]


def test_an_interrupted_wait_has_printed_the_id_and_says_how_to_look() -> None:
    hanging = Answer("", once=threading.Event())
    with answering(choose=at_paths(hanging)) as server:
        args = ["submit", "--server", server.url, *WORDS]
        with on_terminal(args, {"XDG_CONFIG_HOME": "/nonexistent"}) as terminal:
            terminal.until(JOB)
            terminal.interrupt()
            assert terminal.end() == Exit.INTERRUPTED
    assert f"{JOB} is recorded; nothing was cancelled\n" in terminal.text
    assert f"hint: continue with: yard show {JOB} --server {server.url}\n" in terminal.text


def test_a_submission_without_an_acknowledgment_names_the_key_that_makes_a_repeat_safe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with answering(UNAVAILABLE) as server:
        assert run(["submit", "--server", server.url, *WORDS]) == Exit.UNREACHABLE
    (key,) = {headers["Idempotency-Key"] for _, headers in server.asked}
    assert len(server.asked) > 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"repeat with --idempotency-key {key}" in shown.err


def test_a_submission_that_gets_no_answer_says_so_on_a_terminal_after_two_seconds() -> None:
    answered = threading.Event()
    recorded = Answer(RECORDED.body, 202, RECORDED.headers, once=answered)
    with answering(recorded) as server:
        args = ["submit", "--no-wait", "--server", server.url, *WORDS]
        with on_terminal(args, {"XDG_CONFIG_HOME": "/nonexistent"}) as terminal:
            terminal.until(f"no answer for 2s; waiting for {server.url} (POST /v1/jobs)\n")
            answered.set()
            assert terminal.end() == 0
    assert terminal.text.endswith(f"{JOB}\n")
