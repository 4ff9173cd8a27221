"""Builds a service's ports from its settings and runs the service in a process of its own.

A service is `async def run(ports, settings)`. It runs until it is cancelled and has no global
state, so several services fit in one process. A machine that stops is not restarted here: a person
should look at it first.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from yardmaster_core.machine import Machine
from yardmaster_eventlog.errors import LogTruncated, LogUnavailable, NotOurLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.membership import Membership
from yardmaster_eventlog.metrics import NO_METRICS, LogMetrics, MeteredLog
from yardmaster_eventlog.port import EventLog
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.chance import Chance, SystemChance
from yardmaster_runtime.clock import Clock, SystemClock
from yardmaster_runtime.garbage_collection import tune_gc
from yardmaster_runtime.http import HttpServer, listen
from yardmaster_runtime.log_format import check_log_format
from yardmaster_runtime.machine.candidate import Candidate
from yardmaster_runtime.machine.election import Election, GroupElection, SoleCandidate
from yardmaster_runtime.private_files import report_writable
from yardmaster_runtime.settings import LogSettings, RuntimeSettings
from yardmaster_runtime.telemetry.health import Health, health_handler
from yardmaster_runtime.telemetry.library_logs import LibraryLogs
from yardmaster_runtime.telemetry.log_metrics import EventLogMetrics
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_runtime.waiting import Work, first_of
from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.topics import REQUESTS, Topic

S = TypeVar("S")
P = TypeVar("P", bound=LogSettings)
R = TypeVar("R", bound=RuntimeSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of a machine's service."""

    log: EventLog
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    #: Without a store, a restart folds the whole log.
    snapshots: SnapshotStore | None = None
    #: Makes a candidate's election from the number of its cell's partition.
    elections: Callable[[int], Election] = lambda partition: SoleCandidate()
    health: Health = field(default_factory=Health)
    #: Opens another handle for the tasks of a leader: after an append times out, a handle discards
    #: its producer, which must not be the leader's. The creator of the ports closes the handle.
    #: None: the tasks use `log`.
    another_log: Callable[[], Awaitable[EventLog]] | None = None
    #: Called after each restore of the machine's state; a process of its own calls `tune_gc`.
    on_restored: Callable[[], object] = lambda: None

    def for_cell(self, cell: str) -> "Ports":
        """Return the same ports for one of the process's cells."""
        return replace(self, telemetry=self.telemetry.for_cell(cell))


async def open_log(
    settings: LogSettings, clock: Clock, *, create: bool = True, metrics: LogMetrics = NO_METRICS
) -> EventLog:
    """Open the log that `settings.log` names; with `create`, create a missing file.

    Raises:
        NotOurLog: the URL has no known scheme, or the file is not a log.
        OtherLogFormat: the file is a log of another version.
        LogNotTrusted, LogAccessRefused, TlsUnusable, SecretUnreadable: the settings are wrong.
        LogCorrupt, LogUnavailable.
    """
    log = await _open_log(settings, clock, create, metrics)
    return log if metrics is NO_METRICS else MeteredLog(log, clock, metrics)


async def _open_log(
    settings: LogSettings, clock: Clock, create: bool, metrics: LogMetrics
) -> EventLog:
    url = settings.log_url
    kind, _, rest = url.partition(":")
    if kind == "memory":
        from yardmaster_eventlog.memory import MemoryLog

        return MemoryLog(clock)
    if kind == "sqlite" and rest.startswith("///"):
        from yardmaster_eventlog.sqlite.log import SqliteLog

        return await SqliteLog.open(Path(rest.removeprefix("///")), clock, create=create)
    if kind == "kafka" and rest.startswith("//"):
        from yardmaster_eventlog.kafka.log import KafkaLog

        return await KafkaLog.open(kafka_settings(settings), clock, metrics)
    raise NotOurLog(path=url, found="expected sqlite:///PATH, kafka://HOST:PORT or memory:")


def kafka_settings(settings: LogSettings) -> KafkaSettings:
    """Return the Kafka settings for the brokers in `settings.log` (`kafka://HOST:PORT,...`).

    Raises: SecretUnreadable.
    """
    return settings.kafka.settings(settings.log_url.removeprefix("kafka://"), "yardmaster")


def on_kafka(settings: LogSettings) -> bool:
    """Whether the log is on Kafka."""
    return settings.log_url.startswith("kafka:")


async def open_ports(
    process: "Process", settings: RuntimeSettings, membership: Membership | None = None
) -> Ports:
    """Open the ports of a machine's service in a process of its own.

    Without a membership every candidate leads at once; only a candidate of another process can
    fence it.

    Raises: the errors of `open_log`; SnapshotsUnavailable: the snapshots' URL names no store.
    """
    clock = process.clock
    # A log that opens is no machine that runs: until then the process is not ready.
    for cell in settings.served():
        process.health.report(_part(cell), "starting")

    def election(partition: int) -> Election:
        if membership is None:
            return SoleCandidate()
        return GroupElection(membership, partition, clock, pause_s=settings.session_timeout_s)

    return Ports(
        log=await process.open_log(settings),
        clock=clock,
        chance=process.chance,
        telemetry=process.telemetry,
        health=process.health,
        elections=election,
        snapshots=SnapshotStore(settings.snapshots_url, deadline_s=settings.snapshot.deadline_s),
        on_restored=tune_gc,
    )


def candidate(machine: Machine[S], ports: Ports, settings: RuntimeSettings) -> Candidate[S]:
    """Return the candidate that runs `machine` on these ports."""
    return Candidate(
        machine,
        settings,
        log=ports.log,
        clock=ports.clock,
        chance=ports.chance,
        metrics=RuntimeMetrics(ports.telemetry),
        election=ports.elections(settings.partition),
        snapshots=ports.snapshots,
        on_restored=ports.on_restored,
        on_status=partial(ports.health.report, _part(settings)),
    )


def _part(settings: RuntimeSettings) -> str:
    """Return the name by which the health of a process shows the machine of a cell."""
    return f"cell {settings.cell}"


@dataclass(frozen=True, slots=True)
class Process:
    """The ports that every service gets from its process."""

    clock: Clock
    chance: Chance
    telemetry: Telemetry
    health: Health
    log_metrics: LogMetrics = NO_METRICS
    #: The service's name in the catalog of topics.
    service: str = ""

    async def open_log(self, settings: LogSettings) -> EventLog:
        """Open the log that the settings name; retry without limit while it is unavailable.

        Services that may read its first record check its format.

        Raises: the errors of `open_log`, except LogUnavailable; OtherLogFormat.
        """
        backoff = settings.retry.backoff()
        while True:
            try:
                log = await self._open_log(settings)
            except LogUnavailable as error:
                self.health.report("log", f"{error.code}: {error}")
                self.telemetry.warn("log_unavailable", found=str(error))
                await self.clock.sleep(backoff.next_s())
            else:
                self.health.report("log")
                return log

    async def _open_log(self, settings: LogSettings) -> EventLog:
        log = await open_log(settings, self.clock, metrics=self.log_metrics)
        if settings.log_url.startswith("sqlite:///"):
            path = Path(settings.log_url.removeprefix("sqlite:///"))
            report_writable(self.telemetry, (path.parent, path))
        if on_kafka(settings) and self.service in REQUESTS.readers:
            try:
                await check_log_format(log, settings.log_url)
            except BaseException:
                await log.close()
                raise
        return log


def open_membership(
    process: Process, settings: RuntimeSettings, service: str, own: Topic
) -> Membership | None:
    """Join the consumer group that distributes the cells; only on Kafka there is one.

    Raises: SecretUnreadable, TlsUnusable.
    """
    if not on_kafka(settings):
        return None
    from yardmaster_eventlog.kafka.membership import KafkaMembership

    def on_status(reason: str | None) -> None:
        process.health.report("group", reason)
        if reason is not None:
            process.telemetry.warn("group_unavailable", found=reason)

    return KafkaMembership(
        kafka_settings(settings),
        settings.group or f"yardmaster-{service}",
        own.name,
        process.clock,
        session_timeout_s=settings.session_timeout_s,
        on_status=on_status,
    )


def run_machine_process(
    settings: type[R], service: str, own: Topic, run: Callable[[Ports, R], Awaitable[object]]
) -> int:
    """Run the service of a machine, whose own topic is `own`, in a process of its own.

    Returns the exit code of `run_process`.
    """

    async def serve(process: Process, loaded: R) -> None:
        membership = open_membership(process, loaded, service, own)
        ports = await open_ports(process, loaded, membership)
        opened = [ports.log]

        async def another_log() -> EventLog:
            opened.append(await process.open_log(loaded))
            return opened[-1]

        if on_kafka(loaded):
            ports = replace(ports, another_log=another_log)
        try:
            await run(ports, loaded)
        finally:
            # Leave the group first, so that another replica takes over at once.
            if membership is not None:
                await membership.close()
            for log in opened:
                await log.close()

    return run_process(settings, service, serve)


def run_process(
    settings: type[P], service: str, serve: Callable[[Process, P], Awaitable[object]]
) -> int:
    """Run a service in a process of its own, with settings from the environment.

    The signals of `on_stop_signal` cancel `serve`; a second one changes nothing. After LogTruncated
    the process stays up until then: it is not ready, and has closed the log.

    Returns the exit code: 0 after a stop, 2 for invalid settings, 100 for a fatal error.
    """
    try:
        loaded = settings()
    except ValidationError as error:
        prefix = settings.model_config.get("env_prefix", "")
        variables = EnvSettingsSource(settings).env_vars
        for found in error.errors(include_url=False, include_input=False):
            name = "__".join(str(part) for part in found["loc"]).upper()
            if f"{prefix}{name}".lower() in variables or f"YARD_{name}".lower() not in variables:
                name = f"{prefix}{name}"
            else:
                name = f"YARD_{name}"
            print(f"error: {name}: {found['msg']}", file=sys.stderr)
        return 2
    try:
        asyncio.run(_serve(loaded, service, serve))
    except (_StopRequested, KeyboardInterrupt):
        return 0
    except YardmasterError as error:
        return _failed([error])
    except ExceptionGroup as group:
        return _failed(group.exceptions)
    return 0


def _failed(errors: Sequence[Exception]) -> int:
    """Print the errors with their codes; return the exit code."""
    stops = [error for error in errors if isinstance(error, _StopRequested)]
    for error in errors:
        if error not in stops:
            code = getattr(error, "code", type(error).__name__)
            print(f"error: {code}: {error}", file=sys.stderr)
    return 0 if stops else 100


class _StopRequested(Exception):
    """The process got a signal to stop."""


async def _serve(
    settings: P, service: str, serve: Callable[[Process, P], Awaitable[object]]
) -> None:
    """Make clock, telemetry and the other ports of the process, and run the service with them."""
    clock = SystemClock()
    telemetry = Telemetry(service, now_ms=clock.now_ms, level=settings.log_level)
    library_logs = LibraryLogs(telemetry, clock.monotonic_s)
    library_logs.install()
    try:
        chance = SystemChance()
        process = Process(clock, chance, telemetry, Health(), EventLogMetrics(telemetry), service)
        telemetry.trace_to(settings.traces, chance.hex("instance", 12))
        await _run(process, settings, serve)
    finally:
        telemetry.close()
        library_logs.remove()


async def _run(
    process: Process, settings: P, serve: Callable[[Process, P], Awaitable[object]]
) -> None:
    """Run the service and its health endpoint until a stop is requested or the service fails.

    Raises: _StopRequested, or the error of the service. After LogTruncated the service is over, but
    the endpoint runs until a stop is requested.
    """
    telemetry = process.telemetry
    listener = None
    if settings.health_port is not None:
        listener = listen(settings.health_host, settings.health_port)
        telemetry.info("health", host=settings.health_host, port=listener.getsockname()[1])

    async def run() -> None:
        try:
            await serve(process, settings)
        except Exception as error:
            found = _truncation(error)
            if found is None:
                raise
            # A restart would meet the same log, so the process stays up and writes nothing.
            telemetry.error("stopped", code=found.code, found=str(found))
            process.health.report("log", f"{found.code}: {found}")
            await asyncio.Event().wait()

    work: list[Work] = [_until_stop_requested(telemetry), run()]
    if listener is not None:
        server = HttpServer(health_handler(process.health, telemetry), process.clock)
        work.append(server.run(listener))
    await first_of(*work)


def _truncation(error: Exception) -> LogTruncated | None:
    """Return the LogTruncated among the errors of a service."""
    if isinstance(error, ExceptionGroup):
        found = (_truncation(one) for one in error.exceptions)
        return next((one for one in found if one is not None), None)
    return error if isinstance(error, LogTruncated) else None


def on_stop_signal(stop: Callable[[], object]) -> None:
    """Call `stop` at each SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal was closed).

    SIGHUP stays ignored if it was ignored when the process started, as `nohup` does. Must be called
    in the event loop of the main thread.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, stop)


async def _until_stop_requested(telemetry: Telemetry) -> NoReturn:
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    await stop.wait()
    telemetry.info("stopping")
    raise _StopRequested
