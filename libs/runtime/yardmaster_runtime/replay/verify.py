"""Proves the log of a cell: each machine's topic, then `details`, then the audit.

`prover.py` proves one machine: it decides every cycle again and compares bytes. The first record
that differs ends the proof of that machine, because nothing can be derived from a wrong state.
Cycles decided by older rules are not decided again; the report names those ranges. The audit covers
all cycles.

If the first records of a topic have expired, the machines that read it are proved from the oldest
usable snapshot on, and nothing is audited: the audit folds every record itself, because it shares
no code with the machines and so cannot read their snapshots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from yardmaster_core import audit
from yardmaster_core.commit import CountedCycle
from yardmaster_core.errors import CoreError
from yardmaster_core.machine import Machine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogCorrupt, LogTruncated, OffsetGone, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import decoded, first_offset
from yardmaster_eventlog.snapshots import SnapshotStore
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.errors import LogBeginsLater, MachineError
from yardmaster_runtime.machine.beginning import expired_records, later_beginnings
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import MachineInput
from yardmaster_runtime.parallel import Progress, unreported
from yardmaster_runtime.replay.details import check_details
from yardmaster_runtime.replay.origin import begin
from yardmaster_runtime.replay.prover import DetailsRefs, Prover
from yardmaster_runtime.replay.report import Finding, MachineProof, Report
from yardmaster_schemas.errors import SchemaError, YardmasterError
from yardmaster_schemas.topics import INPUT_ORDER


@dataclass(frozen=True, slots=True)
class MachineResult:
    """The proof of one machine's topic, and what the report of the whole log needs of it."""

    proof: MachineProof
    finding: Finding | None
    unproved: Mapping[Partition, tuple[int, int]]
    refs: DetailsRefs


async def verify(
    log: EventLog,
    machines: Sequence[Machine[Any]],
    cell: str,
    *,
    partition: int = 0,
    promises: bool = True,
    snapshots: SnapshotStore | None = None,
) -> Report:
    """Prove the log of a cell: every machine, then `details`, then (with `promises`) the audit.

    Writes nothing, and uses `snapshots` only where the first records of a topic have expired. Wrong
    content is a finding, not an error.

    Raises:
        LogBeginsLater: the first records have expired, and a machine has no usable snapshot.
        LogUnavailable, LogClosed.
    """
    results = [
        await prove(log, machine, cell, partition=partition, snapshots=snapshots)
        for machine in machines
    ]
    broken = await audit_whole(log, partition) if promises else ()
    return await conclude(log, results, broken, partition)


async def prove(
    log: EventLog,
    machine: Machine[Any],
    cell: str,
    *,
    partition: int = 0,
    snapshots: SnapshotStore | None = None,
    progress: Progress = unreported,
) -> MachineResult:
    """Prove the topic of one machine, as `verify`."""
    prover = await begin(
        *(log, machine, cell, partition, snapshots),
        partial(_prover, log, machine, cell, partition),
    )
    finding = await replay(prover, progress)
    unproved = await unproved_of(log, prover)
    return MachineResult(prover.proved(), finding, unproved, prover.refs)


async def conclude(
    log: EventLog,
    results: Sequence[MachineResult],
    promises: tuple[audit.Finding, ...],
    partition: int = 0,
) -> Report:
    """Return the report on all machines of a cell, after a comparison of `details`."""
    refs = DetailsRefs()
    for result in results:
        refs.wanted += result.refs.wanted
        refs.erased |= result.refs.erased
        refs.repeats |= result.refs.repeats
    details = await check_details(log, refs)
    findings = [result.finding for result in results if result.finding is not None]
    return Report(
        findings=tuple(_once([*findings, *details.wrong])),
        promises=promises,
        proved=tuple(result.proof for result in results),
        unproved=together([result.unproved for result in results]),
        details_checked=details.checked,
        details_gone=details.gone,
        details_unnamed=details.unnamed,
        expired=await _expired(log, partition),
    )


def together(
    parts: Sequence[Mapping[Partition, tuple[int, int]]],
) -> dict[Partition, tuple[int, int]]:
    """Return the ranges that some machine has not reached."""
    ranges: dict[Partition, tuple[int, int]] = {}
    for part in parts:
        for partition, (first, end) in part.items():
            before = ranges.get(partition, (first, end))
            ranges[partition] = min(first, before[0]), max(end, before[1])
    return ranges


async def _expired(log: EventLog, partition: int) -> Mapping[Partition, int]:
    return await later_beginnings(log, [Partition(topic, partition) for topic in INPUT_ORDER])


def _prover(
    log: EventLog, machine: Machine[Any], cell: str, partition: int, dump: Any
) -> Prover[Any]:
    return Prover(log, machine, cell, partition, dump=dump)


async def replay(fold: Fold[Any], progress: Progress) -> Finding | None:
    """Fold the topic of one machine; return the contradiction that ends its proof, or None."""
    end = max(1, await fold.log.end(fold.own))

    def tell(counted: CountedCycle) -> bool:
        progress(min(1.0, counted.offset / end))
        return False

    try:
        await fold.catch_up(tell)
    except (MachineError, CoreError, LogCorrupt, LogTruncated) as error:
        return _finding(fold, error)
    return None


def _finding(fold: Fold[Any], error: YardmasterError) -> Finding:
    """Convert the error that ended a proof to a finding at the record that the error names."""
    fields = error.fields
    partition = fields.get("partition")
    topic = str(fields.get("topic", fold.own.topic))
    number = fold.own.number
    if isinstance(partition, Partition):
        topic, number = partition.topic, partition.number
    elif isinstance(partition, int):
        number = partition
    offset = fields.get("offset")
    return Finding(
        topic=topic,
        partition=number,
        # Without an offset, a decision could not be applied; the last record read is its commit.
        offset=offset if isinstance(offset, int) else fold.reader.next - 1,
        found=str(fields["found"]) if "found" in fields and offset is not None else str(error),
        machine=fold.machine.name,
    )


async def unproved_of(log: EventLog, fold: Fold[Any]) -> Mapping[Partition, tuple[int, int]]:
    """Return the ranges of topics behind the last cycle that a fold has reached."""
    machine = fold.machine
    reached = {fold.own: fold.reader.boundary}
    for partition, source in fold.inputs.items():
        taken = fold.reader.inputs.get((partition.topic, partition.number), 0)
        if not isinstance(source, MachineInput) or await _calls(log, machine, partition, taken):
            reached[partition] = taken
    ends = {partition: await log.end(partition) for partition in reached}
    return {
        partition: (offset, ends[partition])
        for partition, offset in reached.items()
        if offset < ends[partition]
    }


async def _calls(log: EventLog, machine: Machine[Any], partition: Partition, offset: int) -> bool:
    """Whether a record at `offset` or later calls for a cycle of the machine.

    A machine may leave records that call for no cycle unconsumed, so they do not count as unproved.
    An unreadable record counts as one that calls for a cycle.
    """
    end = await log.end(partition)
    try:
        while offset < end:
            records = await log.read(partition, offset)
            if any(machine.calls_for_cycle(decode(stored.record).data) for stored in records):
                return True
            offset = records[-1].offset + 1
    except (SchemaError, LogCorrupt):
        return True
    return False


async def audit_whole(
    log: EventLog, partition: int = 0, progress: Progress = unreported
) -> tuple[audit.Finding, ...]:
    """Audit a cell's log as `audit_log`, if it still has its first records."""
    if await _expired(log, partition):
        return ()
    return await audit_log(log, partition, progress)


async def audit_log(
    log: EventLog, partition: int = 0, progress: Progress = unreported
) -> tuple[audit.Finding, ...]:
    """Audit a cell's log; a claim that was refused breaks no guarantee.

    Raises: LogBeginsLater: the first records of a topic have expired.
    """
    auditor = audit.Audit(honest_agents=False)
    # Outputs are read before inputs, so that the inputs of each cycle read exist by then.
    for at, topic in enumerate(reversed(INPUT_ORDER)):
        source, offset = Partition(topic, partition), 0
        try:
            end = max(1, await log.end(source))
            while records := await log.read(source, offset):
                for stored in records:
                    envelope = decoded(stored)
                    digest = digest_of(stored.record)
                    auditor.feed(topic, partition, stored.offset, envelope, digest)
                offset = records[-1].offset + 1
                progress((at + min(1.0, offset / end)) / len(INPUT_ORDER))
        except OffsetGone:
            raise LogBeginsLater(
                expired=expired_records({source: await first_offset(log, source)}),
                needs="The audit needs every record.",
            ) from None
        except (LogCorrupt, UnknownTopic):
            # The proof names the damaged record; the audit covers the readable part.
            continue
    return auditor.finish()


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Keep one finding per record: two machines may find the same one."""
    seen = set()
    kept = []
    for finding in findings:
        record = (finding.topic, finding.partition, finding.offset)
        if record not in seen:
            seen.add(record)
            kept.append(finding)
    return kept
