"""`yard pools`, `projects` and `departments`: what they send, and what they show."""

import json
from typing import Any

import pytest

from tests.unit.cli.answers import Answer, answering
from yardmaster_cli.commands.configured import departments, pools, projects
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run


def usage(pool: str, used: int, pending: int, limit: int | None) -> dict[str, Any]:
    return {
        "pool": pool,
        "deserved_milli": 1500,
        "limit_milli": limit,
        "over_quota_weight": 3,
        "used_milli": used,
        "pending_milli": pending,
    }


PROJECT: dict[str, Any] = {
    "name": "nlp",
    "revision": 3,
    "department": "research",
    "config": {"department": "research"},
    "used_milli": 6000,
    "pending_milli": 1000,
    "running": 2,
    "pending": 1,
    "pools": [usage("a100", 2000, 1000, 2000), usage("h100", 4000, 0, None)],
}


def test_all_three_groups_have_the_same_commands() -> None:
    for group in (pools, projects, departments):
        assert list(group.commands) == ["ls", "show", "create", "set", "delete"]


@pytest.mark.parametrize("name", ["pools", "projects", "departments"])
def test_an_unknown_key_is_refused_before_anything_is_sent(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Answer({}, 500)) as server:
        code = run([name, "create", "x", "wight=2", "--server", server.url])
    assert code == Exit.USAGE
    assert "unknown key wight" in capsys.readouterr().err
    assert server.asked == []


def test_the_numbers_of_one_pool_change_the_table_and_not_the_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Answer({"items": [PROJECT], "next_cursor": None, "position": "main@r1"})
    with answering(page, page) as server:
        words = ["projects", "--pool", "a100", "--server", server.url]
        assert run([*words, "-o", "table"]) == 0
        table = capsys.readouterr().out.splitlines()
        assert run([*words, "-o", "json"]) == 0
    assert table[1].split() == ["nlp", "research", "1.5", "2", "1", "2", "3", "at_limit"]
    (row,) = json.loads(capsys.readouterr().out)["items"]
    assert "shown_pool" not in row
    assert row["used_milli"] == 6000


@pytest.mark.parametrize(
    ("quota", "shown"),
    [
        ({}, "0 6 1 - 1 no_limit"),
        ({"limit_milli": 8000}, "0 6 1 8 1 below_limit"),
        ({"limit_milli": 6000, "deserved_milli": 8000}, "8 6 1 6 1 at_limit"),
        ({"deserved_milli": 5500, "over_quota_weight": 0}, "5.5 6 1 - 0 over_quota"),
        ({"deserved_milli": 6000}, "6 6 1 - 1 in_quota"),
        ({"deserved_unlimited": True}, "unlimited 6 1 - 1 in_quota"),
    ],
)
def test_a_project_is_compared_with_its_quota_in_a_pool(
    quota: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    use = usage("h100", 6000, 1000, None) | {"deserved_milli": 0, "over_quota_weight": 1}
    row = PROJECT | {"pools": [use | quota]}
    page = Answer({"items": [row], "next_cursor": None, "position": "main@r1"})
    with answering(page) as server:
        assert run(["projects", "--pool", "h100", "--server", server.url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2:] == shown.split()


def test_departments_show_their_parents_and_quotas(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        **{"name": "vision", "revision": 1, "config": {"parent": "research"}},
        **{"projects": ["images"], "used_milli": 6000, "pending_milli": 0},
        "pools": [usage("h100", 6000, 0, 8000)],
    }
    page = Answer({"items": [row], "next_cursor": None, "position": "main@r1"})
    with answering(page, page) as server:
        for words in ([], ["--pool", "h100"]):
            assert run(["departments", *words, "--server", server.url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["NAME", "PARENT", "PROJECTS", "USED", "PENDING"],
        ["vision", "research", "images", "6", "0"],
        ["NAME", "PARENT", "PROJECTS", "DESERVED", "USED", "PENDING", "LIMIT", "WEIGHT"],
        ["vision", "research", "images", "1.5", "6", "0", "8", "3"],
    ]


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("option.over_quota=never", "over_quota: Input should be 'deserved' or 'weight'"),
        ("option.weights=on", "weights: Unexpected keyword argument"),
        ("placement=full", "There is no placement strategy full"),
    ],
)
def test_a_refused_option_of_a_policy_is_named(
    pair: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"code": "policy_options_invalid", "numbers": {}, "about": "quota"}
    answers = (
        Answer({"request_ids": ["main.5"], "position": "main@r6"}, 202),
        Answer({"items": [], "next_cursor": None, "position": "main@r6"}),
        Answer(
            {
                **{"request_id": "main.5", "type": "T", "subject": "s", "state": "refused"},
                **{"refusal": refusal, "user": "ana", "requested_at": "2026-01-31T12:00:00.000Z"},
            }
        ),
    )
    with answering(*answers) as server:
        words = ["pools", "create", "h100", "policy=quota", pair, "--server", server.url]
        assert run(words) == Exit.CONFLICT
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: h100: refused: policy_options_invalid quota"
    assert problem in hint


def test_a_name_that_no_object_can_have_is_named_before_anything_is_created(
    capsys: pytest.CaptureFixture[str],
) -> None:
    detail = "There is no project 'NLP': a name has 1 to 63 characters of [a-z0-9._-]."
    problem = {"type": "about:blank", "title": "Not found.", "status": 404, "detail": detail}
    missing = Answer(
        {**problem, "instance": "/", "code": "not_found"},
        404,
        {"Content-Type": "application/problem+json"},
    )
    with answering(missing) as server:
        assert run(["projects", "create", "NLP", "--server", server.url]) == Exit.USAGE
    assert capsys.readouterr().err.splitlines() == [
        "error: 'NLP' is not a valid name of a project: a name has 1 to 63 characters of "
        "[a-z0-9._-]."
    ]


@pytest.mark.parametrize("noun", ["cell", "upgrade"])
def test_a_noun_without_a_list_shows_its_object(
    noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        "/v1/cell": {
            **{"name": "main", "revision": 0, "time_ahead_s": 0, "position": "main@r6"},
            "config": {"project_tasks": 5, "user_tasks": 5, "tasks_of": {}, "default_pools": []},
        },
        "/v1/rules": {"rules": 1, "newest": 1, "position": "main@r6"},
    }
    with answering(choose=lambda path: Answer(answers[path.partition("?")[0]])) as server:
        assert run([noun, "--server", server.url]) == 0
        bare = capsys.readouterr().out
        assert run([noun, "show", "--server", server.url]) == 0
    assert bare == capsys.readouterr().out != ""
