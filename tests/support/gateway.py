"""A whole cell in one process without threads: the test steps every service."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from tests.support import logs
from tests.support.audit import assert_audit_clean
from tests.support.memory_cell import CELL, MemoryCell
from tests.support.views import telemetry
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_gateway import main as gateway
from yardmaster_gateway.app import create_app
from yardmaster_gateway.context import Gateway, GatewayPorts
from yardmaster_gateway.identity.authentication import FileUser, Identity
from yardmaster_gateway.identity.authorization import Binding, Caller
from yardmaster_gateway.main import open_artifacts, open_packages
from yardmaster_gateway.settings import GatewaySettings
from yardmaster_projections.fold import USAGE
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import Clock, SystemClock
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import MachineInput
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.machine.observations import Observations
from yardmaster_runtime.settings import CycleLimits
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.requests import (
    DepartmentChangeRequestedV1,
    DepartmentConfig,
    DetailsRef,
    LogCreatedV1,
    LogMode,
    PolicyRef,
    PoolChangeRequestedV1,
    PoolConfig,
    ProjectChangeRequestedV1,
    ProjectConfig,
)
from yardmaster_schemas.events.users import RoleName, Scope
from yardmaster_schemas.log_format import LOG_FORMAT
from yardmaster_schemas.sources import agent_source
from yardmaster_views.follower import Follower, Metrics, Views

JSON = {"Content-Type": "application/json"}


def caller(user: str, role: RoleName, scope: Scope = Scope.CELL, name: str = CELL) -> Caller:
    return Caller(user, "token", "test", f"{user}-token", (Binding(role, scope, name),))


#: The callers by token.
CALLERS = {
    "operator": caller("olga", RoleName.OPERATOR),
    "viewer": caller("vera", RoleName.VIEWER),
    "nlp": caller("nina", RoleName.USER, Scope.PROJECT, "nlp"),
    "nlp2": caller("nico", RoleName.USER, Scope.PROJECT, "nlp"),
    "admin": caller("adam", RoleName.PROJECT_ADMIN, Scope.PROJECT, "nlp"),
    "vision": caller("viki", RoleName.USER, Scope.PROJECT, "vision"),
    "research": caller("rosa", RoleName.VIEWER, Scope.DEPARTMENT, "research"),
    "no_roles": Caller("nemo", "token", "test", "nemo-token", ()),
}


class StaticTokens:
    """A fixed set of tokens, for tests of what callers may do; the log knows none of the users."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = dict(callers)

    async def identify(self, token: str) -> Caller | None:
        """The caller of a token; None if the token is unknown."""
        return self._callers.get(token)


class GatewayCell(MemoryCell):
    """One cell on a memory log; `run_until_idle` lets all services consume all records."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        log: EventLog | None = None,
        identity: Identity | None = None,
        file_users: Sequence[FileUser] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(log, clock or SystemClock())
        self.store = MemoryViewStore(CELL, self.clock)
        self.usage = MemoryViewStore(CELL, self.clock)
        self.chance = SeededChance(3)
        defaults: dict[str, Any] = {
            "view_wait_s": 0.05,
            "max_wait_s": 0.05,
            "stream_s": 0.2,
            "ready_age_s": 0,
        }
        self.settings = GatewaySettings(**(defaults | settings))
        self.ports = GatewayPorts(
            log=self.log,
            views=self.store,
            # With users of a token file, callers are authenticated by the users of the log.
            identity=None if file_users is not None else identity or StaticTokens(CALLERS),
            file_users=file_users or (),
            clock=self.clock,
            chance=self.chance,
            telemetry=telemetry("gateway"),
            usage=self.usage,
            packages=open_packages(self.settings),
            artifacts=open_artifacts(self.settings),
        )
        self.app = create_app(self.ports, self.settings)
        metrics = Metrics(telemetry("views"))
        self.follower = Follower(self.log, Views(self.store, self.store), CELL, 0, metrics)
        self.meter = Follower(self.log, Views(self.usage, self.usage), CELL, 0, metrics, fold=USAGE)
        self.leaders: list[Leader[Any]] = []
        self._seqs: dict[str, int] = {}

    async def start(self) -> "GatewayCell":
        """Set up the log with pools, projects and a node, and run the services until idle."""
        await self.create()
        pool = PoolConfig(policy=PolicyRef(name="priority"))
        await self.write(
            "requests",
            "operator/setup",
            LogCreatedV1(
                log_id="0123456789abcdef" * 2, mode=LogMode.EMBEDDED, cell=CELL, format=LOG_FORMAT
            ),
            CELL,
        )
        for subject, event in (
            ("default", PoolChangeRequestedV1(pool="default", config=pool)),
            ("h100", PoolChangeRequestedV1(pool="h100", config=pool)),
            (
                "research",
                DepartmentChangeRequestedV1(department="research", config=DepartmentConfig()),
            ),
            (
                "nlp",
                ProjectChangeRequestedV1(
                    project="nlp", config=ProjectConfig(department="research")
                ),
            ),
            (
                "vision",
                ProjectChangeRequestedV1(
                    project="vision", config=ProjectConfig(department="research")
                ),
            ),
        ):
            await self.write("requests", "gateway/setup", event, subject, user="setup")
        await self.joins("n1")
        await self.follower.start()
        await self.meter.start()
        for machine in (QuotaMachine(check), SchedulerMachine()):
            self.leaders.append(self._leader(machine))
        for leader in self.leaders:
            await leader.fold.catch_up()
            await leader.take_term()
        await self.run_until_idle()
        return self

    def _leader(self, machine: Machine[Any]) -> Leader[Any]:
        metrics = RuntimeMetrics(telemetry(machine.name))
        return Leader(
            Fold(self.log, machine, CELL),
            clock=self.clock,
            chance=self.chance,
            limits=CycleLimits(),
            metrics=metrics,
            observations=Observations(100, metrics),
        )

    async def run_until_idle(self) -> None:
        """Let quota, the scheduler and the views consume all records."""
        await self.run_machines()
        await self.app.state.gateway.access.catch_up()
        await self.follower.catch_up()
        await self.meter.catch_up()

    async def until_reads_wait(self, count: int = 1) -> None:
        """Wait until `count` reads or streams wait for a change of the views."""
        async with asyncio.timeout(20):
            while len(self.store._waiters) < count:  # noqa: ASYNC110 the store has no event for readers
                await asyncio.sleep(0.001)

    async def run_machines(self) -> None:
        """Let quota and the scheduler consume all records; the views do not advance."""
        for _ in range(8):
            stepped = [await self._step(leader) for leader in self.leaders]
            if not any(stepped):
                break

    async def _step(self, leader: Leader[Any]) -> bool:
        """Run one cycle with all records of the log."""
        for source in leader.fold.inputs.values():
            cursor = source.cursor if isinstance(source, MachineInput) else source
            await cursor.fill(CycleLimits().max_inputs)
        return await leader.step()

    async def write(
        self, topic: str, source: str, event: Event, subject: str, *, user: str | None = None
    ) -> int:
        """Append an event as another source."""
        seq = self._seqs.get(source, 0)
        self._seqs[source] = seq + 1
        kind = ActorKind.NODE if source.startswith("node/") else ActorKind.USER
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=source,
            epoch=1,
            seq=seq,
            subject=subject,
            time_ms=self.clock.now_ms(),
            actor=Actor(kind=kind, id=user or source.partition("/")[2]),
            data=event,
        )
        key = subject if topic == "task-logs" else CELL
        return await self.log.append(Partition(topic), [encode(envelope, key)])

    async def claim(self, event: Any) -> None:
        """Append a report of a node's agent."""
        source = agent_source(event.node, event.incarnation)
        await self.write("node-events", source, event, event.node)

    async def joins(self, node: str, *, gpus: int = 4, pool: str = "default") -> None:
        await self.claim(logs.joined(node, gpus, pool=pool))

    def client(self, token: str | None = "operator") -> httpx.AsyncClient:
        """A caller's client; None has no token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=True),
            base_url="http://gateway",
            headers=headers,
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = "operator",
        status: int = 200,
        run: bool = True,
        headers: Mapping[str, str] | None = None,
        **what: Any,
    ) -> Any:
        """Call an endpoint, expect a status, run until idle; return the JSON or the response."""
        async with self.client(token) as client:
            response = await client.request(method, path, headers=dict(headers or {}), **what)
        assert response.status_code == status, f"{response.status_code}: {response.text[:600]}"
        if run:
            await self.run_until_idle()
        kind = response.headers.get("content-type", "")
        if status >= 400:
            assert kind == "application/problem+json", kind
            assert response.json()["status"] == status
        return response.json() if "json" in kind else response

    async def submit(self, *, token: str = "nlp", project: str = "nlp", **spec: Any) -> str:
        """Submit a job of one GPU; return its id."""
        body: dict[str, Any] = {
            "project": project,
            "resources": {"gpus": 1},
            "run": {"command": ["true"]},
        } | spec
        answer = await self.call("POST", "/v1/jobs", token=token, status=202, json=body)
        return str(answer["job_id"])

    async def starts(self, task_id: str, node: str = "n1", *, attempt: int = 1) -> None:
        """Report that a task's only replica has started."""
        await self.claim(
            logs.started(task_id, node, attempt=attempt, pid=100 + sum(self._seqs.values()))
        )
        await self.run_until_idle()

    async def finishes(
        self, task_id: str, node: str = "n1", *, attempt: int = 1, exit_code: int = 0
    ) -> None:
        """Report that a task's only replica has exited."""
        await self.claim(logs.exited(task_id, node, attempt=attempt, exit_code=exit_code))
        await self.claim(logs.released(task_id, node, attempt=attempt))
        await self.run_until_idle()


def other_gateway(cell: GatewayCell) -> FastAPI:
    """A second gateway of the cell, on the same log and views."""
    ports = dataclasses.replace(cell.ports, telemetry=telemetry("gateway"))
    return create_app(ports, cell.settings)


async def through_both(cell: GatewayCell, *bodies: dict[str, Any]) -> list[httpx.Response]:
    """The answers to submissions with one key; both gateways check for it before one records."""
    apps = [cell.app, other_gateway(cell)]
    checked = [asyncio.Event() for _ in apps]
    answers: list[httpx.Response] = []

    async def send(number: int) -> None:
        gateway: Gateway = apps[number].state.gateway
        record_detail = gateway.writer.record_detail

        async def when_both_checked(*args: Any) -> DetailsRef:
            checked[number].set()
            for each in checked:
                await each.wait()
            return await record_detail(*args)

        gateway.writer.record_detail = when_both_checked  # type: ignore[method-assign, assignment]
        transport = httpx.ASGITransport(apps[number])
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            headers = {"Authorization": "Bearer nlp", "Idempotency-Key": "both"}
            answers.append(await client.post("/v1/jobs", json=bodies[number], headers=headers))

    async with asyncio.TaskGroup() as group:
        for number in range(len(apps)):
            group.create_task(send(number))
    await cell.run_until_idle()
    return answers


@asynccontextmanager
async def gateway_of(
    cell: GatewayCell, port: int = 0
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """Run the gateway of a cell on a port; yield its port, and its asyncio task to cancel."""
    ports = dataclasses.replace(cell.ports, telemetry=telemetry("gateway"))
    listener = gateway.listen("127.0.0.1", port)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gateway.run(ports, cell.settings, listener=listener))
        yield int(listener.getsockname()[1]), running
        running.cancel()


@asynccontextmanager
async def gateway_cell(**settings: Any) -> AsyncIterator[GatewayCell]:
    """A started cell; its log is audited at the end."""
    cell = await GatewayCell(**settings).start()
    yield cell
    await cell.run_until_idle()
    await assert_audit_clean(cell.log)
