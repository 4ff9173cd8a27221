"""Rows of lists."""

import pytest

from yardmaster_cli.output.columns import NODES, grouped
from yardmaster_cli.output.formats import Output


@pytest.mark.parametrize(
    ("gpus", "limits", "shown"),
    [(4, "mps", "mps"), (4, "none", "not_enforced"), (0, "none", None), (4, None, None)],
)
def test_nodes_say_whether_fractions_are_enforced(
    gpus: int, limits: str | None, shown: str | None
) -> None:
    (column,) = [column for column in NODES if column.title == "FRACTIONS"]
    assert column.cell({"gpus": gpus, "fraction_limits": limits}) == shown


def test_nodes_say_what_they_run() -> None:
    (column,) = [column for column in NODES if column.title == "RUNS"]
    assert column.cell({"executors": ["process", "container"]}) == "process,container"
    assert column.cell({"executors": []}) is None


@pytest.mark.parametrize(
    ("first", "last", "count", "shown"),
    [
        (3, 3, 1, "4kq7w2mz9c1f.3"),
        (3, 299, 297, "4kq7w2mz9c1f.[3-299]"),
        # One of 1 to 5 is in another phase, and so in a row of its own.
        (1, 5, 4, "4kq7w2mz9c1f.[1,..,5]"),
    ],
)
def test_a_group_is_a_range_only_of_tasks_that_are_all_in_it(
    first: int, last: int, count: int, shown: str
) -> None:
    task = {"task_id": f"4kq7w2mz9c1f.{first}", "job_id": "4kq7w2mz9c1f", "index": first}
    row = grouped({"first": task, "last_index": last, "count": count})
    assert row["task_id"] == shown


def test_a_lost_node_says_since_when_it_is_silent() -> None:
    row = {
        **{"name": "n4", "state": "lost", "gpus": 4, "gpu_milli_free": 0, "reason": None},
        "seen_at": "2026-01-01T10:30:41Z",
    }
    out = Output(columns=("name", "state", "free", "seen", "reason"))
    head, line = out.lines([row], NODES, name="name")
    assert head.split() == ["NAME", "STATE", "FREE", "SEEN_AT", "REASON"]
    assert line.split(maxsplit=4) == [
        *("n4", "lost", "0.0", "2026-01-01T10:30:41Z"),
        "silent since 10:30:41Z",
    ]
    ready = out.lines([{**row, "state": "ready"}], NODES, name="name")
    assert "silent" not in ready[1]
