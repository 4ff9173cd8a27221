"""Proves the log of a cell: each machine's topic, then `details`, then the audit.

`prover.py` proves one machine: it decides every cycle again and compares bytes. The first record
that differs ends the proof of that machine, because nothing can be derived from a wrong state.
Cycles decided by older rules are not decided again; the report names those ranges. The audit covers
all cycles.

If the first records of a topic have expired, the machines that read it are proved from the oldest
usable snapshot on, and nothing is audited: the audit folds every record itself, because it shares
no code with the machines and so cannot read their snapshots.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from yardmaster_core import audit
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
from yardmaster_runtime.machine.inputs import MachineInput
from yardmaster_runtime.replay.details import check_details
from yardmaster_runtime.replay.origin import begin
from yardmaster_runtime.replay.prover import DetailsRefs, Prover
from yardmaster_runtime.replay.report import Finding, Report
from yardmaster_schemas.errors import SchemaError, YardmasterError
from yardmaster_schemas.topics import INPUT_ORDER


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
    findings: list[Finding] = []
    proved = []
    unproved: dict[Partition, tuple[int, int]] = {}
    refs = DetailsRefs()
    for machine in machines:
        prover = await begin(
            *(log, machine, cell, partition, snapshots),
            partial(_prover, log, machine, cell, partition),
        )
        finding = await _prove(prover)
        if finding is not None:
            findings.append(finding)
        proved.append(prover.proved())
        await _note_unproved(log, prover, unproved)
        refs.wanted += prover.refs.wanted
        refs.erased |= prover.refs.erased
        refs.repeats |= prover.refs.repeats
    details = await check_details(log, refs)
    findings += details.wrong
    broken: tuple[audit.Finding, ...] = ()
    expired = await later_beginnings(log, [Partition(topic, partition) for topic in INPUT_ORDER])
    if promises and not expired:
        broken = await audit_log(log, partition)
    return Report(
        findings=tuple(_once(findings)),
        promises=broken,
        proved=tuple(proved),
        unproved=unproved,
        details_checked=details.checked,
        details_gone=details.gone,
        details_unnamed=details.unnamed,
        expired=expired,
    )


def _prover(
    log: EventLog, machine: Machine[Any], cell: str, partition: int, dump: Any
) -> Prover[Any]:
    return Prover(log, machine, cell, partition, dump=dump)


async def _prove(prover: Prover[Any]) -> Finding | None:
    """Replay the topic of one machine; return the contradiction that ends its proof, or None."""
    try:
        await prover.catch_up()
    except (MachineError, CoreError, LogCorrupt, LogTruncated) as error:
        return _finding(prover, error)
    return None


def _finding(prover: Prover[Any], error: YardmasterError) -> Finding:
    """Convert the error that ended a proof to a finding at the record that the error names."""
    fields = error.fields
    partition = fields.get("partition")
    topic = str(fields.get("topic", prover.own.topic))
    number = prover.own.number
    if isinstance(partition, Partition):
        topic, number = partition.topic, partition.number
    elif isinstance(partition, int):
        number = partition
    offset = fields.get("offset")
    return Finding(
        topic=topic,
        partition=number,
        # Without an offset, a decision could not be applied; the last record read is its commit.
        offset=offset if isinstance(offset, int) else prover.reader.next - 1,
        found=str(fields["found"]) if "found" in fields and offset is not None else str(error),
        machine=prover.machine.name,
    )


async def _note_unproved(
    log: EventLog, prover: Prover[Any], unproved: dict[Partition, tuple[int, int]]
) -> None:
    """Add to `unproved` the ranges of topics behind the last cycle that the proof has reached."""
    machine = prover.machine
    reached = {prover.own: prover.reader.boundary}
    for partition, source in prover.inputs.items():
        taken = prover.reader.inputs.get((partition.topic, partition.number), 0)
        if not isinstance(source, MachineInput) or await _calls(log, machine, partition, taken):
            reached[partition] = taken
    for partition, offset in reached.items():
        end = await log.end(partition)
        first = min(offset, unproved.get(partition, (offset, 0))[0])
        if first < end:
            unproved[partition] = (first, end)


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


async def audit_log(log: EventLog, partition: int = 0) -> tuple[audit.Finding, ...]:
    """Audit a cell's log; a claim that was refused breaks no guarantee.

    Raises: LogBeginsLater: the first records of a topic have expired.
    """
    auditor = audit.Audit(honest_agents=False)
    # Outputs are read before inputs, so that the inputs of each cycle read exist by then.
    for topic in reversed(INPUT_ORDER):
        source, offset = Partition(topic, partition), 0
        try:
            while records := await log.read(source, offset):
                for stored in records:
                    envelope = decoded(stored)
                    digest = digest_of(stored.record)
                    auditor.feed(topic, partition, stored.offset, envelope, digest)
                offset = records[-1].offset + 1
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
