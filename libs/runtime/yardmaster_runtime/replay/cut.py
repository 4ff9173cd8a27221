"""Plans a consistent shorter log of one cell: which records of each topic are kept.

Both machines fold the log from its start. The log is consistent up to the last cycle whose inputs
and decisions are all there and lead to the states that their commits name. A cut at a cycle of the
scheduler keeps what that cycle has read and written. Requests after it are kept too: they were
acknowledged, and quota judges them again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yardmaster_core.commit import CountedCycle
from yardmaster_core.errors import CoreError
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import LogCorrupt, LogTruncated, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.reader import decoded
from yardmaster_runtime.errors import MachineError
from yardmaster_runtime.fence import last_cut
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.replay.details import check_details
from yardmaster_runtime.replay.prover import DetailsRefs
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.machine import KeptCycle, KeptRange, LogCutV1
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, INPUT_ORDER, NODE_EVENTS, REQUESTS

#: Errors of a log that contradicts itself.
INCONSISTENT = (MachineError, CoreError, LogCorrupt, LogTruncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJobs:
    """Jobs of which the log has lost records that no cut restores; in the order of their records.

    `requests`: jobs that quota has judged, and whose requests are gone. `details`: jobs and other
    requests whose command, names or notes are gone.
    """

    requests: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """A cut of one cell: `event` is recorded in the log; `broken` is the contradiction, if any."""

    cell: str
    number: int
    event: LogCutV1
    broken: str | None
    lost: LostJobs = LostJobs()

    @property
    def cycle(self) -> int:
        """The scheduler's last kept cycle."""
        return next((one.cycle for one in self.event.cycles if one.machine == "scheduler"), 0)

    @property
    def ends(self) -> Mapping[Partition, int]:
        """The new end of each topic that is shortened."""
        return {Partition(one.topic, self.number): one.end for one in self.event.kept}

    def record(self, now_ms: int) -> Record:
        """The record for the topic `cuts`."""
        envelope = Envelope(
            type=self.event.TYPE,
            version=self.event.VERSION,
            source="operator/cut",
            epoch=self.event.generation,
            seq=0,
            subject=self.cell,
            time_ms=now_ms,
            actor=Actor(kind=ActorKind.SERVICE, id="operator"),
            data=self.event,
        )
        return encode(envelope, self.cell)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A machine's last consistent cycle, and the end of each of its topics at that cycle."""

    cycle: int
    ends: Mapping[str, int]
    broken: str | None


async def plan_cut(
    log: EventLog,
    quota: Machine[Any],
    scheduler: Machine[Any],
    cell: str,
    *,
    cycle: int | None = None,
    number: int = 0,
) -> CutPlan:
    """Return the cut after the scheduler's `cycle`, by default after its last consistent one.

    If the log is inconsistent before `cycle`, the plan ends at the last consistent cycle.

    Raises: LogError: the log cannot be read.
    """
    judged = await _fold(log, quota, cell, number, {})
    bound = {ADMISSIONS.name: judged.ends.get(ADMISSIONS.name, 0)}
    decided = await _fold(log, scheduler, cell, number, bound, cycle)
    read = {ADMISSIONS.name: decided.ends.get(ADMISSIONS.name, 0)}
    kept = await _fold(log, quota, cell, number, read)
    ends = {
        DECISIONS.name: decided.ends.get(DECISIONS.name, 0),
        NODE_EVENTS.name: decided.ends.get(NODE_EVENTS.name, 0),
        ADMISSIONS.name: kept.ends.get(ADMISSIONS.name, 0),
    }
    was = {topic: await log.end(Partition(topic, number)) for topic in INPUT_ORDER}
    last = await last_cut(log, number)
    event = LogCutV1(
        generation=1 if last is None else last.generation + 1,
        cycles=(
            KeptCycle(machine="quota", cycle=kept.cycle),
            KeptCycle(machine="scheduler", cycle=decided.cycle),
        ),
        kept=tuple(
            KeptRange(topic=topic, end=ends.get(topic, was[topic]), was=was[topic])
            for topic in INPUT_ORDER
        ),
    )
    return CutPlan(
        cell=cell,
        number=number,
        event=event,
        broken=judged.broken or decided.broken,
        lost=await _lost(log, number),
    )


async def _lost(log: EventLog, number: int) -> LostJobs:
    """Compare what quota has judged, and what requests refer to, with what the log still has."""
    refs = DetailsRefs()
    requested: set[str] = set()
    async for envelope in _events(log, Partition(REQUESTS.name, number)):
        refs.note_request(envelope)
        requested.add(envelope.subject)
    judged: dict[str, None] = {}
    async for envelope in _events(log, Partition(ADMISSIONS.name, number)):
        refs.note_decision(envelope)
        if isinstance(envelope.data, TaskAdmittedV1 | TaskRejectedV1):
            judged[envelope.data.job_id] = None
    details = await check_details(log, refs)
    return LostJobs(
        requests=tuple(job for job in judged if job not in requested),
        details=tuple(dict.fromkeys(details.missing)),
    )


async def _events(log: EventLog, partition: Partition) -> AsyncIterator[Envelope[Event]]:
    """The readable records of a partition."""
    offset = 0
    try:
        while records := await log.read(partition, offset):
            for stored in records:
                envelope = decoded(stored)
                if envelope is not None:
                    yield envelope
            offset = records[-1].offset + 1
    except (LogCorrupt, UnknownTopic):
        return


async def _fold(
    log: EventLog,
    machine: Machine[Any],
    cell: str,
    number: int,
    bounds: Mapping[str, int],
    cycle: int | None = None,
) -> _Kept:
    """Fold to the last cycle within all bounds, or before an inconsistent one.

    `bounds`: by topic, an end that the machine's records and inputs may not pass.
    """
    fold = Fold(log, machine, cell, partition=number)
    done: list[tuple[int, Mapping[str, int]]] = [(0, {})]

    def note(accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        done[0] = counted.commit.cycle, dict(fold.position.parts())

    def beyond(counted: CountedCycle) -> bool:
        commit = counted.commit
        reached = {machine.output.name: counted.offset + 1}
        reached |= {taken.topic: taken.next for taken in commit.inputs}
        return (cycle is not None and commit.cycle > cycle) or any(
            reached.get(topic, 0) > end for topic, end in bounds.items()
        )

    fold.listeners.append(note)
    broken = None
    try:
        await fold.catch_up(beyond)
    except INCONSISTENT as error:
        broken = f"{error.code}: {error}"
    return _Kept(*done[0], broken)
