"""Prove a log in several processes: one for each state machine, and one for the audit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from yardmaster_cli.log.source import LogSource, on_log, opened
from yardmaster_core import audit
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.errors import UnknownTopic
from yardmaster_eventlog.port import EventLog
from yardmaster_runtime.parallel import Call, Progress, run_calls
from yardmaster_runtime.replay.chain import check_chain
from yardmaster_runtime.replay.report import ChainProof, Report
from yardmaster_runtime.replay.verify import MachineResult, audit_whole, conclude, prove
from yardmaster_schemas.topics import INPUT_ORDER

T = TypeVar("T")

#: A log with fewer records is proved within seconds, as other processes need to start.
SMALL_LOG: Final = 20_000
#: The time that the proof of the scheduler takes, relative to that of quota and to the audit.
_SCHEDULER_WEIGHT: Final = 3.0


def machines() -> tuple[Machine[Any], ...]:
    """The machines whose decisions a log holds, as the services run them."""
    return (QuotaMachine(check), SchedulerMachine())


def count_records(source: LogSource) -> int:
    """Print which log it is; return about how many records there are to prove.

    Records that have expired count too.

    Raises: as `on_log`.
    """
    return on_log(source, lambda log: _records(log, source))


def verified(source: LogSource, workers: int, progress: Progress) -> Report:
    """Recompute every decision and audit the log, in at most `workers` processes.

    Raises: as `on_log` and `replay.verify.verify`.
    """
    quiet = replace(source, note=_unprinted, server=None)
    # The longest one comes first, so that another process can do the two others meanwhile.
    calls: list[Call] = [
        (_prove, (quiet, "scheduler")),
        (_prove, (quiet, "quota")),
        (_audit, (quiet,)),
    ]
    weights = (_SCHEDULER_WEIGHT, 1.0, 1.0)
    scheduler, quota, broken = run_calls(calls, workers, progress, weights=weights)
    return _in_log(quiet, lambda log: conclude(log, (quota, scheduler), broken, source.partition))


def chains(source: LogSource, workers: int, progress: Progress) -> list[ChainProof]:
    """Check the hash chain of each machine, in at most `workers` processes.

    Raises: as `on_log` and `check_chain`.
    """
    quiet = replace(source, note=_unprinted, server=None)
    calls: list[Call] = [(_check_chain, (quiet, machine.name)) for machine in machines()]
    return run_calls(calls, workers, progress)


async def _records(log: EventLog, source: LogSource) -> int:
    count = 0
    for topic in INPUT_ORDER:
        try:
            count += await log.end(source.at(topic))
        except UnknownTopic:  # the proof names it
            continue
    return count


def _prove(source: LogSource, name: str, progress: Progress) -> MachineResult:
    return _in_log(
        source,
        lambda log: prove(
            *(log, _machine(name), source.cell),
            partition=source.partition,
            snapshots=source.store,
            progress=progress,
        ),
    )


def _audit(source: LogSource, progress: Progress) -> tuple[audit.Finding, ...]:
    return _in_log(source, lambda log: audit_whole(log, source.partition, progress))


def _check_chain(source: LogSource, name: str, progress: Progress) -> ChainProof:
    return _in_log(
        source,
        lambda log: check_chain(
            *(log, _machine(name), source.cell),
            partition=source.partition,
            snapshots=source.store,
            progress=progress,
        ),
    )


def _machine(name: str) -> Machine[Any]:
    return next(machine for machine in machines() if machine.name == name)


def _in_log(source: LogSource, work: Callable[[EventLog], Awaitable[T]]) -> T:
    async def run() -> T:
        async with opened(source) as log:
            return await work(log)

    return asyncio.run(run())


def _unprinted(text: str) -> None:
    """Print nothing; unlike a method of the session's output, a worker process can get it."""
