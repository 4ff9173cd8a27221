"""Filters of lists, as far as commands apply them themselves."""

from typing import Any

import pytest

from yardmaster_cli.listing.filters import matches

TASK: dict[str, Any] = {
    "project": "nlp",
    "pool": None,
    "pools": ["h100", "a100"],
    "nodes": ["n1", "n2"],
    "user": "ana",
    "kind": "training",
    "phase": "running",
    "name": "train, again",
    "labels": {"team": "a=b"},
    "submitted_at": "2026-11-23T10:00:00.000Z",
}
QUERIES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"project": "nlp,cv"}, True),
    ({"project": "cv"}, False),
    ({"pool": "a100"}, True),
    ({"node": "n2,n9"}, True),
    ({"node": "n9"}, False),
    ({"user": "ana", "kind": "training", "phase": ["running"]}, True),
    ({"phase": ["pending"]}, False),
    ({"name": "train, again"}, True),
    ({"name": "train"}, False),
    ({"label": ["team=a=b"]}, True),
    ({"label": ["team=x", "team=a=b"]}, True),
    ({"label": ["team=a=b", "stage=1"]}, False),
    ({"since": "2026-11-23T10:00:00Z"}, True),
    ({"since": "2026-11-23T10:00:01Z"}, False),
]


@pytest.mark.parametrize(("query", "matched"), QUERIES)
def test_a_watch_narrows_tasks_as_the_server_does(query: dict[str, Any], matched: bool) -> None:
    assert matches(TASK, query) is matched


def test_a_task_that_has_a_pool_is_in_no_other() -> None:
    assert not matches({**TASK, "pool": "h100"}, {"pool": "a100"})
