"""Compares the records of `details` with the requests that refer to them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogCorrupt, UnknownTopic
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_eventlog.reader import details_digest, first_offset
from yardmaster_runtime.replay.prover import DetailsRefs
from yardmaster_runtime.replay.report import Finding
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1
from yardmaster_schemas.topics import DETAILS

#: Records of `details` that are read at once.
PAGE: Final = 1000


@dataclass(slots=True)
class DetailsProof:
    """The records of `details`: findings and counts."""

    wrong: list[Finding] = field(default_factory=list)
    #: The subjects of the requests whose details are missing without a DetailsErased.
    missing: list[str] = field(default_factory=list)
    checked: int = 0
    gone: int = 0
    unnamed: int = 0


async def check_details(log: EventLog, refs: DetailsRefs) -> DetailsProof:
    """Compare the references of requests with `details`; findings are in offset order."""
    there: dict[tuple[int, int], tuple[str | None, bool]] = {}
    found = DetailsProof()
    for number in sorted({0} | {ref.partition for ref, _, _ in refs.wanted}):
        async for stored in details_of(log, number, found.wrong):
            value = stored.record.value
            digest = None if value is None else details_digest(value)
            there[number, stored.offset] = (digest, _as_written(stored))
    damaged = {(one.partition, one.offset) for one in found.wrong}
    for ref, keys, (request, subject) in refs.wanted:
        digest, as_written = there.get((ref.partition, ref.offset), (None, False))
        if (ref.partition, ref.offset) in damaged:
            continue
        if digest is not None:
            found.checked += 1
            text = ""
            if digest != ref.digest:
                text = f"it is not what request {request} about {subject} recorded"
            elif not as_written:
                text = "its key or its headers do not match its value"
        elif request in refs.repeats or any(key.decode() in refs.erased for key in keys):
            found.gone += 1
            continue
        else:
            text = (
                f"it is missing without a DetailsErased; request {request} about {subject} "
                "refers to it"
            )
            found.missing.append(subject)
        if text:
            found.wrong.append(Finding(DETAILS.name, ref.partition, ref.offset, text))
    named = {(ref.partition, ref.offset) for ref, _, _ in refs.wanted}
    found.unnamed = sum(digest is not None and at not in named for at, (digest, _) in there.items())
    found.wrong.sort(key=lambda finding: (finding.partition, finding.offset))
    return found


async def details_of(
    log: EventLog, number: int, wrong: list[Finding]
) -> AsyncIterator[StoredRecord]:
    """Read all details of a partition; append a finding to `wrong` for each unreadable record."""
    partition = Partition(DETAILS.name, number)
    try:
        offset, most = await first_offset(log, partition), PAGE
    except UnknownTopic:
        return
    while True:
        try:
            records = await log.read(partition, offset, max_records=most)
        except LogCorrupt as error:
            damaged = error.fields.get("offset")
            if isinstance(damaged, int) and most > 1:
                most = 1  # the records before the damaged one are readable
                continue
            at = damaged if isinstance(damaged, int) else offset
            wrong.append(Finding(partition.topic, number, at, str(error)))
            if not isinstance(damaged, int):
                return
            offset, most = damaged + 1, PAGE
            continue
        for stored in records:
            yield stored
        if not records:
            return
        offset = records[-1].offset + 1


def _as_written(stored: StoredRecord) -> bool:
    """Whether key and headers of a details record match its value."""
    try:
        envelope = decode(stored.record)
    except SchemaError:
        return False
    data = envelope.data
    keys = [envelope.subject]
    if isinstance(data, RequestNotedV1):
        keys = [f"note.{data.salt}"]
    elif isinstance(data, JobDetailedV1):
        # A submission that may be a repeat has a key of its own, so it replaces no other record.
        keys.append(f"{envelope.subject}.{data.salt}")
    return stored.record.key in [key.encode() for key in keys]
