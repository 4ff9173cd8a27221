"""The context of endpoints: the gateway, the caller, and views that are new enough."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogUnavailable, OffsetGone
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_gateway import errors
from yardmaster_gateway.artifact_reader import ArtifactReader
from yardmaster_gateway.identity.access import Access, LogUsers
from yardmaster_gateway.identity.authentication import MAX_TOKEN, FileUser, Identity, digest_of
from yardmaster_gateway.identity.authorization import (
    Action,
    Caller,
    is_allowed,
    names_in_scope,
    sees_all_projects,
)
from yardmaster_gateway.identity.refused_tokens import RefusedTokens
from yardmaster_gateway.monotonic import MonotonicViews
from yardmaster_gateway.rate_limit import RateLimit
from yardmaster_gateway.request_writer import RequestWriter
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_gateway.submissions.node_sizes import NodeSizes
from yardmaster_gateway.submissions.recent_submissions import RecentSubmissions
from yardmaster_packages.artifact_store import ArtifactStore
from yardmaster_packages.store import PackageStore
from yardmaster_projections import queries
from yardmaster_projections.presenter import Presenter
from yardmaster_projections.queries import Visibility
from yardmaster_projections.store import ReadableViews
from yardmaster_runtime.chance import Chance
from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import LogCreatedV1, LogMode
from yardmaster_schemas.events.users import Scope
from yardmaster_schemas.position import POSITION_PATTERN, Position
from yardmaster_schemas.topics import REQUESTS


@dataclass(frozen=True, slots=True)
class GatewayPorts:
    """The ports that a gateway needs. The log's topics exist already."""

    log: EventLog
    views: ReadableViews
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    #: The store of metered usage, with a position of its own; None: usage is not metered.
    usage: ReadableViews | None = None
    #: Authenticates callers; None: the gateway authenticates them by the users in the log.
    identity: Identity | None = None
    #: The users of a token file, which are recorded unless the log has named them before.
    file_users: Sequence[FileUser] = ()
    #: Quota's snapshots, which are only read. None: a start folds the users from the whole log.
    snapshots: SnapshotStore | None = None
    #: The code packages of users; None: the gateway stores none.
    packages: PackageStore | None = None
    #: The artifacts of tasks; None: the gateway has no store of them.
    artifacts: ArtifactStore | None = None
    #: Returns why the log takes no records at the moment, if reading the log does not show it; else
    #: None.
    log_fault: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The content of the log's first record, and its time; None if the record has expired."""

    log_id: str
    mode: LogMode
    created_ms: int | None


class _SubmissionLock:
    """The lock of one job id, and the number of submissions that hold it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Gateway:
    """One gateway: its ports, its settings, and its caches. Losing the caches loses no data."""

    def __init__(self, ports: GatewayPorts, settings: GatewaySettings) -> None:
        place = (ports.log, settings.cell, settings.partition)
        #: Reads raise ViewsUnfinished while lost views are being rebuilt.
        self.views = MonotonicViews(ports.views, *place)
        self.usage = None if ports.usage is None else MonotonicViews(ports.usage, *place)
        self.ports = replace(ports, views=self.views, usage=self.usage)
        self.settings = settings
        self.access = Access(
            *(ports.log, ports.clock, ports.telemetry),
            cell=settings.cell,
            partition=settings.partition,
            max_age_s=settings.access_age_s,
            snapshots=ports.snapshots,
        )
        self.access.on_change = self._end_streams_of
        #: Authenticates callers.
        self.identity = (
            ports.identity
            if ports.identity is not None
            else LogUsers(self.access, lambda: self.imported)
        )
        #: Whether the users of the token file are recorded.
        self.imported = False
        self.cell = settings.cell
        self.writer = RequestWriter(
            ports.log,
            ports.clock,
            ports.telemetry,
            cell=settings.cell,
            partition=settings.partition,
            instance=settings.instance or "gw-1",
            chance=ports.chance,
        )
        #: Why the gateway can no longer serve; it is about to end.
        self.failed: str | None = None
        self.limit = RateLimit(
            ports.clock,
            burst=settings.rate_burst,
            per_s=settings.rate_per_s,
            callers=settings.rate_callers,
        )
        self.refused_tokens = RefusedTokens(ports.clock, ports.telemetry)
        self.requests = ports.telemetry.counter(
            "http_requests", "Answers given", "method", "status"
        )
        self.seconds = ports.telemetry.histogram("http_seconds", "Time to answer", "method")
        self.disconnected = ports.telemetry.counter(
            "clients_disconnected", "Requests whose body ended early, the client being gone"
        )
        self.streams = ports.telemetry.gauge("streams_open", "Watches and followed output")
        self.without_views = ports.telemetry.counter(
            "requests_without_views", "Requests refused, the views being unavailable"
        )
        self.recent = RecentSubmissions(
            *(ports.log, Partition(REQUESTS.name, settings.partition), ports.telemetry),
            max_requests=settings.recent_requests,
        )
        self.sizes = NodeSizes(self.views, ports.clock, ports.telemetry)
        #: The open streams by number: the task that sends it, its user, the digest of its token.
        self._open_streams: dict[int, tuple[asyncio.Task[Any], str, str]] = {}
        self._streams_started = 0
        #: Whether the views have contained the log's first record at least once.
        self.seen_views = False
        self._identity: LogIdentity | None = None
        #: The locks of submissions in progress, by job id.
        self._submission_locks: dict[str, _SubmissionLock] = {}

    @cached_property
    def uploads(self) -> asyncio.Semaphore:
        """One slot for each package that may be uploaded at once."""
        return asyncio.Semaphore(self.settings.max_uploads)

    @cached_property
    def artifacts(self) -> ArtifactReader | None:
        """Reads the artifacts of tasks; None: there is no store."""
        store = self.ports.artifacts
        return None if store is None else ArtifactReader(store, self.ports.telemetry)

    async def log_identity(self) -> LogIdentity:
        """The identity of the log, from its first record or from a snapshot of quota.

        Raises:
            LogUnavailable: the log has not been set up yet.
            LogBeginsLater: the log has lost its first record, and no snapshot is usable.
        """
        if self._identity is None:
            try:
                self._identity = await self._recorded_identity()
            except OffsetGone:
                log = await self.access.log_of_snapshot()
                self._identity = LogIdentity(log.log_id, LogMode(log.mode), None)
        return self._identity

    async def _recorded_identity(self) -> LogIdentity:
        first = Partition(REQUESTS.name, self.settings.partition)
        found = await self.ports.log.read(first, 0, max_records=1)
        try:
            envelope = decode(found[0].record) if found else None
        except SchemaError:
            envelope = None
        if envelope is None or not isinstance(envelope.data, LogCreatedV1):
            raise LogUnavailable(found="the log's first record is not LogCreated")
        return LogIdentity(envelope.data.log_id, envelope.data.mode, envelope.time_ms)

    async def end(self, topic: str) -> int:
        """The end offset of the cell's partition of a topic."""
        return await self.ports.log.end(Partition(topic, self.settings.partition))

    async def visibility(self, caller: Caller) -> Visibility:
        """The projects that a caller may see."""
        if sees_all_projects(caller.bindings):
            return queries.ALL_PROJECTS
        seen = set(names_in_scope(caller.bindings, Scope.PROJECT))
        for department in sorted(names_in_scope(caller.bindings, Scope.DEPARTMENT)):
            for row in await queries.projects_of(self.ports.views, department):
                seen.add(row.name)
        return Visibility(frozenset(seen))

    async def visibility_of(self, token: str) -> Visibility | None:
        """The projects that the caller of a token may see now; None if the token is not valid."""
        try:
            caller = await self.identity.identify(token)
        except (errors.Unauthenticated, errors.NotReady):
            return None
        return None if caller is None else await self.visibility(caller)

    async def wait_for_position(
        self, wanted: Position | None, store: MonotonicViews | None = None
    ) -> Position:
        """Wait until the views, or another store, cover `wanted`; return the position they cover.

        Raises:
            PositionUnknown: the log does not contain `wanted`.
            ViewBehind: the views did not reach `wanted` in time.
            ViewsUnfinished: the views cover less than before; they are being rebuilt.
        """
        views = store if store is not None else self.views
        if wanted is not None and not (await views.store.position()).covers(wanted):
            await self.check_position(wanted)
            if not await views.reach(wanted, self.settings.view_wait_s):
                raise errors.ViewBehind(position=wanted, reached=await views.store.position())
        return await views.complete_position(self.settings.view_wait_s)

    async def check_position(self, wanted: Position) -> None:
        """Check that the log contains a position.

        Raises:
            PositionUnknown: the position belongs to another log or cell.
        """
        if wanted.cell != self.cell:
            raise errors.PositionUnknown(position=wanted, found=f"this is cell {self.cell}")
        for topic, offset in wanted.parts():
            if offset > await self.end(topic):
                raise errors.PositionUnknown(position=wanted, found=f"topic {topic} ends before it")

    @asynccontextmanager
    async def submission_lock(self, job_id: str) -> AsyncIterator[None]:
        """Serialize the submissions of one job id, so that only the first one is recorded."""
        entry = self._submission_locks.setdefault(job_id, _SubmissionLock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                self._submission_locks.pop(job_id, None)

    @asynccontextmanager
    async def stream(self, user: str, token: str) -> AsyncIterator[None]:
        """Count one open stream of a user while the context is active.

        The current task is cancelled when the user's roles or tokens change, and when the token
        ends.

        Raises:
            RateLimited: the limit of open streams is reached.
        """
        self.check_stream_limit()
        self._streams_started += 1
        number = self._streams_started
        task = asyncio.current_task()
        assert task is not None, "a stream is sent by a task"
        self._open_streams[number] = task, user, digest_of(token)
        self.streams.set(len(self._open_streams))
        try:
            yield
        finally:
            del self._open_streams[number]
            self.streams.set(len(self._open_streams))

    def end_streams(self) -> None:
        """Close all open streams; their clients resume at another gateway."""
        for task, _, _ in list(self._open_streams.values()):
            task.cancel()

    def _end_streams_of(self, user: str | None) -> None:
        """Close the streams of `user`, and all streams whose token has ended.

        `user` is a user whose roles or tokens have changed, or None. The client connects again and
        gets the new roles. If the port `identity` authenticates callers, the users of the log do
        not apply, so no stream is closed.
        """
        if self.ports.identity is not None:
            return
        for task, owner, digest in list(self._open_streams.values()):
            if owner == user or not self.access.valid(digest):
                task.cancel()

    def check_stream_limit(self) -> None:
        """Check that one more stream may be opened.

        Raises:
            RateLimited: the limit of open streams is reached.
        """
        if len(self._open_streams) >= self.settings.max_streams:
            raise errors.RateLimited(retry_s=5)


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves a request."""
    found = request.app.state.gateway
    if not isinstance(found, Gateway):
        raise TypeError("the app was not made by create_app")
    return found


async def current_gateway(request: Request) -> Gateway:
    """The gateway that serves a request, as a dependency."""
    return gateway_of(request)


def bearer_token(request: Request) -> str:
    """The bearer token of a request.

    Raises:
        Unauthenticated: the request has no usable bearer token.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
        raise errors.Unauthenticated(found="the request has no bearer token")
    return token


async def current_caller(request: Request) -> Caller:
    """Authenticate the caller, and count the request against the caller's rate limit.

    Raises:
        Unauthenticated, NotReady, RateLimited.
    """
    gateway = gateway_of(request)
    token = bearer_token(request)
    address = request.client.host if request.client else ""
    try:
        caller = await gateway.identity.identify(token)
    except errors.Unauthenticated:
        gateway.refused_tokens.add(address)
        raise
    if caller is None:
        gateway.refused_tokens.add(address)
        raise errors.Unauthenticated(found="the token is unknown or was revoked")
    gateway.limit.take(caller.user)
    return caller


def _query_names(route: APIRoute) -> frozenset[str]:
    """The query parameters of an endpoint; `label.` stands for all label filters."""
    names = set(_query_names_of(route.dependant))
    if (route.openapi_extra or {}).get("x-label-filters"):
        names.add("label.")
    return frozenset(names)


def _query_names_of(dependant: Dependant) -> Iterator[str]:
    for param in dependant.query_params:
        yield param.alias
    for inner in dependant.dependencies:
        yield from _query_names_of(inner)


async def reject_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that the endpoint does not have, which FastAPI silently ignores.

    Raises:
        Malformed.
    """
    if not request.query_params:
        return
    route = request.scope.get("route")
    known = _query_names(route) if isinstance(route, APIRoute) else frozenset()
    for name in request.query_params:
        if name not in known and not (name.startswith("label.") and "label." in known):
            raise errors.Malformed(found=f"unknown query parameter {name[:64]!r}")


async def reject_writes_to_a_short_log(request: Request) -> None:
    """Refuse a write if the views have shown that the log lost its end.

    Otherwise, a retry of a request that the log lost would be answered from the views and not be
    recorded.

    Raises:
        ViewsAhead.
    """
    if request.method not in ("GET", "HEAD"):
        gateway_of(request).views.check_whole()


CurrentGateway = Annotated[Gateway, Depends(current_gateway)]
CurrentCaller = Annotated[Caller, Depends(current_caller)]
PositionQuery = Annotated[str | None, Query(pattern=POSITION_PATTERN, max_length=160)]
PositionHeader = Annotated[str | None, Header(pattern=POSITION_PATTERN, max_length=160)]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The context of one read: the caller, the visible projects, and the position of the views."""

    gateway: Gateway
    caller: Caller
    visibility: Visibility
    position: Position

    @property
    def store(self) -> ReadableViews:
        """The store of the views."""
        return self.gateway.ports.views

    @property
    def presenter(self) -> Presenter:
        """A presenter that shows only what the caller may see."""
        return Presenter(self.store, self.gateway.ports.clock.now_ms(), self.visibility)


def parse_position(position: str | None) -> Position | None:
    """Parse a position parameter; None stays None.

    Raises:
        Malformed: the text is not a position.
    """
    if position is None:
        return None
    try:
        return Position.parse(position)
    except ValueError as error:
        raise errors.Malformed(found=str(error)) from None


async def read_context(
    gateway: CurrentGateway,
    caller: CurrentCaller,
    response: Response,
    min_position: PositionQuery = None,
    yard_min_position: PositionHeader = None,
) -> ReadContext:
    """Wait until the views cover the position that the caller names; return the read's context.

    Raises:
        Malformed, PositionUnknown, ViewBehind, ViewsUnfinished.
    """
    wanted = parse_position(min_position if min_position is not None else yard_min_position)
    position = await gateway.wait_for_position(wanted)
    response.headers["Yard-Position"] = str(position)
    return ReadContext(gateway, caller, await gateway.visibility(caller), position)


Read = Annotated[ReadContext, Depends(read_context)]


def authorize(
    caller: Caller, action: Action, *, project: str | None = None, department: str | None = None
) -> None:
    """Check that a role of the caller allows an action.

    Raises:
        Forbidden.
    """
    if not is_allowed(caller.bindings, action, project=project, department=department):
        where = f" in project {project}" if project is not None else ""
        raise errors.Forbidden(user=caller.user, action=f"{action.value}{where}")


async def authorize_submission(gateway: Gateway, caller: Caller, project: str) -> None:
    """Check that the caller may submit to the project.

    The views are read only if the caller has a role in a department.

    Raises:
        Forbidden, ViewsUnavailable.
    """
    if is_allowed(caller.bindings, Action.SUBMIT, project=project):
        return
    department: str | None = None
    if names_in_scope(caller.bindings, Scope.DEPARTMENT):
        await gateway.wait_for_position(None)
        row = await queries.project(gateway.views, project)
        department = row.config.department if row is not None else None
    authorize(caller, Action.SUBMIT, project=project, department=department)
