"""The allow-lists of images, mounts, users and git hosts through the API."""

from typing import Any

import pytest

from tests.support.gateway import GatewayCell

ANY = {"If-Match": "*"}
POOL: dict[str, Any] = {"policy": {"name": "priority"}}
PROJECT: dict[str, Any] = {"department": "research"}
LISTS = {
    "images": ["python", "registry.example.org/team/"],
    "mounts": ["datasets", "scratch:rw"],
    "users": ["1500:100"],
    "git_hosts": ["git.example.org", "127.0.0.1:8443"],
}
MOUNT = {"source": "scratch", "target": "/scratch", "read_only": False}


def running(image: str, *mounts: dict[str, Any]) -> dict[str, Any]:
    return {"command": ["true"], "image": image, "mounts": list(mounts)}


async def refusal(cell: GatewayCell, run: dict[str, Any]) -> Any:
    found = await cell.call("GET", f"/v1/jobs/{await cell.submit(run=run)}")
    return found["refusal"]


@pytest.mark.parametrize(("path", "config"), [("projects/nlp", PROJECT), ("pools/default", POOL)])
async def test_the_lists_are_read_as_they_were_written(
    cell: GatewayCell, path: str, config: dict[str, Any]
) -> None:
    await cell.call("PUT", f"/v1/{path}", status=202, json=config | LISTS, headers=ANY)
    shown = (await cell.call("GET", f"/v1/{path}"))["config"]
    assert {name: shown[name] for name in LISTS} == LISTS


async def test_a_refused_job_says_what_is_missing_in_which_list(cell: GatewayCell) -> None:
    job = running("evil/miner:1", MOUNT)
    found = {"code": "mount_not_allowed", "numbers": {}, "about": "nlp"}
    lists = {"not_listed": "scratch", "list_owner": "project"}
    assert await refusal(cell, job) == found | lists
    await cell.call("PUT", "/v1/projects/nlp", status=202, json=PROJECT | LISTS, headers=ANY)
    lists = {"not_listed": "docker.io/evil/miner", "list_owner": "project"}
    assert await refusal(cell, job) == found | lists | {"code": "image_not_allowed"}
    assert await refusal(cell, running("python:3.12", MOUNT)) is None
    config = POOL | {"mounts": ["scratch"]}
    await cell.call("PUT", "/v1/pools/default", status=202, json=config, headers=ANY)
    found = await refusal(cell, running("python:3.12", MOUNT) | {"script": None})
    assert found is None  # another pool allows it


async def test_a_job_runs_as_a_user_of_the_list_and_shows_it(cell: GatewayCell) -> None:
    job = running("python:3.12") | {"run_as": {"uid": 1500, "gid": 100}}
    found = await refusal(cell, job)
    assert (found["code"], found["not_listed"]) == ("user_not_allowed", "1500:100")
    await cell.call("PUT", "/v1/projects/nlp", status=202, json=PROJECT | LISTS, headers=ANY)
    shown = await cell.call("GET", f"/v1/jobs/{await cell.submit(run=job | {'script': None})}")
    assert shown["refusal"] is None
    assert shown["spec"]["run_as"] == {"uid": 1500, "gid": 100}


async def test_a_commit_of_a_host_that_is_not_listed_is_refused_at_submit(
    cell: GatewayCell,
) -> None:
    await cell.call("PUT", "/v1/projects/nlp", status=202, json=PROJECT | LISTS, headers=ANY)
    for host, code in (("127.0.0.1:8443", None), ("127.0.0.1", "git_host_not_allowed")):
        git = {"url": f"https://{host}/team/repo", "commit": "0f" * 20}
        found = await refusal(cell, {"command": ["true"], "git": git})
        assert found is None if code is None else found["code"] == code
        assert found is None or (found["not_listed"], found["about"]) == (host, "nlp")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("users", "0:0"),
        ("users", "ada"),
        ("images", "a/*"),
        ("images", "python:3.12"),
        ("mounts", "a:ro"),
        ("mounts", "/srv"),
        ("git_hosts", "https://h"),
    ],
)
@pytest.mark.parametrize(("path", "config"), [("projects/nlp", PROJECT), ("pools/default", POOL)])
async def test_an_invalid_entry_is_refused_with_its_place(
    cell: GatewayCell, path: str, config: dict[str, Any], field: str, value: str
) -> None:
    body = config | {field: [value]}
    problem = await cell.call("PUT", f"/v1/{path}", status=422, json=body, headers=ANY)
    assert [error["pointer"] for error in problem["errors"]] == [f"/{field}/0"]
