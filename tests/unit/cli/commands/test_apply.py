"""`yard apply` and `yard diff`: the order and the rows of a file with nested departments."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

ORG = """
departments:
  vision: {parent: labs, rank: 200}
  labs:
    parent: company
    reclaim-min-runtime: 30m
    quota:
      h100: {deserved: unlimited, limit: 32, over-quota-weight: high, over-quota: off}
      a100.deserved-cpus: 64
      a100.deserved-memory: 2Ti
  company:
"""


def found(name: str, parent: str | None = None) -> dict[str, Any]:
    return {
        **{"name": name, "revision": 3, "config": {"parent": parent}},
        **{"used_milli": 0, "pending_milli": 0, "projects": [], "pools": []},
    }


def diff(text: str, folder: Path, *departments: dict[str, Any]) -> int:
    (folder / "org.yaml").write_text(text)
    page = Answer({"items": departments, "next_cursor": None, "position": "main@r1"})
    with answering(page) as server:
        words = ["diff", "-f", str(folder / "org.yaml"), "--server", server.url]
        return run([*words, "-o", "csv", "--no-headers"])


def test_parents_are_applied_before_their_departments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(ORG, tmp_path) == Exit.CHECK_FAILED
    assert capsys.readouterr().out.splitlines() == [
        "department,company,,,new",
        "department,labs,,,new",
        "department,labs,parent,,company",
        "department,labs,quota.a100.deserved-cpus,,64",
        "department,labs,quota.a100.deserved-memory,,2Ti",
        "department,labs,quota.h100.deserved,,unlimited",
        "department,labs,quota.h100.limit,,32",
        "department,labs,quota.h100.over-quota,,off",
        "department,labs,quota.h100.over-quota-weight,,high",
        "department,labs,reclaim-min-runtime,,30m",
        "department,vision,,,new",
        "department,vision,parent,,labs",
        "department,vision,rank,,200",
    ]


def test_parents_that_only_the_server_knows_count_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "departments: {b: {parent: kept}, a: {}, c: {parent: b}}"
    old = found("kept", "a"), found("a", "b"), found("b"), found("c")
    assert diff(text, tmp_path, *old) == Exit.CHECK_FAILED
    rows = [line.split(",")[1:] for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["a", "parent", "b", "none (default)"],
        ["b", "parent", "none", "kept"],
        ["c", "parent", "none", "b"],
    ]


def test_rows_have_the_keys_and_units_of_the_file_and_say_which_values_are_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quota = {"deserved_milli": 2500, "limit_milli": None, "over_quota_weight": 1}
    config = {"weight": 5, "rank": 7, "quotas": {"h100": quota, "old": quota}}
    known = {**found("labs"), "config": config}
    text = "departments: {labs: {rank: 7, quota: {h100: {deserved: 8}, new: {limit: 0.5}}}}"
    assert diff(text, tmp_path, known) == Exit.CHECK_FAILED
    assert capsys.readouterr().out.splitlines() == [
        "department,labs,quota.h100.deserved,2.5,8",
        "department,labs,quota.new.limit,,0.5",
        "department,labs,quota.old.deserved,2.5,",
        "department,labs,weight,5,1 (default)",
    ]
    quotas = "{h100: {deserved: 2.5}, old.deserved: 2.5}"
    same = f"departments: {{labs: {{rank: 7, weight: 5, quota: {quotas}}}}}"
    assert diff(same, tmp_path, known) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "circle"),
    [
        ("departments: {a: {parent: a}}", "a in a"),
        ("departments: {a: {parent: b}, b: {parent: a}}", "a in b in a"),
        ("departments: {a: {parent: kept}}", "a in kept in a"),
    ],
)
def test_a_department_in_itself_is_refused_before_anything_is_sent(
    text: str, circle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(text, tmp_path, found("kept", "a"), found("a")) == Exit.USAGE
    assert f"departments.a: it would be a part of itself: {circle}" in capsys.readouterr().err


def test_an_existing_pool_gets_the_policy_quota_after_the_quotas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "org.yaml"
    file.write_text(
        "pools: {old: {policy: quota}, new: {policy: quota}, kept: {seed: 1}}\n"
        "projects: {nlp: {quota: {old: {deserved: 4}}}}\n"
    )
    pools = [
        {
            **{"name": name, "revision": 3, "config": {"policy": {"name": "priority"}}},
            **{"nodes": 1, "gpu_milli": 0, "gpu_milli_used": 0, "pending": 0},
        }
        for name in ("kept", "old")
    ]
    answers = [
        Answer({"items": items, "next_cursor": None, "position": "main@r1"})
        for items in (pools, list[Any]())
    ]
    with answering(*answers) as server:
        words = ["diff", "-f", str(file), "--server", server.url, "-o", "csv", "--no-headers"]
        assert run(words) == Exit.CHECK_FAILED
    rows = [tuple(line.split(",")[:2]) for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(rows)) == [
        *(("pool", "new"), ("pool", "kept"), ("project", "nlp"), ("pool", "old"))
    ]


def test_an_object_that_the_server_refuses_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "org.yaml").write_text("pools: {long: {policy: nosuch}}\n")
    detail = "policy.name: there is no policy nosuch"
    problem = {"type": "about:blank", "title": "Invalid.", "status": 422, "detail": detail}
    refused = Answer(
        {**problem, "instance": "/", "code": "malformed"},
        422,
        {"Content-Type": "application/problem+json"},
    )
    none = Answer({"items": [], "next_cursor": None, "position": "main@r1"})
    with answering(none, refused) as server:
        words = ["apply", "-f", str(tmp_path / "org.yaml"), "--server", server.url]
        assert run(words) == Exit.USAGE
    assert capsys.readouterr().err == f"error: pool long: {detail}\n"
