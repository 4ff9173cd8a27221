"""`yard ls`: what it asks the server for, and what it says of what it leaves out."""

import json
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.output.test_describe import WAIT, task
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

ENV = {"XDG_CONFIG_HOME": "/nonexistent"}
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
    assert ("1 row shown; --all lists every task" in shown.err) is (more is not None)


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


NAME = "a-job-whose-name-has-fifty-five-characters-in-all-12345"
ENV = {"XDG_CONFIG_HOME": "/nonexistent", "NO_COLOR": "1"}


def row(number: int, **given: Any) -> dict[str, Any]:
    job = f"4kq7w2mz9{number:03d}"
    return {
        **SHOWN,
        **{"task_id": f"{job}.0", "job_id": job, "name": NAME, "nodes": []},
        **{"pool": "default", "pools": ["default"], "end": None},
        **given,
    }


class Tasks:
    """A server with running, pending and ended tasks."""

    def __init__(self, running: int = 2, pending: int = 2, ended: int = 40) -> None:
        self.running = [row(n, nodes=["node-1"]) for n in range(running)]
        self.pending = [row(100 + n, phase="pending", wait=WAIT) for n in range(pending)]
        # The newest job ended first.
        self.ended = [
            row(200 + n, phase="succeeded", ended_at=f"2026-01-01T10:{n:02d}:00Z")
            for n in range(ended)
        ]

    def answer(self, path: str) -> Answer:
        query = {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}
        phases, most = query.get("phase", "").split(","), int(query.get("limit", "100"))
        found = [*self.running, *self.pending, *self.ended]
        items = [one for one in found if one["phase"] in phases][:most]
        if path.startswith("/v1/tasks"):
            return Answer({"items": items, "next_cursor": None})
        groups = [{"first": one, "last_index": 0, "count": 1} for one in items]
        each = [(part[0]["phase"], len(part)) for part in self.parts if part]
        return Answer(
            {"items": groups, "next_cursor": None, "phases": dict(each), "counted_most": 9}
        )

    @property
    def parts(self) -> list[list[dict[str, Any]]]:
        return [self.running, self.pending, self.ended]


@pytest.mark.parametrize(
    ("columns", "rows", "titles"),
    [
        (80, 24, "ID NAME PROJECT PHASE GPUS NODES AGE REASON"),
        (120, 40, "ID NAME PROJECT PHASE TASKS GPUS NODES AGE PROGRESS REASON"),
    ],
)
def test_a_list_fits_its_terminal_and_keeps_phase_node_and_reason(
    columns: int, rows: int, titles: str
) -> None:
    with (
        answering(choose=Tasks(ended=1).answer) as server,
        on_terminal(["ls", "--server", server.url], ENV, columns=columns, rows=rows) as terminal,
    ):
        assert terminal.end() == 0
    head, *lines = terminal.text.splitlines()[:6]
    assert head.split() == titles.split()
    assert max(map(len, [head, *lines])) <= columns
    assert NAME not in terminal.text
    assert "a-job-" in lines[0]
    assert "running" in lines[0]
    assert "node-1" in lines[0]
    assert lines[2].endswith("insufficient_free")
    assert "pending" in lines[2]


def test_a_list_in_a_pipe_has_whole_names_times_nodes_and_pools(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(choose=Tasks().answer) as server:
        assert run(["ls", "--server", server.url]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    left, _, right = head.partition(" POOL ")
    assert left.split() == ["ID", "NAME", "PROJECT", "PHASE", "TASKS", "GPUS"]
    assert right.split() == ["NODES", "SUBMITTED", "PROGRESS_PERCENT", "REASON"]
    assert NAME in first
    assert "2026-01-01T09:00:00Z" in first


def test_a_list_has_active_tasks_and_those_that_ended_last_and_says_how_to_see_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = Tasks()
    with answering(choose=tasks.answer) as server:
        assert run(["ls", "--server", server.url]) == 0
        shown = capsys.readouterr()
        ids = [line.split()[0] for line in shown.out.splitlines()[1:]]
        last = [one["task_id"] for one in reversed(tasks.ended)][:10]
        assert ids == [one["task_id"] for one in (*tasks.running, *tasks.pending)] + last
        assert "14 rows shown; --phase ended lists all that ended" in shown.err
        assert run(["ls", "--phase", "ended", "--server", server.url]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1 + 40
        assert run(["ls", "-o", "name", "--server", server.url]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 44


@pytest.mark.parametrize(("columns", "rows", "active"), [(80, 24, 15), (120, 40, 50)])
def test_a_watched_list_never_scrolls_and_shows_the_active_tasks_first(
    columns: int, rows: int, active: int
) -> None:
    tasks = Tasks(running=active, pending=0)
    with (
        answering(choose=tasks.answer) as server,
        on_terminal(
            ["ls", "-w", "--server", server.url], ENV, columns=columns, rows=rows
        ) as terminal,
    ):
        terminal.until_frames(1)
        frame = terminal.frames()[0]
        terminal.interrupt()
        terminal.end()
    assert len(frame) < rows, "the cursor needs a line, too"
    assert max(map(len, frame)) <= columns
    assert frame[0].startswith("ID")
    listed = [line.split()[0] for line in frame[1:-2]]
    wanted = [one["task_id"] for one in tasks.running]
    assert listed[: len(wanted)] == wanted[: len(listed)]
    assert f"... {active + 10 - len(listed)} more; a higher terminal shows them" == frame[-2]
    assert frame[-1].startswith(f"{active + 40} tasks: {active} running, 40 succeeded")


def test_groups_show_nothing_that_their_tasks_do_not_have_in_common(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = row(1, phase="succeeded", params={"lr": 1}, nodes=["n1"], attempt=3)
    groups = {
        **{"items": [{"first": first, "last_index": 5, "count": 6}], "next_cursor": None},
        **{"phases": {"succeeded": 6}, "counted_most": 10_000},
    }
    none: dict[str, Any] = {"items": [], "next_cursor": None, "phases": {}, "counted_most": 9}
    with answering(choose=lambda path: Answer(groups if "succeeded" in path else none)) as server:
        columns = "id,params,nodes,attempt"
        assert run(["ls", "--columns", columns, "--server", server.url]) == 0
    shown = capsys.readouterr().out.splitlines()[1].split()
    assert shown == ["4kq7w2mz9001.[0-5]", "-", "-", "-"]


def test_a_list_that_gets_no_answer_says_so_on_a_terminal_after_two_seconds() -> None:
    none: dict[str, Any] = {"items": [], "next_cursor": None, "phases": {}, "counted_most": 9}
    answered = threading.Event()
    with (
        answering(Answer(none, once=answered)) as server,
        on_terminal(["ls", "--server", server.url], ENV) as terminal,
    ):
        terminal.until(f"no answer for 2s; waiting for {server.url} (GET /v1/tasks)\n")
        answered.set()
        assert terminal.end() == 0
