"""`yard shares`: the division of a pool as a tree, and as the body of the API."""

import json
from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.main import run


def amounts(gpus: int | None, cpus: int | None = 0, memory_mib: int | None = 0) -> dict[str, Any]:
    return {
        "gpu_milli": None if gpus is None else gpus * 1000,
        "cpu_milli": None if cpus is None else cpus * 1000,
        "memory_mib": memory_mib,
    }


def queue(name: str, level: str, parent: str | None, held: int) -> dict[str, Any]:
    return {
        **{"name": name, "level": level, "parent": parent},
        "deserved": amounts(None if name == "all" else 4, None, None),
        "limit": amounts(6 if level == "project" else None, None, None),
        "fair_share": amounts(5, 10, 1024),
        "held": amounts(held, 4, 512),
        "reserved": amounts(0),
        "requested": amounts(2),
        "usage_milli": None if name == "vision" else 2500,
    }


SHARES: dict[str, Any] = {
    "pool": "h100",
    "divided_at": "2026-11-24T10:20:11.000Z",
    "cycle": 88_121,
    "items": [
        queue("all", "department", None, 4),
        queue("research", "department", "all", 4),
        queue("all", "project", "research", 3),
        queue("vision", "project", "research", 1),
    ],
    "position": "main@r1.a0.n0.d0",
}


def shown(capsys: pytest.CaptureFixture[str], *words: str, body: Any = SHARES) -> str:
    with answering(Answer(body)) as server:
        assert run(["shares", "--pool", "h100", *words, "--server", server.url]) == 0
    assert server.asked[0][0] == "/v1/shares?pool=h100"
    return capsys.readouterr().out


def test_queues_are_indented_below_their_departments(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys).splitlines() == [
        "QUEUE       DESERVED LIMIT SHARE HELD RESERVED REQUESTED USAGE",
        "all        unlimited     -     5    4        0         2   2.5",
        "  research         4     -     5    4        0         2   2.5",
        "    all    unlimited     6     5    3        0         2   2.5",
        "    vision         4     6     5    1        0         2     -",
    ]


def test_wide_and_csv_add_cpus_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    heading, *rows = shown(capsys, "-o", "csv").splitlines()
    cells = dict(zip(heading.split(","), rows[-1].split(","), strict=True))
    assert cells["queue"] == "vision"
    assert (cells["level"], cells["parent"]) == ("project", "research")
    assert (cells["deserved_cpus"], cells["limit_cpus"]) == ("unlimited", "")
    assert (cells["share_cpus"], cells["held_cpus"]) == ("10", "4")
    assert cells["held_memory"] == "512 MiB"
    assert "HELD_MEMORY" in shown(capsys, "-o", "wide")


def test_json_is_the_body_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(shown(capsys, "-o", "json")) == SHARES
    assert shown(capsys, "-o", "name").split() == ["all", "research", "all", "vision"]


def test_the_time_of_the_division_is_a_note_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(Answer(SHARES), Answer(SHARES)) as server:
        for words in ([], ["-o", "json"]):
            assert run(["shares", "--pool", "h100", *words, "--server", server.url]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "as of 10:20:11Z, a change is recorded after 60 s at the latest"
    ]


def test_a_pool_that_was_not_divided_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    body = {**SHARES, "divided_at": None, "cycle": None, "items": []}
    with answering(Answer(body)) as server:
        assert run(["shares", "--pool", "h100", "--server", server.url]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("QUEUE DESERVED LIMIT SHARE HELD RESERVED REQUESTED USAGE")
    assert "was not divided" in captured.err
