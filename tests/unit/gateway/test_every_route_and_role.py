"""Each operation of the API, called by each role in each scope: the answers follow from one table.

The table says what an operation needs, in the words of docs/how-to/users.md, and not how the
gateway checks it. A new operation fails here until it has its line.
"""

import dataclasses
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from tests.support.gateway import GatewayCell, gateway_cell
from tests.support.memory_cell import CELL
from tests.support.packages import package_of_tar
from tests.unit.gateway.test_streams import prints
from tests.unit.gateway.test_users import imported
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.app import document
from yardmaster_gateway.identity.authentication import FileUser, digest_of
from yardmaster_packages.artifact_files import find_artifacts
from yardmaster_packages.artifact_store import ArtifactPlace
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_schemas.events.users import NewToken, RoleInScope, RoleName, Scope

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: The text that is in every field of the job that a user may write.
TEXT = "zebra"
#: What a caller outside the project must not get: names, and the text of the job.
CONFIDENTIAL = (TEXT, '"nlp"', '"research"', '"owner"')
#: Operations whose answers show nothing more of the project here than the ids in their paths.
NOT_SHOWN = ("read_shares", "list_attempts", "explain_task", "list_artifacts")


class Need(Enum):
    """The condition under which an operation is allowed."""

    NOTHING = auto()
    TOKEN = auto()
    #: To read the project; an answer about other projects is 404.
    READ = auto()
    #: A token; the answer contains only what the caller may see.
    SEES_OWN = auto()
    LOG = auto()
    SUBMIT = auto()
    #: To change the job of another user.
    CHANGE = auto()
    ERASE = auto()
    OPERATE = auto()
    #: To be the user that the path names, or an operator of the cell.
    SELF = auto()
    #: To have written the request, or to read the log.
    AUTHOR = auto()


NEEDS = {
    Need.NOTHING: ("client_wheel", "live", "ready", "metrics"),
    Need.TOKEN: (
        *("whoami", "read_version", "read_rules", "read_cell", "list_pools", "read_pool"),
        "read_enrollment",
    ),
    Need.SEES_OWN: (
        *("list_jobs", "list_tasks", "list_task_groups", "list_projects", "list_departments"),
        *("list_nodes", "read_node", "read_queue", "read_shares", "read_usage", "watch"),
        "list_users",
    ),
    Need.READ: (
        *("read_job", "read_task", "list_attempts", "list_task_events", "explain_task"),
        *("read_output", "read_project", "read_department", "list_artifacts", "read_artifact"),
    ),
    Need.LOG: ("list_events", "read_cycle"),
    Need.AUTHOR: ("read_request",),
    Need.SUBMIT: ("submit_job", "read_package", "upload_package"),
    Need.CHANGE: (
        *("change_job", "cancel_job", "pause_job", "resume_job"),
        *("cancel_task", "pause_task", "resume_task"),
    ),
    Need.ERASE: ("erase_job",),
    Need.SELF: ("issue_token", "revoke_token"),
    Need.OPERATE: (
        *("change_node", "change_node_slots", "enrol_node", "revoke_node"),
        *("configure_pool", "delete_pool", "configure_project", "delete_project"),
        *("set_quota", "delete_quota", "configure_department", "delete_department"),
        *("change_cell", "switch_rules", "add_user", "remove_user", "grant_roles"),
        "revoke_roles",
    ),
}
NEED = {operation: need for need, operations in NEEDS.items() for operation in operations}

ROLE = {"role": "user", "scope": "project", "name": "nlp"}
#: The bodies of the operations that need one.
BODIES: dict[str, dict[str, Any]] = {
    "submit_job": {"project": "nlp", "run": {"command": ["true"]}},
    "change_job": {"priority": 7},
    "change_node": {"state": "cordoned"},
    "change_node_slots": {"disabled": [0]},
    "enrol_node": {"pool": "default", "gpus": 4},
    "configure_pool": {"policy": {"name": "priority"}},
    "configure_project": {"department": "research"},
    "configure_department": {},
    "set_quota": {"limit_milli": 5000},
    "change_cell": {},
    "switch_rules": {"rules": 2},
    "add_user": {"name": "ana", "roles": [ROLE]},
    "grant_roles": {"roles": [ROLE]},
    "revoke_roles": {"roles": [ROLE]},
    "issue_token": {},
}


PACKAGE = package_of_tar(b"a package")
#: The answers to allowed operations that are not 200 to a read and 202 to a write.
DONE = {"client_wheel": 404, "upload_package": 200}


@dataclasses.dataclass(frozen=True)
class Person:
    """A user with at most one role; its token is its name."""

    name: str
    role: RoleName | None = None
    scope: Scope = Scope.CELL
    at: str = CELL

    @property
    def inside(self) -> bool:
        """Whether the role holds in project `nlp` of department `research`."""
        return self.role is not None and self.at in (CELL, "research", "nlp")

    def may(self, *roles: RoleName) -> bool:
        return self.inside and self.role in roles

    @property
    def file_user(self) -> FileUser:
        roles = (
            ()
            if self.role is None
            else (RoleInScope(role=self.role, scope=self.scope, name=self.at),)
        )
        return FileUser(self.name, roles, (NewToken(id="first", digest=digest_of(self.name)),))


PLACES = (
    (Scope.CELL, CELL),
    (Scope.DEPARTMENT, "research"),
    (Scope.PROJECT, "nlp"),
    (Scope.DEPARTMENT, "product"),
    (Scope.PROJECT, "ads"),
)
OWNER = Person("owner", RoleName.USER, Scope.PROJECT, "nlp")
OPERATOR = Person("operator-of-main", RoleName.OPERATOR)
PEOPLE = (
    *(
        Person(f"{role.value.replace('_', '-')}-of-{at}", role, scope, at)
        for role in RoleName
        for scope, at in PLACES
    ),
    OWNER,
    Person("no-role"),
)


def expected(need: Need, who: Person | None, done: int) -> int:
    """The status of the answer, by the rules of docs/how-to/users.md; None has no valid token."""
    if need is Need.NOTHING:
        return done
    if who is None:
        return 401
    hidden = 403 if who.inside else 404
    match need:
        case Need.TOKEN | Need.SEES_OWN:
            return done
        case Need.READ:
            return done if who.inside else 404
        case Need.LOG:
            return done if who.role is not None and who.scope is Scope.CELL else 403
        case Need.AUTHOR:
            wrote = who == OWNER or (who.role is not None and who.scope is Scope.CELL)
            return done if wrote else 404
        case Need.SUBMIT:
            granted = who.may(RoleName.USER, RoleName.PROJECT_ADMIN, RoleName.OPERATOR)
            return done if granted else 403
        case Need.CHANGE:
            granted = who == OWNER or who.may(RoleName.PROJECT_ADMIN, RoleName.OPERATOR)
            return done if granted else hidden
        case Need.ERASE:
            return done if who.may(RoleName.PROJECT_ADMIN, RoleName.OPERATOR) else hidden
        case Need.SELF:
            return done if who in (OWNER, OPERATOR) else 403
        case Need.OPERATE:
            return done if who == OPERATOR else 403


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the API."""

    id: str
    method: str
    path: str


OPERATIONS = [
    Operation(found["operationId"], method.upper(), path)
    for path, methods in document()["paths"].items()
    for method, found in methods.items()
]


class TenantCell:
    """A cell with a job of project `nlp`, and an ended job of it with a checkpoint and output."""

    def __init__(self, cell: GatewayCell) -> None:
        self.cell = cell

    async def create(self) -> "TenantCell":
        cell, by = self.cell, OPERATOR.name
        new = {"If-None-Match": "*"}
        await cell.call(
            "PUT", "/v1/departments/product", token=by, status=202, headers=new, json={}
        )
        for path, body in (
            ("projects/ads", {"department": "product"}),
            ("projects/empty", {"department": "product"}),
            ("departments/empty", {}),
        ):
            await cell.call("PUT", f"/v1/{path}", token=by, status=202, headers=new, json=body)
        quota: dict[str, Any] = {"json": {"limit_milli": 64_000}, "headers": {"If-Match": "*"}}
        await cell.call("PUT", "/v1/projects/nlp/quotas/default", token=by, status=202, **quota)
        enrollment: dict[str, Any] = {"json": {"pool": "default", "gpus": 4}, "headers": new}
        await cell.call("PUT", "/v1/nodes/n1/enrollment", token=by, status=202, **enrollment)
        spec: dict[str, Any] = {
            "name": TEXT,
            "labels": {"animal": TEXT},
            "run": {"command": [TEXT], "env": {"ANIMAL": TEXT}},
        }
        self.live = await cell.submit(token=OWNER.name, **spec)
        await cell.starts(f"{self.live}.0")
        await prints(cell, f"{self.live}.0", TEXT, 0)
        self.ended = await cell.submit(token=OWNER.name, **spec)
        await cell.starts(f"{self.ended}.0")
        await cell.finishes(f"{self.ended}.0")
        path = f"/v1/jobs/{self.live}/pause"
        noted = await cell.call("POST", path, token=OWNER.name, status=202, json={"reason": TEXT})
        self.request = noted["request_ids"][0]
        waiting = await cell.submit(token=OWNER.name, resources={"gpus": 4}, **spec)
        self.jobs = (self.live, self.ended, waiting)
        upload = f"/v1/packages/nlp/{PACKAGE.digest}"
        await cell.call("PUT", upload, token=OWNER.name, status=201, content=PACKAGE.content)
        await self._keep_model()
        # A pool that is created earlier would be among the pools of the jobs.
        pool = {"policy": {"name": "priority"}}
        await cell.call("PUT", "/v1/pools/empty", token=by, status=202, headers=new, json=pool)
        return self

    async def _keep_model(self) -> None:
        """Keep an artifact of the live task."""
        store = self.cell.ports.artifacts
        assert store is not None
        place = ArtifactPlace(project="nlp", task_id=f"{self.live}.0", attempt=1, replica=0)
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "model").write_text(TEXT)
            found = find_artifacts(Path(name), ["*"], limits=ArtifactLimits(), owner=None)
            await store.keep(place, Path(name), found)

    def path(self, operation: Operation) -> str:
        """The path of an operation on what belongs to project `nlp`."""
        job = self.ended if operation.id == "erase_job" else self.live
        names = {
            "job_id": job,
            "task_id": f"{job}.0",
            "request_id": self.request,
            "cell": CELL,
            "number": "1",
            "pool": "default",
            "token_id": "first",
            "file": "yardmaster.whl",
            "project": "nlp",
            "digest": PACKAGE.digest,
            "path": "model",
            "name": self.name(operation),
        }
        path = operation.path.format(**names)
        return f"{path}?pool=default" if operation.id == "read_shares" else path

    def name(self, operation: Operation) -> str:
        if operation.id in ("delete_pool", "delete_project", "delete_department"):
            return "empty"
        parts = operation.path.split("/")
        kind = parts[2] if len(parts) > 2 else ""
        return {
            "projects": "nlp",
            "departments": "research",
            "pools": "default",
            "users": OWNER.name,
        }.get(kind, "n1")

    async def ends(self) -> list[int]:
        """The ends of the topics that a gateway writes."""
        return [await self.cell.log.end(Partition(topic)) for topic in ("requests", "details")]

    def confidential_in(self, operation: Operation, text: str) -> list[str]:
        """The parts of a text that only readers of project `nlp` may see."""
        # An answer may repeat the ids in the path.
        jobs = () if "{job_id}" in operation.path or "{task_id}" in operation.path else self.jobs
        return [one for one in (*CONFIDENTIAL, *jobs) if one in text]

    async def answer(self, operation: Operation, token: str | None) -> httpx.Response:
        """The answer of an operation, which no state machine has read yet."""
        headers = {} if operation.method in ("GET", "POST") else {"If-Match": "*"}
        body = BODIES.get(operation.id)
        if body is None and operation.method in ("POST", "PUT", "PATCH"):
            body = {} if operation.id != "erase_job" else None
        async with self.cell.client(token) as client:
            content = b"" if body is None else json.dumps(body).encode()
            if operation.id == "upload_package":
                content = PACKAGE.content
            return await client.request(
                operation.method,
                self.path(operation),
                headers={"Content-Type": "application/json", **headers},
                content=content,
            )


@pytest.fixture
async def tenant() -> AsyncIterator[TenantCell]:
    users = [person.file_user for person in PEOPLE]
    limits = {"rate_burst": 10_000, "stream_s": 0.01, "bookmark_s": 0.01}
    urls = {name: f"memory://{uuid.uuid4().hex}" for name in ("packages", "artifacts")}
    async with gateway_cell(file_users=users, **urls, **limits) as cell:
        await imported(cell)
        made = await TenantCell(cell).create()
        yield made


def test_every_operation_says_what_it_needs() -> None:
    assert {operation.id for operation in OPERATIONS} == NEED.keys()
    assert sum(map(len, NEEDS.values())) == len(NEED), "an operation has two lines"


@pytest.mark.parametrize("need", Need, ids=lambda one: one.name.lower())
async def test_an_operation_answers_each_role_by_what_it_needs(
    tenant: TenantCell, need: Need
) -> None:
    wrong: list[str] = []
    for operation in OPERATIONS:
        if NEED[operation.id] is need:
            wrong += [
                f"{operation.id}: {found}" for found in await wrong_answers(tenant, operation)
            ]
    assert wrong == []
    await tenant.cell.run_until_idle()


async def wrong_answers(tenant: TenantCell, operation: Operation) -> list[str]:
    """The answers to all roles that differ from the rules."""
    need = NEED[operation.id]
    done = DONE.get(operation.id, 200 if operation.method == "GET" else 202)
    wrong: list[str] = []
    for who in (None, *PEOPLE):
        name = "unknown" if who is None else who.name
        before = await tenant.ends()
        answer = await tenant.answer(operation, name)
        if answer.status_code != expected(need, who, done):
            wrong.append(f"{name}: {answer.status_code}, not {expected(need, who, done)}")
        if answer.status_code >= 400 and await tenant.ends() != before:
            wrong.append(f"{name}: a refused request was recorded")
        found = tenant.confidential_in(operation, answer.text)
        if found and (who is None or not who.inside):
            wrong.append(f"{name}: the answer contains {found}")
        if who == OWNER and need in (Need.READ, Need.SEES_OWN) and not found:
            assert operation.id in NOT_SHOWN, "otherwise nothing could leak"
        # Quota does not decide, so that every caller finds the same state.
        await tenant.cell.follower.catch_up()
    return wrong


async def test_while_the_views_are_behind_no_answer_says_whether_a_job_of_another_project_exists(
    tenant: TenantCell,
) -> None:
    recent = await tenant.cell.client(OWNER.name).post("/v1/jobs", json=BODIES["submit_job"])
    jobs = (recent.json()["job_id"], tenant.live, "a" * 12)
    for who in PEOPLE:
        answers = []
        for job in jobs:
            async with tenant.cell.client(who.name) as client:
                answer = await client.post(f"/v1/jobs/{job}/cancel", json={})
            answers.append((answer.status_code, answer.json().get("code")))
        if not who.inside:
            assert answers == [(503, "view_behind")] * 3, who
        elif who == OWNER:
            assert [status for status, _ in answers] == [202, 202, 503]


async def test_a_list_of_users_shows_an_operator_all_and_others_themselves(
    tenant: TenantCell,
) -> None:
    for who in PEOPLE:
        page = await tenant.cell.call("GET", "/v1/users", token=who.name, run=False)
        names = [one["name"] for one in page["items"]]
        assert names == (sorted(one.name for one in PEOPLE) if who == OPERATOR else [who.name])


def routes_of(routes: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The method and the path of each route, also of those that no document lists."""
    for route in routes:
        if isinstance(route, Route):
            path = prefix + route.path.replace(":path}", "}")
            yield from ((method, path) for method in route.methods or METHODS)
        else:
            inner = route.original_router
            yield from routes_of(inner.routes, prefix + route.include_context.prefix)


#: What anyone may read: it is the same for all and contains no data of users.
PUBLIC = {"/", "/docs", "/openapi.json", "/livez", "/readyz", "/metrics", "/client/{file}"}


async def test_no_route_answers_without_a_caller_except_the_public_ones(cell: GatewayCell) -> None:
    routes = sorted(routes_of(cell.app.routes))
    listed = {(one.method, one.path) for one in OPERATIONS}
    assert listed - set(routes) == set(), "this test misses routes"
    assert {path for _, path in routes} >= PUBLIC
    for method, path in routes:
        if path in PUBLIC:
            continue
        assert (method, path) in listed, "a route that the API does not document"
        for name in (method, "HEAD") if method == "GET" else (method,):
            async with cell.client(None) as client:
                answer = await client.request(name, path.replace("{", "").replace("}", ""))
            assert answer.status_code == 401, (name, path)
