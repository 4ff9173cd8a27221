"""What a process that runs a machine is made of: ports, opened from settings, and the run.

A service is `async def run(ports, settings)`: it runs until it is cancelled, has no globals, and
two of them fit in one process. A machine that stops is not started again here: a supervisor may, a
person should look first.
"""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from pydantic import ValidationError

from yardmaster.core.machine import Machine
from yardmaster.eventlog.errors import NotOurLog
from yardmaster.eventlog.port import EventLog
from yardmaster.eventlog.snapshots import SnapshotStore
from yardmaster.runtime.candidate import Beside, Candidate
from yardmaster.runtime.chance import Chance, SystemChance
from yardmaster.runtime.clock import Clock, SystemClock
from yardmaster.runtime.election import Election, SoleCandidate
from yardmaster.runtime.metrics import RuntimeMetrics
from yardmaster.runtime.settings import RuntimeSettings
from yardmaster.runtime.telemetry import Telemetry
from yardmaster.schemas.errors import YardmasterError

#: Objects made and not freed before the youngest generation is collected; how many such collections
#: until the next generation is, and so on. Python's own are 700, 10, 10.
GC_THRESHOLDS: Final = (50_000, 20, 100)

S = TypeVar("S")
P = TypeVar("P", bound=RuntimeSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """All that a machine's service touches of the world."""

    log: EventLog
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    #: None: a restart folds the whole log.
    snapshots: SnapshotStore | None = None
    election: Election = field(default_factory=SoleCandidate)
    #: Told whenever the machine has restored its state; a process of its own has
    #: `spare_collections` here.
    restored: Callable[[], object] = lambda: None


def spare_collections() -> None:
    """Keep the garbage collector from walking the state over and over; to call after a restore.

    A cell's state is millions of objects that live on. The collector cannot know that: each full
    collection walks all of them, and under load there are so many that they take 30 to 60 % of the
    time, in pauses of up to seconds. So what lives now is set aside (`gc.freeze`), and collections
    are made so rare (`GC_THRESHOLDS`) that what comes after stays cheap too. Cycles, such as those
    of an error and its traceback, still go, and so does the state of a term that is over: what was
    set aside before is looked at once more.

    It is the process that is changed, so only whoever owns the process may ask for it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def open_log(settings: RuntimeSettings, clock: Clock, *, create: bool = True) -> EventLog:
    """The log that `settings.log` names; with `create`, a file is made when there is none.

    Raises:
        NotOurLog: the URL names no kind of log, or something else is there.
        LogCorrupt, LogUnavailable.
    """
    url = settings.log_url
    kind, _, rest = url.partition(":")
    if kind == "memory":
        from yardmaster.eventlog.memory import MemoryLog

        return MemoryLog(clock)
    if kind == "sqlite" and rest.startswith("///"):
        from yardmaster.eventlog.sqlite import SqliteLog

        return await SqliteLog.open(Path(rest.removeprefix("///")), clock, create=create)
    if kind == "kafka" and rest.startswith("//"):
        from yardmaster.eventlog.kafka import KafkaLog
        from yardmaster.eventlog.kafka_settings import KafkaSettings

        return await KafkaLog.open(KafkaSettings(bootstrap=rest.removeprefix("//")), clock)
    raise NotOurLog(path=url, found="sqlite:///PATH, kafka://HOST:PORT or memory: is expected")


async def open_ports(settings: RuntimeSettings, service: str) -> Ports:
    """The real ports of a process of its own.

    Raises: what `open_log` raises; SnapshotsUnavailable when the snapshots' URL names no store.
    """
    clock = SystemClock()
    return Ports(
        log=await open_log(settings, clock),
        clock=clock,
        chance=SystemChance(),
        telemetry=Telemetry(service, now_ms=clock.now_ms),
        snapshots=SnapshotStore(settings.snapshots_url),
        restored=spare_collections,
    )


def candidate(machine: Machine[S], ports: Ports, settings: RuntimeSettings) -> Candidate[S]:
    """The candidate that runs `machine` on these ports."""
    return Candidate(
        machine,
        settings,
        log=ports.log,
        clock=ports.clock,
        chance=ports.chance,
        metrics=RuntimeMetrics(ports.telemetry),
        election=ports.election,
        snapshots=ports.snapshots,
        restored=ports.restored,
    )


async def run_machine(
    machine: Machine[Any],
    ports: Ports,
    settings: RuntimeSettings,
    beside: Beside[Any] | None = None,
) -> NoReturn:
    """Run a machine until cancelled; raises what stops it (see `Candidate.run`)."""
    await candidate(machine, ports, settings).run(beside)


def run_process(
    settings: type[P], service: str, run: Callable[[Ports, P], Awaitable[object]]
) -> int:
    """Be a service in a process of its own, with settings from the environment.

    Returns the exit code: 0 after Ctrl-C, 2 for bad settings, 100 when the service cannot go on.
    """
    try:
        loaded = settings()
    except ValidationError as error:
        prefix = settings.model_config.get("env_prefix", "")
        for found in error.errors(include_url=False, include_input=False):
            name = prefix + "__".join(str(part) for part in found["loc"]).upper()
            print(f"error: {name}: {found['msg']}", file=sys.stderr)
        return 2

    async def serve() -> None:
        ports = await open_ports(loaded, service)
        try:
            await run(ports, loaded)
        finally:
            await ports.log.close()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        return 0
    except YardmasterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 100
    return 0
