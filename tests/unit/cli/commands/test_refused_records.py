"""`yard submit` when quota refuses the record of a request, which the gateway has acknowledged."""

from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.commands.submit import MAX_RECORDS
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

JOB = "aaaaaaaaaaaa"


def recorded(requests: int) -> Answer:
    position = f"main@r{requests}.a0.n0.d0"
    return Answer({"job_id": JOB, "task_ids": [f"{JOB}.0"], "position": position}, status=202)


def task(phase: str, code: str | None = None) -> Answer:
    nulls = (
        *("department", "priority", "weight", "pool", "params", "progress_permille"),
        *("admitted_at", "started_at", "ended_at", "wait", "stop", "checkpoint", "end"),
    )
    known: dict[str, Any] = {
        **{"task_id": f"{JOB}.0", "job_id": JOB, "index": 0, "name": JOB, "project": "nlp"},
        **{"user": "nina", "labels": {}, "kind": "training", "phase": phase, "paused": False},
        **{"preemptible": True, "pools": [], "nodes": [], "resources": {"gpus": 0}},
        **{"replicas_min": 1, "replicas_max": 1, "gpu_milli": 0, "attempt": 0, "restarts": 0},
        "submitted_at": "2026-11-24T10:20:11.000Z",
        "refusal": None if code is None else {"code": code, "numbers": {}, "about": None},
    }
    return Answer(dict.fromkeys(nulls) | known)


def submit(url: str) -> int:
    return run(["submit", "-p", "nlp", "--gpus", "0", "--server", url, "--", "true"])


def test_a_request_whose_record_was_refused_is_recorded_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = (recorded(8), task("rejected", "repeated"), recorded(9), task("pending"))
    with answering(*answers) as server:
        assert submit(server.url) == Exit.DONE
    assert capsys.readouterr().out == f"{JOB}\n"
    posts = [headers for path, headers in server.asked if path == "/v1/jobs"]
    assert len(posts) == 2
    assert len({headers["Idempotency-Key"] for headers in posts}) == 1


def test_a_request_whose_records_are_all_refused_exits_with_104_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = [recorded(8), task("rejected", "epoch_ahead")] * MAX_RECORDS
    with answering(*answers) as server:
        assert submit(server.url) == Exit.REFUSED
    assert len(server.sent) == MAX_RECORDS
    said = capsys.readouterr()
    assert said.out == f"{JOB}\n", "the id is printed before the verdict"
    assert "epoch_ahead" in said.err
    assert "submit it again" in said.err


def test_a_job_that_quota_rejects_is_not_recorded_again() -> None:
    with answering(recorded(8), task("rejected", "project_full")) as server:
        assert submit(server.url) == Exit.REFUSED
    assert len(server.sent) == 1
