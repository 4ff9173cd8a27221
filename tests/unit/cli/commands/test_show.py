"""`yard show` of a job: what its table of tasks has."""

from typing import Any

import pytest

from tests.support.terminal import on_terminal
from tests.unit.cli.answers import Answer, answering
from tests.unit.cli.commands.test_submit import JOB, shown_task
from yardmaster_cli.main import run


class Search:
    """A server with a search of three tasks."""

    def __init__(self, *, params: bool = True) -> None:
        self.tasks = [
            shown_task(
                task_id=f"{JOB}.{index}",
                index=index,
                phase="running",
                nodes=[f"node-{index}"],
                params={"lr": 0.1**index, "seed": index} if params else None,
            )
            for index in range(3)
        ]

    def answer(self, path: str) -> Answer:
        if path.startswith("/v1/tasks"):
            return Answer({"items": self.tasks, "next_cursor": None})
        first = self.tasks[0]
        asked = {key: first[key] for key in ("resources", "replicas_min", "replicas_max", "pools")}
        job: dict[str, Any] = {
            **{"job_id": JOB, "name": "search", "project": "nlp", "tasks": 3},
            **{"phases": {"running": 3}, "asked": asked, "spec": None, "refusal": None},
        }
        return Answer(job)


def test_a_job_of_a_search_is_shown_with_the_parameters_and_nodes_of_its_tasks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(choose=Search().answer) as server:
        assert run(["show", JOB, "--server", server.url]) == 0
    titles, *lines = (line.split() for line in capsys.readouterr().out.splitlines()[2:])
    assert titles == [
        "ID",
        "PHASE",
        "GPUS",
        "POOL",
        "NODES",
        "SUBMITTED",
        "PROGRESS_PERCENT",
        "REASON",
        "PARAMS",
    ]
    assert [line[-1] for line in lines] == [
        "lr=1.0,seed=0",
        "lr=0.1,seed=1",
        f"lr={0.1**2},seed=2",
    ]
    assert [line[4] for line in lines] == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_a_job_of_a_search_fits_its_terminal(columns: int, rows: int) -> None:
    with (
        answering(choose=Search().answer) as server,
        on_terminal(
            ["show", JOB, "--server", server.url],
            {"XDG_CONFIG_HOME": "/nonexistent"},
            columns=columns,
            rows=rows,
        ) as terminal,
    ):
        assert terminal.end() == 0
    lines = terminal.text.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[2].split()[-1] == "PARAMS"
    assert lines[-3].split()[-1] == "lr=1.0,seed=0"


def test_a_job_without_parameters_has_no_column_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(choose=Search(params=False).answer) as server:
        assert run(["show", JOB, "--server", server.url]) == 0
    assert "PARAMS" not in capsys.readouterr().out
