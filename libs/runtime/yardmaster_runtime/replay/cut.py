"""Plans a consistent shorter log of one cell: which records of each topic are kept.

Both machines fold the log from its start. The log is consistent up to the last cycle whose inputs
and decisions are all there and lead to the states that their commits name. A cut at a cycle of the
scheduler keeps what that cycle has read and written. Requests after it are kept too: they were
acknowledged, and quota judges them again.

A machine whose topics have lost their first records is folded from the oldest usable snapshot: it
checks the most of the log, and a start after the cut can use it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from yardmaster_core.commit import CountedCycle
from yardmaster_core.errors import CoreError
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import LogCorrupt, LogTruncated, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_eventlog.reader import decoded, first_offset
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.errors import LogBeginsLater, MachineError
from yardmaster_runtime.fence import last_cut
from yardmaster_runtime.machine.beginning import expired_records, later_beginnings, topics_of
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.replay.details import details_of
from yardmaster_runtime.replay.origin import begin
from yardmaster_runtime.replay.prover import DetailsRefs
from yardmaster_runtime.replay.report import Finding
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.admissions import TaskAdmittedV1, TaskRejectedV1
from yardmaster_schemas.events.machine import KeptCycle, KeptRange, LogCutV1
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, INPUT_ORDER, NODE_EVENTS, REQUESTS

#: Errors of a log that contradicts itself.
INCONSISTENT = (MachineError, CoreError, LogCorrupt, LogTruncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJobs:
    """Jobs with lost records that no cut restores, in the order of their records.

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
    snapshots: SnapshotStore | None = None,
) -> CutPlan:
    """Return the cut after the scheduler's `cycle`, by default after its last consistent one.

    If the log is inconsistent before `cycle`, the plan ends at the last consistent cycle. The log
    is folded from its start; only if that has expired, from the oldest usable one of `snapshots`.

    Raises:
        LogBeginsLater: the start of the log has expired, and no usable snapshot is before the cut.
        LogError: the log cannot be read.
    """
    fold = partial(_fold, log, cell, number, snapshots)
    judged = await fold(quota, {})
    bound = {ADMISSIONS.name: judged.ends.get(ADMISSIONS.name, 0)}
    decided = await fold(scheduler, bound, cycle)
    read = {ADMISSIONS.name: decided.ends.get(ADMISSIONS.name, 0)}
    kept = await fold(quota, read)
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
        lost=await _lost(log, number, judged),
    )


async def _lost(log: EventLog, number: int, judged: _Kept) -> LostJobs:
    """Compare what quota has judged, and what requests refer to, with what the log still has.

    Up to the last consistent cycle of quota, its commits prove that the requests are there. So only
    the jobs that were judged later are kept in memory, the references to missing details, and a
    bit for each offset of `details`.
    """
    admissions = Partition(ADMISSIONS.name, number)
    later: dict[str, None] = {}
    if judged.broken is not None:
        async for envelope in _events(log, admissions, judged.ends.get(ADMISSIONS.name, 0)):
            if isinstance(envelope.data, TaskAdmittedV1 | TaskRejectedV1):
                later[envelope.data.job_id] = None
    stored: dict[int, bytearray] = {}
    missing = DetailsRefs()
    async for envelope in _events(log, Partition(REQUESTS.name, number)):
        later.pop(envelope.subject, None)
        refs = DetailsRefs()
        refs.note_request(envelope)
        for one in refs.wanted:
            ref = one[0]
            if ref.partition not in stored:
                stored[ref.partition] = await _stored_details(log, ref.partition)
            if not _has(stored[ref.partition], ref.offset):
                missing.wanted.append(one)
    if missing.wanted:
        async for envelope in _events(log, admissions):
            missing.note_decision(envelope)
    return LostJobs(
        requests=tuple(later),
        details=tuple(
            dict.fromkeys(
                subject
                for _, keys, (request, subject) in missing.wanted
                if request not in missing.repeats
                and not any(key.decode() in missing.erased for key in keys)
            )
        ),
    )


async def _stored_details(log: EventLog, number: int) -> bytearray:
    """Return a bit for each offset of `details`: whether it has a record, also a damaged one."""
    bits = bytearray()

    def note(offset: int) -> None:
        if offset // 8 >= len(bits):
            bits.extend(bytes(offset // 8 + 1 - len(bits)))
        bits[offset // 8] |= 1 << offset % 8

    damaged: list[Finding] = []
    async for stored in details_of(log, number, damaged):
        if stored.record.value is not None:
            note(stored.offset)
    for finding in damaged:
        note(finding.offset)
    return bits


def _has(bits: bytearray, offset: int) -> bool:
    return offset // 8 < len(bits) and bool(bits[offset // 8] >> offset % 8 & 1)


async def _events(
    log: EventLog, partition: Partition, offset: int | None = None
) -> AsyncIterator[Envelope[Event]]:
    """The readable records of a partition, from `offset` or the first one on."""
    try:
        if offset is None:
            offset = await first_offset(log, partition)
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
    cell: str,
    number: int,
    snapshots: SnapshotStore | None,
    machine: Machine[Any],
    bounds: Mapping[str, int],
    cycle: int | None = None,
) -> _Kept:
    """Fold to the last cycle within all bounds, or before an inconsistent one.

    `bounds`: by topic, an end that the machine's records and inputs may not pass.

    Raises: LogBeginsLater: no usable snapshot is within the bounds.
    """
    fold: Fold[Any] = await begin(
        *(log, machine, cell, number, snapshots),
        lambda dump: Fold(log, machine, cell, partition=number, dump=dump),
    )
    origin = fold.reader.cycle
    done: list[tuple[int, Mapping[str, int]]] = [(origin, {})]
    if origin:
        done[0] = origin, dict(fold.position.parts())
        if (cycle is not None and origin > cycle) or _passes(done[0][1], bounds):
            firsts = await later_beginnings(log, topics_of(machine, number))
            raise LogBeginsLater(
                expired=expired_records(firsts),
                needs=f"The oldest usable snapshot of {machine.name} is of its cycle {origin}, "
                "after the cut. Cut the log later, or provide an older snapshot.",
            )

    def note(accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        done[0] = counted.commit.cycle, dict(fold.position.parts())

    def beyond(counted: CountedCycle) -> bool:
        commit = counted.commit
        reached = {machine.output.name: counted.offset + 1}
        reached |= {taken.topic: taken.next for taken in commit.inputs}
        return (cycle is not None and commit.cycle > cycle) or _passes(reached, bounds)

    fold.listeners.append(note)
    broken = None
    try:
        await fold.catch_up(beyond)
    except INCONSISTENT as error:
        broken = f"{error.code}: {error}"
    return _Kept(*done[0], broken)


def _passes(reached: Mapping[str, int], bounds: Mapping[str, int]) -> bool:
    return any(reached.get(topic, 0) > end for topic, end in bounds.items())
