"""Users of the log: import, tokens, roles, several gateways, streams, and what the log holds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.gateway import CALLERS, GatewayCell, gateway_cell, other_gateway
from tests.support.memory_cell import CELL
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.background.token_import import import_users
from yardmaster_gateway.context import Gateway
from yardmaster_gateway.identity.authentication import FileUser, digest_of
from yardmaster_runtime.clock import ManualClock
from yardmaster_schemas.events.users import (
    NewToken,
    RoleGrantedV1,
    RoleInScope,
    RoleName,
    Scope,
    TokenIssuedV1,
)

DAY_S = 86_400
ROLE = {"role": "user", "scope": "project", "name": "nlp"}
OPERATES = {"role": "operator", "scope": "cell", "name": CELL}


def file_user(name: str, token: str, role: RoleName = RoleName.OPERATOR) -> FileUser:
    roles = (RoleInScope(role=role, scope=Scope.CELL, name=CELL),)
    return FileUser(name, roles, (NewToken(id=name, digest=digest_of(token)),))


OPERATOR = (file_user("olga", "operator"),)


async def imported(cell: GatewayCell, app: FastAPI | None = None) -> None:
    """Let a gateway record its file's users while the machines run."""
    gateway: Gateway = (app or cell.app).state.gateway
    work = asyncio.create_task(import_users(gateway))
    while not work.done():
        await cell.run_until_idle()
        await asyncio.sleep(0)
    await work


@asynccontextmanager
async def cell_of(*users: FileUser, **settings: Any) -> AsyncIterator[GatewayCell]:
    async with gateway_cell(file_users=users or OPERATOR, **settings) as cell:
        await imported(cell)
        yield cell


@pytest.fixture
async def users() -> AsyncIterator[GatewayCell]:
    async with cell_of() as cell:
        yield cell


async def add(cell: GatewayCell, name: str = "ana", **given: Any) -> str:
    """Add a user; return its token."""
    body = {"name": name, "roles": [ROLE]} | given
    answer = await cell.call("POST", "/v1/users", status=202, json=body)
    state = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}")
    assert state["state"] == "accepted", state
    return str(answer["token"])


async def refusal(cell: GatewayCell, answer: dict[str, Any], token: str = "operator") -> str:
    state = await cell.call("GET", f"/v1/requests/{answer['request_ids'][0]}", token=token)
    return str(state["refusal"]["code"])


async def test_a_new_user_may_do_what_its_roles_allow_with_a_token_that_only_it_knows(
    users: GatewayCell,
) -> None:
    token = await add(users)
    assert token.startswith("yard_")
    assert len(token) == 5 + 64
    answer = await users.call("GET", "/v1/whoami", token=token)
    assert (answer["user"], answer["issuer"], answer["roles"]) == ("ana", "log", [ROLE])
    await users.submit(token=token)
    await users.call("DELETE", "/v1/pools/h100", token=token, status=403, run=False)
    records = [
        stored.record
        for topic in ("requests", "admissions", "decisions", "details")
        for stored in await users.log.read(Partition(topic), 0, max_records=10_000)
    ]
    assert not [one for one in records if token.encode() in (one.value or b"")]
    granted = [e for e in await users.events("admissions") if isinstance(e, RoleGrantedV1)]
    assert [(e.principal, e.by) for e in granted] == [("olga", "token_file"), ("ana", "olga")]
    assert granted[1].tokens[0].digest == digest_of(token)


async def test_lists_show_operators_all_users_and_others_themselves(users: GatewayCell) -> None:
    token = await add(users)
    await add(users, "ben", lifetime_s=None)
    page = await users.call("GET", "/v1/users?limit=2")
    assert [one["name"] for one in page["items"]] == ["ana", "ben"]
    more = await users.call("GET", f"/v1/users?cursor={page['next_cursor']}")
    assert [one["name"] for one in more["items"]] == ["olga"]
    assert more["next_cursor"] is None
    own = await users.call("GET", "/v1/users", token=token)
    assert [one["name"] for one in own["items"]] == ["ana"]
    assert own["items"][0]["tokens"][0]["expires_at"] is not None
    assert page["items"][1]["tokens"][0]["expires_at"] is None
    assert token not in json.dumps(page)
    await users.call("GET", "/v1/users?cursor=%25", status=400)
    await users.call("GET", "/v1/users?cursor=_w", status=400)


async def test_a_removed_user_loses_access_at_once_at_every_gateway() -> None:
    async with cell_of() as cell:
        other = other_gateway(cell)
        await imported(cell, other)
        token = await add(cell)

        async def status() -> int:
            await other.state.gateway.access.catch_up()
            transport = httpx.ASGITransport(other)
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
                return (await client.get("/v1/whoami", headers=headers)).status_code

        assert await status() == 200
        await cell.call("DELETE", "/v1/users/ana", status=202)
        assert await status() == 401
        await cell.call("GET", "/v1/whoami", token=token, status=401)
        await cell.call("DELETE", "/v1/users/ana", status=404)


async def test_a_token_of_the_file_is_not_refused_before_its_user_is_recorded() -> None:
    async with gateway_cell(file_users=OPERATOR) as cell:
        await cell.app.state.gateway.access.catch_up()
        answer = await cell.call("GET", "/v1/whoami", status=503)
        assert answer["code"] == "not_ready"
        await imported(cell)
        await cell.call("GET", "/v1/whoami")
        await cell.call("GET", "/v1/whoami", token="unknown", status=401)


async def test_a_gateway_follows_the_users_without_a_request() -> None:
    """Within one wait for the log; a gateway looks at its end at least every second anyway."""
    async with cell_of() as cell:
        gateway: Gateway = other_gateway(cell).state.gateway
        seen = asyncio.Event()
        gateway.access.on_change = lambda user: seen.set() if user == "ana" else None
        following = asyncio.create_task(gateway.access.follow())
        token = await add(cell)
        await seen.wait()
        assert gateway.access.valid(digest_of(token))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_an_expired_token_stops_working_and_says_so() -> None:
    clock = ManualClock()
    async with cell_of(clock=clock) as cell:
        token = await add(cell, lifetime_s=90 * DAY_S)
        clock.advance(90 * DAY_S - 1)
        await cell.run_until_idle()
        await cell.call("GET", "/v1/whoami", token=token)
        clock.advance(1)
        await cell.app.state.gateway.access.catch_up()
        problem = await cell.call("GET", "/v1/whoami", token=token, status=401, run=False)
        assert "of user ana has expired" in problem["detail"]


@pytest.mark.parametrize("change", ["remove", "expire", "revoke_token", "revoke_role"])
async def test_an_open_watch_ends_at_once_when_its_token_ends_or_its_user_changes(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with cell_of(clock=clock, stream_s=3600, bookmark_s=3600) as cell:
        gateway: Gateway = cell.app.state.gateway
        token = await add(cell, lifetime_s=60)
        opened = asyncio.Event()
        monkeypatch.setattr(gateway.streams, "set", lambda count: opened.set() if count else None)

        async def watch() -> None:
            async with cell.client(token) as client:
                await client.get("/v1/watch?kinds=task")

        watching = asyncio.create_task(watch())
        await opened.wait()
        assert not watching.done()
        if change == "expire":
            clock.advance(60)
            # What `follow` does at least every second.
            await gateway.access.catch_up()
            gateway.access.on_change(None)
        elif change == "remove":
            await cell.call("DELETE", "/v1/users/ana", status=202)
        elif change == "revoke_role":
            await cell.call("POST", "/v1/users/ana/revoke", status=202, json={"roles": [ROLE]})
        else:
            listed = await cell.call("GET", "/v1/users")
            (id_,) = [one["tokens"][0]["id"] for one in listed["items"] if one["name"] == "ana"]
            await cell.call("DELETE", f"/v1/users/ana/tokens/{id_}", status=202)
        await asyncio.gather(watching, return_exceptions=True)
        assert not gateway._open_streams


async def test_a_user_replaces_its_own_token_and_the_old_one_ends_after_the_overlap() -> None:
    clock = ManualClock()
    async with cell_of(clock=clock) as cell:
        old = await add(cell, lifetime_s=90 * DAY_S)
        answer = await cell.call(
            "POST", "/v1/users/ana/tokens", token=old, status=202, json={"overlap_s": 60}
        )
        new = answer["token"]
        for token in (old, new):
            await cell.call("GET", "/v1/whoami", token=token)
        issued = [e for e in await cell.events("admissions") if isinstance(e, TokenIssuedV1)]
        assert (issued[0].by, issued[0].token.digest) == ("ana", digest_of(new))
        assert issued[0].token.expires_at_ms == issued[0].token.issued_at_ms + 90 * DAY_S * 1000
        clock.advance(60)
        await cell.run_until_idle()
        await cell.call("GET", "/v1/whoami", token=old, status=401)
        await cell.call("GET", "/v1/whoami", token=new)
        longer = await cell.call(
            "POST", "/v1/users/ana/tokens", token=new, status=202, json={"lifetime_s": None}
        )
        assert await refusal(cell, longer, new) == "lifetime_too_long"


async def test_roles_are_granted_and_revoked(users: GatewayCell) -> None:
    token = await add(users)
    await users.call("POST", "/v1/users/ana/grant", status=202, json={"roles": [OPERATES]})
    await users.call("GET", "/v1/events", token=token)
    await users.call("POST", "/v1/users/ana/revoke", status=202, json={"roles": [OPERATES]})
    await users.call("GET", "/v1/events", token=token, status=403)
    unknown = {"roles": [{"role": "user", "scope": "project", "name": "ads"}]}
    answer = await users.call("POST", "/v1/users/ana/grant", status=202, json=unknown)
    assert await refusal(users, answer) == "project_unknown"


async def test_the_last_operator_cannot_remove_itself(users: GatewayCell) -> None:
    answer = await users.call("DELETE", "/v1/users/olga", status=202)
    assert await refusal(users, answer) == "last_operator"
    await users.call("GET", "/v1/whoami")


USER_WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/users", {"name": "eve", "roles": [ROLE]}),
    ("DELETE", "/v1/users/olga", None),
    ("POST", "/v1/users/olga/grant", {"roles": [ROLE]}),
    ("POST", "/v1/users/olga/revoke", {"roles": [ROLE]}),
    ("POST", "/v1/users/olga/tokens", {}),
    ("DELETE", "/v1/users/olga/tokens/olga", None),
]


@pytest.mark.parametrize(("method", "path", "body"), USER_WRITES)
async def test_only_operators_of_the_cell_change_other_users(
    users: GatewayCell, method: str, path: str, body: Any
) -> None:
    what = {} if body is None else {"json": body}
    for number, (role, scope, name) in enumerate(
        [
            ("viewer", "cell", CELL),
            ("user", "cell", CELL),
            ("project_admin", "cell", CELL),
            ("operator", "project", "nlp"),
            ("operator", "department", "research"),
        ]
    ):
        roles = [{"role": role, "scope": scope, "name": name}]
        token = await add(users, f"u{number}", roles=roles)
        problem = await users.call(method, path, token=token, status=403, run=False, **what)
        assert problem["code"] == "forbidden"


async def test_quota_refuses_what_a_gateway_with_other_identities_allowed() -> None:
    """The gateway takes olga for an operator; the log has never named her."""
    async with gateway_cell() as cell:
        body = {"name": "eve", "roles": [OPERATES]}
        answer = await cell.call("POST", "/v1/users", status=202, json=body)
        assert await refusal(cell, answer) == "not_allowed"
        assert CALLERS["operator"].user not in cell.app.state.gateway.access.users


@pytest.mark.parametrize("name", ["ana@example.org", "ana smith", "", "a" * 64, "../x"])
async def test_a_name_that_would_be_personal_data_or_unbounded_is_refused(
    users: GatewayCell, name: str
) -> None:
    body = {"name": name, "roles": [ROLE]}
    problem = await users.call("POST", "/v1/users", status=422, json=body, run=False)
    (error,) = problem["errors"]
    assert error["pointer"] == "/name"
    assert "the name of a user has 1 to 63 letters" in error["detail"]


async def test_a_user_that_exists_is_not_added_again(users: GatewayCell) -> None:
    await add(users)
    body = {"name": "ana", "roles": [ROLE]}
    problem = await users.call("POST", "/v1/users", status=412, json=body, run=False)
    assert problem["code"] == "already_exists"


async def test_two_gateways_import_the_same_file_at_once_and_each_user_is_recorded_once() -> None:
    files = (*OPERATOR, file_user("vera", "viewer", RoleName.VIEWER))
    async with gateway_cell(file_users=files) as cell:
        other = other_gateway(cell)
        async with asyncio.TaskGroup() as group:
            group.create_task(imported(cell))
            group.create_task(imported(cell, other))
        granted = [e for e in await cell.events("admissions") if isinstance(e, RoleGrantedV1)]
        assert sorted(e.principal for e in granted) == ["olga", "vera"]
        assert other.state.gateway.imported
        await cell.call("GET", "/v1/users", token="viewer")


async def test_after_the_import_the_log_decides_and_not_the_file() -> None:
    async with cell_of(*OPERATOR, file_user("vera", "viewer", RoleName.VIEWER)) as cell:
        await cell.call("DELETE", "/v1/users/vera", status=202)
        before = await cell.log.end(Partition("requests"))
        restarted = other_gateway(cell)
        await imported(cell, restarted)
        assert await cell.log.end(Partition("requests")) == before, "nothing to import again"
        assert restarted.state.gateway.access.users["vera"].removed
        await cell.call("GET", "/v1/whoami", token="viewer", status=401)


async def test_roles_in_other_cells_are_not_imported() -> None:
    role = RoleInScope(role=RoleName.OPERATOR, scope=Scope.CELL, name="elsewhere")
    stranger = FileUser("eve", (role,), (NewToken(id="eve", digest=digest_of("eve")),))
    async with cell_of(*OPERATOR, stranger) as cell:
        await cell.call("GET", "/v1/events", token="eve", status=403)


async def test_a_gateway_that_cannot_read_the_log_refuses_callers_after_a_while() -> None:
    clock = ManualClock()
    async with cell_of(clock=clock, access_age_s=60) as cell:
        assert isinstance(cell.log, MemoryLog)
        await cell.call("GET", "/v1/whoami", run=False)
        clock.advance(61)
        problem = await cell.call("GET", "/v1/whoami", status=503, run=False)
        assert problem["code"] == "not_ready"
        assert "revoked meanwhile" in problem["detail"]
        await cell.run_until_idle()
        await cell.call("GET", "/v1/whoami", run=False)


async def test_a_gateway_is_not_ready_before_it_knows_the_users() -> None:
    async with gateway_cell(file_users=OPERATOR) as cell:
        await cell.app.state.gateway.access.catch_up()
        problem = await cell.call("GET", "/readyz", token=None, status=503, run=False)
        assert "token file" in problem["detail"]
        fresh = other_gateway(cell)
        transport = httpx.ASGITransport(fresh)
        async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
            headers = {"Authorization": "Bearer operator"}
            answer = await client.get("/v1/whoami", headers=headers)
            assert answer.json()["code"] == "not_ready"
        await imported(cell)
        await cell.call("GET", "/readyz", token=None)
