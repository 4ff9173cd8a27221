"""`yard wait`: what it reports on a terminal while it waits."""

import json
import threading
from typing import Any

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.commands.test_submit import JOB, POSITION, shown_task
from tests.unit.cli.output.test_describe import STOP, WAIT
from yardmaster_cli.main import run
from yardmaster_cli.progress import describe

ENV = {"XDG_CONFIG_HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"phase": "submitted"}, "submitted: waits for admission"),
        ({"phase": "pending", "wait": WAIT}, "pending: insufficient_free"),
        (
            {"phase": "pending", "wait": {**WAIT, "code": "exceeds_pool", "wait_class": "never"}},
            "pending: never: exceeds_pool",
        ),
        ({"phase": "pending", "paused": True}, "pending: paused"),
        ({"phase": "running", "nodes": ["n1", "n2"]}, "running on n1,n2"),
        ({"phase": "stopping", "stop": STOP}, "stopping: priority"),
        ({"phase": "failed"}, None),
    ],
)
def test_a_task_is_described_by_its_phase_and_reason(
    given: dict[str, Any], line: str | None
) -> None:
    assert describe(shown_task(**given)) == line


class WaitedTask:
    """The reads of a waiting command: a task whose phase the test changes."""

    def __init__(self) -> None:
        self.row = shown_task(wait=WAIT)
        #: Further tasks of its job, by phase.
        self.others: dict[str, int] = {}
        self.changed = threading.Event()
        #: The stream of its output ends once it is set.
        self.finished = threading.Event()

    def becomes(self, **given: Any) -> None:
        self.row = {**self.row, **given}
        self.changed.set()
        self.changed = threading.Event()

    def answer(self, path: str) -> Answer:
        headers = {"Yard-Position": POSITION}
        if "/logs?" in path:
            end = f"event: end\ndata: {json.dumps({'phase': 'succeeded'})}\n\n"
            return Answer(end, headers=headers, once=self.finished)
        if path.startswith("/v1/task-groups"):
            group = {"first": self.row, "last_index": 0, "count": 1}
            phases = {self.row["phase"]: 1, **self.others}
            body: dict[str, Any] = {
                **{"items": [group], "phases": phases, "counted_most": 10_000},
                **{"next_cursor": None, "position": POSITION},
            }
            return Answer(body, headers=headers)
        if "wait_for" in path and self.row["phase"] != "succeeded":
            return Answer(self.row, headers=headers, once=self.changed)
        if path.startswith("/v1/tasks?"):
            body = {"items": [self.row], "next_cursor": None, "position": POSITION}
            return Answer(body, headers=headers)
        return Answer(self.row, headers=headers)


@pytest.mark.parametrize("ref", [JOB, f"{JOB}.0"])
def test_a_wait_on_a_terminal_reports_each_change_of_phase_and_reason(ref: str) -> None:
    task = WaitedTask()
    with answering(choose=task.answer) as server:
        args = ["wait", ref, "--server", server.url]
        with on_terminal(args, ENV) as terminal:
            terminal.until(f"{JOB}.0 pending: insufficient_free\n")
            task.becomes(phase="running", wait=None, nodes=["n1"])
            terminal.until(f"{JOB}.0 running on n1\n")
            task.becomes(phase="succeeded", nodes=[])
            assert terminal.end() == 0
    assert terminal.text.count("pending") == 1
    assert terminal.text.endswith(f"{JOB}.0 succeeded\n")


def test_a_wait_for_a_job_of_several_tasks_reports_their_phases_and_the_reasons() -> None:
    task = WaitedTask()
    task.others = {"running": 8}
    with (
        answering(choose=task.answer) as server,
        on_terminal(["wait", JOB, "--server", server.url], ENV) as terminal,
    ):
        terminal.until(f"{JOB} has 9 tasks: 8 running, 1 pending (insufficient_free)\n")


def test_a_wait_in_a_pipe_reports_the_end_alone(capsys: pytest.CaptureFixture[str]) -> None:
    task = WaitedTask()
    task.becomes(phase="succeeded")
    with answering(choose=task.answer) as server:
        assert run(["wait", JOB, "--server", server.url]) == 0
    assert capsys.readouterr().err == f"{JOB}.0 succeeded\n"


@pytest.mark.parametrize(
    ("end", "shown", "hint"),
    [
        ({"code": "exit", "exit_code": 127}, "failed: exit 127", True),
        (
            {"code": "directory_missing", "exit_code": None},
            "failed: directory_missing (run.working_dir is not a directory on the node)",
            False,
        ),
    ],
)
def test_the_wait_for_a_task_that_failed_says_why_or_where_its_output_is(
    end: dict[str, Any], shown: str, hint: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = WaitedTask()
    row = {"outcome": "failed", "signal": None, "cycle": 5, "ended_at": "2026-01-01T09:00:00Z"}
    task.becomes(phase="failed", attempt=1, wait=None, end={**row, **end})
    with answering(choose=task.answer) as server:
        run(["wait", f"{JOB}.0", "--server", server.url])
        more = f"hint: the last lines of its output: yard show {JOB}.0 --server {server.url}"
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{JOB}.0 {shown}", *([more] if hint else [])]
