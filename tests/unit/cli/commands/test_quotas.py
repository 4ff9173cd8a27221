"""`yard quotas`: what it lists, and what it sends."""

from typing import Any

import pytest

from tests.unit.cli.answers import Answer, Answers, answering
from yardmaster_cli.errors import Exit
from yardmaster_cli.main import run

TAG = {"ETag": '"3"'}
QUOTA = {"deserved_milli": 4000, "limit_milli": 9000, "deserved_memory_mib": 2048}
USED = {"used_milli": 6000, "pending_milli": 0, "over_quota_weight": 1}


def owner(name: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    uses = [{"pool": "h100", "limit_milli": None, **QUOTA, **USED}]
    uses += [{"pool": "a100", "deserved_milli": 0, "limit_milli": None, **USED}]
    return {
        **{"name": name, "revision": 3, "config": config | {"quotas": {"h100": QUOTA}}},
        **{"used_milli": 6000, "pending_milli": 0, "pools": uses, **more},
    }


PROJECT = owner("nlp", {"department": "labs", "rank": 7}, department="labs", running=1, pending=0)
DEPARTMENT = owner("labs", {"parent": "company"}, projects=["nlp"])
WRITTEN = (
    Answer({"request_ids": ["main.5"], "position": "main@r6"}, 202),
    Answer({"items": [], "next_cursor": None, "position": "main@r6"}),
    Answer(
        {
            **{"request_id": "main.5", "type": "T", "subject": "s", "state": "accepted"},
            **{"refusal": None, "user": "ana", "requested_at": "2026-01-31T12:00:00.000Z"},
        }
    ),
)


def quotas(*words: str, of: dict[str, Any] = PROJECT, code: int = 0) -> Answers:
    """Run `yard quotas` on a server with one object."""
    read = Answer(of, headers=TAG)
    with answering(read, read, *WRITTEN) as server:
        assert run(["quotas", *words, "--server", server.url]) == code
    return server


def test_only_the_given_options_change() -> None:
    words = ["--gpu", "2.5", "--over-quota-weight", "high", "--limit-memory", "1Ti"]
    ((path, sent),) = quotas("set", "nlp", "--pool", "h100", *words).sent
    assert path == "/v1/projects/nlp"
    assert (sent["department"], sent["rank"]) == ("labs", 7)
    assert sent["quotas"]["h100"] == {
        **QUOTA,
        **{"deserved_milli": 2500, "over_quota_weight": 3, "limit_memory_mib": 1_048_576},
        **{"deserved_unlimited": False, "deserved_cpu_milli": None, "limit_cpu_milli": None},
        "over_quota": True,
    }


def test_other_spellings_of_the_options_are_accepted() -> None:
    words = ["--deserved", "unlimited", "--weight", "none", "--over-quota", "off", "--cpus", "3"]
    ((path, sent),) = quotas(
        "set", "labs", "--department", "--pool", "a100", *words, of=DEPARTMENT
    ).sent
    assert (path, sent["parent"]) == ("/v1/departments/labs", "company")
    quota = sent["quotas"]["a100"]
    assert (quota["deserved_unlimited"], quota["deserved_milli"]) == (True, None)
    assert (quota["over_quota_weight"], quota["over_quota"]) == (0, False)
    assert (quota["deserved_cpu_milli"], quota["limit_milli"]) == (3000, None)
    assert sent["quotas"]["h100"]["deserved_milli"] == 4000


def test_a_change_names_the_version_that_it_is_based_on() -> None:
    server = quotas("set", "nlp", "--pool", "h100", "--limit", "none")
    assert server.asked[2][1]["If-Match"] == '"3"'
    read = Answer(PROJECT, headers=TAG)
    with answering(read, *WRITTEN) as server:
        words = ["set", "nlp", "--pool", "h100", "--limit", "1", "--if-match", '"2"']
        assert run(["quotas", *words, "--server", server.url]) == 0
    assert server.asked[1][1]["If-Match"] == '"2"'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is nothing to change"),
        (["--gpu", "many"], "--gpu: expected a number of GPUs or unlimited, not many"),
        (["--memory", "8"], "--memory: 8 has no unit; write 8Mi or 8Gi"),
        (["--over-quota", "2"], "--over-quota: expected on or off, not 2"),
        (["--limit-cpus", "0.0001"], "--limit-cpus: CPUs: 0.0001 is not a multiple of 0.001"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = quotas("set", "nlp", "--pool", "h100", *words, code=Exit.USAGE)
    assert said in capsys.readouterr().err
    assert server.asked == []


def test_a_quota_is_deleted_in_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, sent),) = quotas("delete", "nlp", "--pool", "h100").sent
    assert (sent["quotas"], sent["rank"]) == ({}, 7)
    assert quotas("delete", "nlp", "--pool", "a100", code=Exit.NOT_FOUND).sent == []
    assert "project nlp has no quota in pool a100" in capsys.readouterr().err


def test_the_quotas_of_departments_and_projects_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pages = [
        Answer({"items": [each], "next_cursor": None, "position": "main@r1"})
        for each in (DEPARTMENT, PROJECT)
    ]
    with answering(*pages, *pages) as server:
        assert run(["quotas", "--server", server.url, "-o", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "kind,name,pool,deserved,used,pending,limit,weight,over_quota,cpus,memory,limit_cpus,limit_memory",
        "department,labs,h100,4,6,0,9,1,on,,2 GiB,,",
        "project,nlp,h100,4,6,0,9,1,on,,2 GiB,,",
    ]
    with answering(*pages) as server:
        assert run(["quotas", "--pool", "a100", "--server", server.url, "--no-headers"]) == 0
    assert capsys.readouterr().out == ""
