"""`yard ls`: what it asks the server for, and what it says of what it leaves out."""

import json
from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.output.test_describe import task
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

SHOWN: dict[str, Any] = task(
    **{"job_id": "9b3xd0h5t6vn", "index": 0, "phase": "running", "pool": "h100"},
    **{"user": "nora", "kind": "training", "labels": {}, "gpu_milli": 16_000},
    submitted_at="2026-01-01T09:00:00Z",
)


@pytest.mark.parametrize("more", [None, "after-it"])
def test_a_list_of_a_pool_says_when_more_tasks_run_than_it_shows(
    more: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {"items": [SHOWN], "next_cursor": more}
    none: dict[str, Any] = {"items": [], "next_cursor": None}
    with answering(Answer(running), Answer(none)) as server:
        code = run(["ls", "--pool", "h100", "--limit", "1", "--server", server.url])
    shown = capsys.readouterr()
    assert code == 0
    assert SHOWN["task_id"] in shown.out
    assert ("1 rows shown; --all lists every task" in shown.err) is (more is not None)


def stream(*changes: tuple[str, Any]) -> Answer:
    """Server-sent events, as the watch of tasks sends them."""
    text = "".join(
        f"event: {event}\nid: main@r{number}\ndata: {json.dumps(data)}\n\n"
        for number, (event, data) in enumerate(changes, 1)
    )
    return Answer(text, headers={"Yard-Position": "main@r1"})


def test_a_watch_asks_after_an_outage_only_for_tasks_that_were_active_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = ("snapshot", {"kind": "task", "items": [], "complete": True})
    ran = [("upsert", {"item": {**SHOWN, "phase": phase}}) for phase in ("running", "succeeded")]
    problem = {"title": "x", "status": 401, "detail": "it is over", "code": "unauthenticated"}
    answers = (stream(nothing, *ran), stream(nothing), Answer(problem, 401))
    with answering(*answers) as server:
        code = run(["ls", "-w", "-o", "jsonl", "--server", server.url])
    assert code == Exit.NOT_ALLOWED
    phases = [json.loads(line)["phase"] for line in capsys.readouterr().out.splitlines()]
    assert phases == ["running", "succeeded"]
    assert {path.partition("?")[0] for path, _ in server.asked} == {"/v1/watch"}
