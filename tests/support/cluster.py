"""A whole cluster of real processes on a real broker and Redis, for tests that harm processes.

Every service is a forked process (`forks`) on free ports, configured by environment variables as
`yard up --local` does. No supervisor restarts a process that ends: the test does. `close` leaves
nothing behind: no service, no runner, no task.
"""

import asyncio
import os
import signal
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.audit import audit_log
from tests.support.cut_tail import cut_tail
from tests.support.faulty_host import preloaded
from tests.support.forks import fork
from tests.support.yard_cli import run_yard
from yardmaster.client import ApiError, Client
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_localcluster.fleet import KAFKA, READY_LIMIT_S, REDIS, Fleet, Member
from yardmaster_localcluster.layout import DataLayout, read
from yardmaster_localcluster.orphans import MARK, end, of_cluster, of_tasks
from yardmaster_localcluster.plan import Counts, FreePorts, Wanted
from yardmaster_localcluster.process import ServiceProcess
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.replay.verify import verify as verify_log
from yardmaster_schemas.access import ADMIN
from yardmaster_schemas.api import JobSpec, Phase, Task
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import TaskEndedV1

T = TypeVar("T")

#: Longest wait for one thing to happen, in seconds.
DEADLINE_S = 180.0
LOOK_S = 0.05
#: Answers after which the same request is made again.
TRY_AGAIN = (0, 429, 502, 503, 504)


class Cluster:
    """The processes of one cluster, by name: kafka, redis, quota-1, scheduler-2, agent-n1, ...

    Args:
        env: more environment, by a process's name, its service (`scheduler`), or `*` for all.
        clocks: by a process's name, the seconds by which its host's clock is ahead (`set_clock`).
    """

    def __init__(
        self,
        folder: Path,
        *,
        gateways: int = 1,
        quotas: int = 2,
        schedulers: int = 2,
        views: int = 2,
        agents: int = 3,
        slots: int = 4,
        cells: Sequence[str] = ("main",),
        env: Mapping[str, Mapping[str, str]] | None = None,
        kafka_settings: Mapping[str, str] | None = None,
        redis_settings: Mapping[str, str] | None = None,
        kafka_proxied: Mapping[str, tuple[int, int]] | None = None,
        clocks: Mapping[str, int] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.data = DataLayout(self.folder / "data")
        counts = Counts(
            gateway=gateways, quota=quotas, scheduler=schedulers, views=views, agent=agents
        )
        marked: dict[str, Mapping[str, str]] = {
            **(env or {}),
            "*": {MARK: str(self.data.path), **(env or {}).get("*", {})},
        }
        for name, ahead_s in (clocks or {}).items():
            self.set_clock(name, ahead_s)
            clock = {"TEST_CLOCK": str(self._clock(name))}
            if name == KAFKA:
                clock = preloaded(self.folder, self._clock(name))
            marked[name] = {**marked.get(name, {}), **clock}
        self.fleet = Fleet(
            self.data,
            Wanted(counts=counts, cells=tuple(cells), slots=slots),
            FreePorts(),
            env=marked,
            kafka_settings=kafka_settings,
            redis_settings=redis_settings,
            kafka_proxied=kafka_proxied,
            launch=fork,
        )
        self._clients: dict[str, Client] = {}

    # --- as a whole -----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start_all(self) -> None:
        """Start everything, and wait until all is ready."""
        self.fleet.until_set_up(self.fleet.begin_infrastructure())
        self.fleet.begin_services()
        self.fleet.until_ready()

    def close(self) -> None:
        """Kill every process; fail when a task survives."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self.fleet.kill()
        end(of_cluster(self.data.path), 1.0)
        assert of_tasks(self.data.agents) == [], "tasks survived the cluster"

    @property
    def names(self) -> list[str]:
        """Every process; a process comes after those that it depends on."""
        return list(self.fleet.members)

    # --- one process ----------------------------------------------------------------------------

    def member(self, name: str) -> Member:
        """A process by its name."""
        return self.fleet.members[name]

    def service(self, name: str) -> ServiceProcess:
        """A service's process by its name."""
        return self.fleet.services[name]

    def pid(self, name: str) -> int:
        """The process's id."""
        process = self.member(name).process
        assert process is not None, f"{name} does not run"
        return process.pid

    def lives(self, name: str) -> bool:
        """Whether the process exists; a stopped process counts."""
        return self.member(name).running

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a process that ended, and wait until it is ready."""
        member = self.member(name)
        member.begin()
        if wait:
            self.until_ready(name)

    def until_ready(self, name: str, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until a process is ready."""
        member = self.member(name)
        if isinstance(member, ServiceProcess):
            member.until_ready(limit_s)
        else:
            member.until_ready()

    def why_not(self, name: str) -> str | None:
        """The reason that the service reports for not being ready; None when it is ready."""
        return self.service(name).why_not()

    def kill9(self, name: str) -> None:
        """Send SIGKILL and wait until the process is gone; its tasks survive."""
        self.member(name).kill()

    def stop(self, name: str) -> None:
        """Send SIGSTOP: the process exists and does nothing."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def cont(self, name: str) -> None:
        """Send SIGCONT."""
        os.kill(self.pid(name), signal.SIGCONT)

    def terminate(self, name: str) -> int:
        """Send SIGTERM and wait for the end; return the exit code (0 for kafka and redis)."""
        member = self.member(name)
        if isinstance(member, ServiceProcess):
            code = member.stop()
            assert code is not None, f"{name} does not run"
            return code
        member.stop()
        return 0

    def exit_code(self, name: str, limit_s: float = 30.0) -> int:
        """Wait until a process ends by itself; return its exit code."""
        process = self.member(name).process
        assert process is not None, f"{name} does not run"
        return process.wait(limit_s)

    def log(self, name: str) -> str:
        """The output of a process, over all its restarts."""
        path = self.data.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def tails(self, names: Iterable[str] | None = None, size: int = 1500) -> str:
        """The last output of processes, for failure messages."""
        wanted = self.names if names is None else names
        return "\n".join(f"--- {name}\n{self.log(name)[-size:]}" for name in wanted)

    def health_url(self, name: str) -> str:
        """The base URL of a service's `/livez`, `/readyz` and `/metrics`."""
        return self.service(name).plan.health_url

    def set_clock(self, name: str, ahead_s: int) -> None:
        """Set the clock of a process's host, if `clocks` names the process; also while it runs."""
        path = self._clock(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(struct.pack("<q", ahead_s))

    def set_sync_delay(self, name: str, delay_s: float) -> None:
        """Let each sync of a process's disk take longer; for the broker, if `clocks` names it."""
        with self._clock(name).open("r+b") as file:
            file.seek(8)
            file.write(struct.pack("<q", int(delay_s * 1_000_000)))

    def _clock(self, name: str) -> Path:
        return self.folder / "clocks" / name

    def restart(self, name: str) -> None:
        """Kill a process with SIGKILL, start it, and wait until it is ready."""
        self.kill9(name)
        self.start(name)

    def cut_log(self, partition: Partition, end: int) -> None:
        """Kill the broker and start it again without the records from `end` on."""
        self.kill9(KAFKA)
        assert cut_tail(self.fleet.broker.directory, partition, end) == end
        self.start(KAFKA)

    # --- addresses ------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The broker, `host:port`."""
        return self.fleet.broker.bootstrap

    @property
    def log_url(self) -> str:
        """The log, for `--log`."""
        return f"kafka://{self.bootstrap}"

    def kafka(self, user: str = ADMIN) -> KafkaSettings:
        """The settings of a client with the password of one of the broker's users."""
        return KafkaSettings(
            bootstrap=self.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username=user,
            sasl_password=read(self.data.kafka_credentials / user),
        )

    def redis(self, user: str = "views") -> RedisSettings:
        """The settings of a client with the password of one of Redis's users."""
        return RedisSettings(
            url=self.fleet.redis.url,
            username=user,
            password_file=self.data.redis_credentials / user,
        )

    def yard(self, *words: str) -> str:
        """Run a command on the cluster's log as its operator; return its output."""
        redis = self.redis()
        env = {
            **os.environ,
            "YARD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "YARD_KAFKA__SASL_MECHANISM": "PLAIN",
            "YARD_KAFKA__SASL_USERNAME": ADMIN,
            "YARD_KAFKA__SASL_PASSWORD_FILE": str(self.data.kafka_credentials / ADMIN),
            "YARD_REDIS__USERNAME": redis.username or "",
            "YARD_REDIS__PASSWORD_FILE": str(redis.password_file),
        }
        said = run_yard([*words, "--log", self.log_url], env, self.folder)
        assert said.code == 0, said.err
        return said.out

    def url(self, gateway: str = "gateway-1") -> str:
        """The URL of a gateway."""
        return f"http://127.0.0.1:{self.service(gateway).plan.port}"

    @property
    def server(self) -> str:
        """The URL of the first gateway."""
        return self.url()

    def token(self) -> str:
        """The bearer token that callers send."""
        return self.data.token()

    # --- the gateway's callers ------------------------------------------------------------------

    def client(self, gateway: str = "gateway-1") -> Client:
        """The client of a gateway; created once."""
        if gateway not in self._clients:
            self._clients[gateway] = Client(
                self.url(gateway),
                self.token(),
                sleep=time.sleep,
                new_key=lambda: os.urandom(16).hex(),
            )
        return self._clients[gateway]

    def submit(
        self,
        command: Sequence[str] = ("true",),
        *,
        key: str | None = None,
        gateway: str = "gateway-1",
        **spec: Any,
    ) -> list[str]:
        """Submit a job, with the same key until it is acknowledged; return its tasks' ids.

        `spec` has the other fields of a job file: `resources={"gpus": 1}`, `replicas=2`, ...
        """
        key = key or os.urandom(16).hex()
        body = {"project": "default", "run": {"command": list(command)}, **spec}
        body.setdefault("resources", {"gpus": 1})
        job = JobSpec.model_validate(body)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return list(self.client(gateway).submit(job, idempotency_key=key).task_ids)
            except ApiError as error:
                if error.status not in TRY_AGAIN or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def submit_many(
        self, count: int, command: Callable[[int], Sequence[str]], **spec: Any
    ) -> list[str]:
        """Submit `count` jobs, one after another; return all their tasks' ids."""
        return [task for i in range(count) for task in self.submit(command(i), **spec)]

    def tasks(self, gateway: str = "gateway-1") -> dict[str, Task]:
        """All tasks as the gateway shows them, by id."""
        return {task.task_id: task for task in self.client(gateway).all_tasks()}

    def until_phases(
        self, ids: Iterable[str], *phases: Phase, limit_s: float = DEADLINE_S
    ) -> dict[str, Task]:
        """Wait until the gateway shows each task in one of these phases."""
        wanted = set(ids)

        def there() -> dict[str, Task] | None:
            with suppress(ApiError):
                found = self.tasks()
                if all(i in found and found[i].phase in phases for i in wanted):
                    return found
            return None

        return self.until(there, f"{len(wanted)} tasks are {phases}", limit_s)

    # --- the log --------------------------------------------------------------------------------

    async def open_log(self) -> KafkaLog:
        """A handle on the log; the caller closes it."""
        return await KafkaLog.open(self.kafka(), SystemClock())

    def on_log(self, work: Callable[[EventLog], Awaitable[T]]) -> T:
        """Run `work` on the log and return its result; not for use inside an event loop."""

        async def run() -> T:
            log = await self.open_log()
            try:
                return await work(log)
            finally:
                await log.close()

        return asyncio.run(run())

    def events(self, topic: str, number: int = 0) -> list[Event]:
        """All events of a topic's partition, as far as they can be decoded."""
        return self.events_from(Partition(topic, number), 0)[0]

    def events_from(self, at: Partition, offset: int) -> tuple[list[Event], int]:
        """The events from an offset on, and the offset after them."""

        async def read(log: EventLog) -> tuple[list[Event], int]:
            found: list[Event] = []
            end = offset
            while stored := await log.read(at, end, max_records=5000):
                found += [decode(each.record).data for each in stored]
                end = stored[-1].offset + 1
            return found, end

        return self.on_log(read)

    def until_ended(
        self, ids: Iterable[str], limit_s: float = DEADLINE_S, number: int = 0
    ) -> dict[str, TaskEndedV1]:
        """Wait until the log has an end for each of these tasks; return every end read by then."""
        wanted = set(ids)
        ended: dict[str, TaskEndedV1] = {}
        offset = 0

        def there() -> bool:
            nonlocal offset
            found, offset = self.events_from(Partition("decisions", number), offset)
            ended.update({e.task_id: e for e in found if isinstance(e, TaskEndedV1)})
            return wanted <= ended.keys()

        self.until(there, f"{len(wanted)} tasks have ended", limit_s, look_s=0.5)
        return ended

    def prove(self, *, honest_agents: bool = True) -> None:
        """Every promise holds over the log of each cell, and every decision is recomputed."""

        async def verify(log: EventLog) -> list[str]:
            wrong: list[str] = []
            for number, cell in enumerate(self.fleet.wanted.cells):
                found = await audit_log(log, honest_agents=honest_agents, partition=number)
                machines: list[Machine[Any]] = [QuotaMachine(check), SchedulerMachine()]
                report = await verify_log(log, machines, cell, partition=number)
                wrong += [f"{cell}: {each}" for each in (*found, *report.findings)]
                wrong += [f"{cell}: {each}" for each in report.promises]
            return wrong

        wrong = self.on_log(verify)
        assert not wrong, "the log breaks promises:\n" + "\n".join(wrong[:20])

    # --- waiting --------------------------------------------------------------------------------

    def until(
        self,
        there: Callable[[], T | None],
        what: str,
        limit_s: float = DEADLINE_S,
        look_s: float = LOOK_S,
    ) -> T:
        """Wait until `there` returns a true value; return it."""
        deadline = time.monotonic() + limit_s
        while not (found := there()):
            assert time.monotonic() < deadline, (
                f"waited {limit_s:.0f} s for this: {what}\n{self.tails()}"
            )
            time.sleep(look_s)
        return found


__all__ = ["KAFKA", "REDIS", "Cluster"]
