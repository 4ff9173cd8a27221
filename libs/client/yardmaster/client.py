"""The HTTP client of the gateway: one method for each endpoint, typed answers, one exception.

A submission keeps its idempotency key over all tries, so it is recorded once. Making keys up and
waiting are the caller's (`new_key`, `sleep`): this module asks neither chance nor clock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from yardmaster.calls import MAX_TRIES, Outages, Params, backoff
from yardmaster.errors import ApiError, no_answer
from yardmaster.transport import Change, Transport, events
from yardmaster_schemas.api import (
    Accepted,
    Attempt,
    CancelBody,
    Cycle,
    Department,
    DepartmentConfig,
    Enrolment,
    EventRecord,
    Explain,
    HoldBody,
    Job,
    JobPatch,
    JobSpec,
    List,
    Node,
    NodeEnrolment,
    NodePatch,
    NodeSlots,
    Phase,
    Pool,
    PoolConfig,
    Project,
    ProjectConfig,
    Quota,
    Request,
    Submitted,
    Task,
    TaskGroups,
    Usage,
    Version,
    WhoAmI,
)

__all__ = ["ApiError", "Change", "Client", "Piece"]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one replica's output; `seq` counts the parts of an attempt's replica."""

    attempt: int
    replica: int
    seq: int
    text: str


class Client:
    """A caller's connection to one gateway.

    Args:
        server: its address, `http://127.0.0.1:7450`.
        token: the bearer token; None sends none.
        sleep: waits so many seconds between tries.
        new_key: makes up an idempotency key of at least 16 characters.
        ca: a file of certificates to trust instead of the machine's.
        transport: for tests, what carries requests.
    """

    def __init__(
        self,
        server: str,
        token: str | None = None,
        *,
        sleep: Callable[[float], None],
        new_key: Callable[[], str],
        ca: str | None = None,
        transport: httpx.BaseTransport | None = None,
        max_tries: int = MAX_TRIES,
    ) -> None:
        self._transport = Transport(
            server, token, sleep=sleep, ca=ca, transport=transport, max_tries=max_tries
        )
        self._new_key = new_key

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def outlast(self, outages: Outages | None) -> None:
        """Wait for the gateway, however long it is away: reads and followed output then resume.

        What is read afterwards covers all that was read before. It begins with the first answer:
        a gateway that was never there raises as before.
        """
        self._transport.endurance.outages = outages

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, *, idempotency_key: str | None = None) -> Submitted:
        """Record a job. The same key and spec again give the same answer.

        Raises: ApiError; with `outcome_unknown` the same key may be tried again.
        """
        body = spec.model_dump_json(exclude_unset=True).encode()
        key = idempotency_key or self._new_key()
        return self._write("POST", "/v1/jobs", Submitted, body, {"Idempotency-Key": key})

    def jobs(self, **filters: str | int | bool | Sequence[str] | None) -> List[Job]:
        """One page of jobs; the filters of `tasks` apply, but for node and phase."""
        return self._get("/v1/jobs", List[Job], filters)

    def all_jobs(self, **filters: str | int | bool | Sequence[str] | None) -> Iterator[Job]:
        """Every job of all pages."""
        return _each(self.jobs, filters)

    def job(self, job_id: str, *, min_position: str | None = None) -> Job:
        """One job."""
        return self._get(f"/v1/jobs/{_part(job_id)}", Job, {"min_position": min_position})

    def patch_job(
        self,
        job_id: str,
        *,
        if_match: str | None = None,
        **changes: int | float | None,
    ) -> Accepted:
        """Change `priority`, `weight`, `max_slots`; `if_match`: the ETag seen (None: read now)."""
        path = f"/v1/jobs/{_part(job_id)}"
        body = JobPatch.model_validate(changes).model_dump_json(exclude_unset=True).encode()
        return self._write(
            "PATCH", path, Accepted, body, {"If-Match": if_match or self._etag(path)}
        )

    def cancel(self, ref: str, *, reason: str | None = None, immediate: bool = False) -> Accepted:
        """Ask for a job's or task's end; `ref` is a whole id."""
        body = CancelBody(reason=reason, immediate=immediate).model_dump_json().encode()
        return self._write("POST", f"{_job_or_task(ref)}/cancel", Accepted, body)

    def pause(self, ref: str, *, reason: str | None = None) -> Accepted:
        """Hold a job or task until it is resumed."""
        body = HoldBody(reason=reason).model_dump_json().encode()
        return self._write("POST", f"{_job_or_task(ref)}/pause", Accepted, body)

    def resume(self, ref: str) -> Accepted:
        """Let a held job or task run again."""
        return self._write("POST", f"{_job_or_task(ref)}/resume", Accepted, b"{}")

    def erase(self, job_id: str) -> Accepted:
        """Erase what was said of a job that has ended, and what it ran, for good."""
        return self._write("POST", f"/v1/jobs/{_part(job_id)}/erase", Accepted, None)

    def request(self, request_id: str, *, wait_s: float = 0) -> Request:
        """What became of a request; waits up to `wait_s` seconds (30 at most) for its verdict."""
        return self._get(
            f"/v1/requests/{_part(request_id)}", Request, {"wait_s": _whole(wait_s)}, wait_s
        )

    # --- tasks ----------------------------------------------------------------------------------

    def tasks(self, **filters: str | int | bool | Sequence[str] | None) -> List[Task]:
        """One page of tasks.

        Filters: phase (one or several), project, pool, node, user, kind, name, job_id, ref (an id's
        beginning), since (RFC 3339), label (several `key=value`), sort (`-submitted_at` or
        `submitted_at`), limit (up to 1000), cursor, min_position.
        """
        return self._get("/v1/tasks", List[Task], filters)

    def task_groups(self, **filters: str | int | bool | Sequence[str] | None) -> TaskGroups:
        """One page of tasks, those of a job in the same phase together, and counts by phase.

        Filters: those of `tasks` without pool, node, ref; `limit` is of jobs.
        """
        return self._get("/v1/task-groups", TaskGroups, filters)

    def all_tasks(self, **filters: str | int | bool | Sequence[str] | None) -> Iterator[Task]:
        """Every task of all pages."""
        return _each(self.tasks, filters)

    def task(
        self,
        task_id: str,
        *,
        min_position: str | None = None,
        wait_for: str | None = None,
        timeout_s: float | None = None,
    ) -> Task:
        """One task; waits for `wait_for` (`admitted`, `ended` or a phase) up to `timeout_s`.

        At most 60 s; the task is given as it is then.
        """
        params: Params = {
            "min_position": min_position,
            "wait_for": wait_for,
            "timeout_s": None if timeout_s is None else _whole(timeout_s),
        }
        return self._get(f"/v1/tasks/{_part(task_id)}", Task, params, timeout_s or 30.0)

    def attempts(self, task_id: str, *, min_position: str | None = None) -> List[Attempt]:
        """A task's attempts, the newest first."""
        return self._get(
            f"/v1/tasks/{_part(task_id)}/attempts", List[Attempt], {"min_position": min_position}
        )

    def task_events(self, task_id: str, *, min_position: str | None = None) -> List[EventRecord]:
        """The log's records about a task and its job, in the order decided on."""
        return self._get(
            f"/v1/tasks/{_part(task_id)}/events", List[EventRecord], {"min_position": min_position}
        )

    def explain(self, task_id: str, *, min_position: str | None = None) -> Explain:
        """Why a task is where it is."""
        return self._get(
            f"/v1/tasks/{_part(task_id)}/explain", Explain, {"min_position": min_position}
        )

    def logs(
        self,
        task_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        replica: int | None = None,
        tail: int | None = None,
    ) -> Iterator[str]:
        """Parts of a task's output as they come; `follow` goes on until the task has ended."""
        if follow:
            found = self.output(task_id, follow=True, attempt=attempt, replica=replica, tail=tail)
            yield from (piece.text for piece in found)
            return
        params = {"attempt": attempt, "replica": replica, "tail": tail}
        with self._transport.stream(_logs(task_id), params, {}) as response:
            yield from response.iter_text()

    def output(
        self,
        task_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        replica: int | None = None,
        tail: int | None = None,
    ) -> Iterator[Piece]:
        """Pieces of a task's output, each once; `follow` goes on until the task has ended.

        A followed stream that the gateway closes before the end is resumed where it was.
        """
        params: Params = {
            "follow" if follow else "pieces": True,
            "attempt": attempt,
            "replica": replica,
            "tail": tail,
        }
        newest: dict[tuple[int, int], int] = {}
        after: str | None = None
        pauses = backoff()
        while True:
            headers = {} if after is None else {"Last-Event-ID": after}
            try:
                with self._transport.stream(_logs(task_id), params, headers) as response:
                    for change in events(response.iter_lines()):
                        if change.event == "end" and Phase(change.data["phase"]).final:
                            return
                        after = change.id or after
                        if change.event != "output":
                            continue
                        piece = _piece(change.data)
                        place = (piece.attempt, piece.replica)
                        if piece.seq <= newest.get(place, -1):
                            continue  # an agent may have written a piece again
                        newest[place] = piece.seq
                        pauses.reset()
                        yield piece
                if not follow:
                    return
            except ApiError as error:
                if not follow or not self._transport.endurance.outlasts(error):
                    raise
            self._transport.pause(pauses.next_s())

    # --- nodes, pools, projects, departments ----------------------------------------------------

    def nodes(self, **filters: str | int | bool | Sequence[str] | None) -> List[Node]:
        """One page of nodes; filters: pool, state, limit, cursor, min_position."""
        return self._get("/v1/nodes", List[Node], filters)

    def all_nodes(self, **filters: str | int | bool | Sequence[str] | None) -> Iterator[Node]:
        """Every node of all pages."""
        cursor: str | None = None
        while True:
            page = self.nodes(**{"limit": 1000, **filters, "cursor": cursor})
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def node(self, name: str, *, min_position: str | None = None) -> Node:
        """One node."""
        return self._get(f"/v1/nodes/{_part(name)}", Node, {"min_position": min_position})

    def patch_node(self, name: str, wish: NodePatch, *, if_match: str | None = None) -> Accepted:
        """Cordon, drain or take back a node."""
        path = f"/v1/nodes/{_part(name)}"
        body = wish.model_dump_json(exclude_none=True).encode()
        return self._write(
            "PATCH", path, Accepted, body, {"If-Match": if_match or self._etag(path)}
        )

    def put_slots(self, name: str, wish: NodeSlots, *, if_match: str | None = None) -> Accepted:
        """Put slots of a node out of use, and all its others back."""
        tag = if_match or self._etag(f"/v1/nodes/{_part(name)}")
        return self._put(f"/v1/nodes/{_part(name)}/slots", wish, tag, False)

    def enrolment(self, node: str, *, min_position: str | None = None) -> NodeEnrolment:
        """What a node may claim when it joins."""
        path = f"/v1/nodes/{_part(node)}/enrolment"
        return self._get(path, NodeEnrolment, {"min_position": min_position})

    def put_enrolment(
        self, node: str, enrolment: Enrolment, *, if_match: str | None = None, create: bool = False
    ) -> Accepted:
        """Let a node join; `create`: it must not be enrolled yet."""
        return self._put(f"/v1/nodes/{_part(node)}/enrolment", enrolment, if_match, create)

    def delete_enrolment(self, node: str, *, if_match: str | None = None) -> Accepted:
        """Trust a node no more."""
        return self._delete(f"/v1/nodes/{_part(node)}/enrolment", if_match)

    def pools(self, **filters: str | int | bool | Sequence[str] | None) -> List[Pool]:
        """One page of pools."""
        return self._get("/v1/pools", List[Pool], filters)

    def pool(self, name: str, *, min_position: str | None = None) -> Pool:
        """One pool."""
        return self._get(f"/v1/pools/{_part(name)}", Pool, {"min_position": min_position})

    def put_pool(
        self, name: str, config: PoolConfig, *, if_match: str | None = None, create: bool = False
    ) -> Accepted:
        """Configure a pool; `create`: it must not exist yet."""
        return self._put(f"/v1/pools/{_part(name)}", config, if_match, create)

    def delete_pool(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Remove a pool that nothing names."""
        return self._delete(f"/v1/pools/{_part(name)}", if_match)

    def usage(
        self,
        *,
        begin: str | None = None,
        end: str | None = None,
        by: str | None = None,
        bucket: str | None = None,
    ) -> Usage:
        """GPU time by project, user or pool."""
        asked = {"from": begin, "to": end, "by": by, "bucket": bucket}
        return self._get("/v1/usage", Usage, asked)

    def projects(self, **filters: str | int | bool | Sequence[str] | None) -> List[Project]:
        """One page of projects; filters: department, limit, cursor, min_position."""
        return self._get("/v1/projects", List[Project], filters)

    def project(self, name: str, *, min_position: str | None = None) -> Project:
        """One project."""
        return self._get(f"/v1/projects/{_part(name)}", Project, {"min_position": min_position})

    def put_project(
        self, name: str, config: ProjectConfig, *, if_match: str | None = None, create: bool = False
    ) -> Accepted:
        """Configure a project; `create`: it must not exist yet."""
        return self._put(f"/v1/projects/{_part(name)}", config, if_match, create)

    def put_quota(
        self, project: str, pool: str, quota: Quota, *, if_match: str | None = None
    ) -> Accepted:
        """Set what a project may have of one pool; `if_match` is the project's ETag."""
        path = f"/v1/projects/{_part(project)}"
        tag = if_match or self._etag(path)
        return self._put(f"{path}/quotas/{_part(pool)}", quota, tag, create=False)

    def delete_quota(self, project: str, pool: str, *, if_match: str | None = None) -> Accepted:
        """Forget a project's quota of one pool."""
        path = f"/v1/projects/{_part(project)}"
        tag = if_match or self._etag(path)
        return self._delete(f"{path}/quotas/{_part(pool)}", tag)

    def delete_project(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Remove a project without jobs."""
        return self._delete(f"/v1/projects/{_part(name)}", if_match)

    def departments(self, **filters: str | int | bool | Sequence[str] | None) -> List[Department]:
        """One page of departments."""
        return self._get("/v1/departments", List[Department], filters)

    def department(self, name: str, *, min_position: str | None = None) -> Department:
        """One department."""
        params = {"min_position": min_position}
        return self._get(f"/v1/departments/{_part(name)}", Department, params)

    def put_department(
        self,
        name: str,
        config: DepartmentConfig,
        *,
        if_match: str | None = None,
        create: bool = False,
    ) -> Accepted:
        """Configure a department; `create`: it must not exist yet."""
        return self._put(f"/v1/departments/{_part(name)}", config, if_match, create)

    def delete_department(self, name: str, *, if_match: str | None = None) -> Accepted:
        """Remove a department without projects."""
        return self._delete(f"/v1/departments/{_part(name)}", if_match)

    # --- log, cell, caller ----------------------------------------------------------------------

    def events(self, *, after: str | None = None, limit: int = 100) -> List[EventRecord]:
        """Records of the log after a position, in the order decided on."""
        return self._get("/v1/events", List[EventRecord], {"after": after, "limit": limit})

    def watch(
        self, kinds: Sequence[str] = ("task",), *, after: str | None = None
    ) -> Iterator[Change]:
        """A snapshot, then every change until the gateway closes; resume with the last `id`.

        A caller that outlasts outages is resumed without end; a second snapshot comes where the
        gateway no longer knows what happened meanwhile.
        """
        pauses = backoff()
        while True:
            headers = {} if after is None else {"Last-Event-ID": after}
            try:
                with self._transport.stream("/v1/watch", {"kinds": list(kinds)}, headers) as found:
                    for change in events(found.iter_lines()):
                        after = change.id or after
                        pauses.reset()
                        yield change
                if self._transport.endurance.outages is None:
                    return
            except ApiError as error:
                if not self._transport.endurance.outlasts(error):
                    raise
            self._transport.pause(pauses.next_s())

    def cycle(self, cell: str, number: int) -> Cycle:
        """One cycle of a cell's scheduler."""
        return self._get(f"/v1/cycles/{_part(cell)}/{number}", Cycle, {})

    def whoami(self) -> WhoAmI:
        """Who the caller is."""
        return self._get("/v1/whoami", WhoAmI, {})

    def version(self) -> Version:
        """What serves, and which log."""
        return self._get("/v1/version", Version, {})

    def ready(self) -> bool:
        """Whether the gateway can serve; False also when it cannot be reached."""
        return self._transport.ready()

    # --- how ------------------------------------------------------------------------------------

    def etag(self, path: str) -> str:
        """The ETag of the object at a path under the server's root, as last seen."""
        return self._etag(path)

    def _etag(self, path: str) -> str:
        return str(self._transport.send("GET", path, {}, None, {}, 0.0).headers.get("ETag", "*"))

    def _get(self, path: str, model: type[M], params: Params, wait_s: float = 0.0) -> M:
        return self._read(model, self._transport.send("GET", path, params, None, {}, wait_s))

    def _put(self, path: str, body: Any, if_match: str | None, create: bool) -> Accepted:
        tag = {} if create else {"If-Match": if_match or self._etag(path)}
        condition = {"If-None-Match": "*"} if create else tag
        content = TypeAdapter(type(body)).dump_json(body)
        return self._write("PUT", path, Accepted, content, condition)

    def _delete(self, path: str, if_match: str | None) -> Accepted:
        headers = {"If-Match": if_match or self._etag(path)}
        return self._write("DELETE", path, Accepted, None, headers)

    def _write(
        self,
        method: str,
        path: str,
        model: type[M],
        body: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> M:
        sent = dict(headers or {})
        if method == "POST":
            sent.setdefault("Idempotency-Key", self._new_key())
        if body is not None:
            sent["Content-Type"] = "application/json"
        return self._read(model, self._transport.send(method, path, {}, body, sent, 0.0))

    def _read(self, model: type[M], response: httpx.Response) -> M:
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            raise ApiError(
                no_answer("bad_answer", f"the answer is not understood: {found['msg']}")
            ) from error


def _each(read: Callable[..., List[M]], filters: Mapping[str, Any]) -> Iterator[M]:
    cursor: str | None = None
    while True:
        page = read(**{"limit": 1000, **filters, "cursor": cursor})
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def _logs(task_id: str) -> str:
    return f"/v1/tasks/{_part(task_id)}/logs"


def _piece(data: Mapping[str, Any]) -> Piece:
    return Piece(data["attempt"], data["replica"], data["seq"], data["text"])


def _part(text: str) -> str:
    return quote(text, safe="")


def _job_or_task(ref: str) -> str:
    return f"/v1/tasks/{_part(ref)}" if "." in ref else f"/v1/jobs/{_part(ref)}"


def _whole(seconds: float) -> int:
    return max(0, round(seconds))
