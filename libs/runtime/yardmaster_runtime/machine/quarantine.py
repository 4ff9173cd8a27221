"""Copies of refused records, for people; no machine reads them.

The commit names each refused record, and the log still contains it. So a copy that cannot be
written is only counted: quarantine must not stop a cell.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Final

from yardmaster_eventlog.codec import encode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.machine.inputs import RefusedRecord
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.topics import QUARANTINE

RAW_KEY_BYTES: Final = 6_000
RAW_VALUE_BYTES: Final = 65_536
FOUND_CHARS: Final = 256
#: Well below what the topic accepts.
BATCH_BYTES: Final = QUARANTINE.max_batch_bytes // 2


class Quarantine:
    """Writes the copies of one term's refused records."""

    def __init__(
        self, log: EventLog, machine: str, source: str, term: int, metrics: RuntimeMetrics
    ) -> None:
        self._log = log
        self._machine = machine
        #: Not the machine's own source, whose `seq` must have no gaps.
        self._source = f"{source}.quarantine"
        self._term = term
        self._seq = 0
        self._metrics = metrics

    async def put(self, refused: Sequence[RefusedRecord], now_ms: int, limit: int) -> None:
        """Copy the first `limit` refused records of a cycle, with a warning for each."""
        telemetry = self._metrics.telemetry
        for one in refused:
            self._metrics.refused.labels(one.stored.partition.topic, one.code.value).inc()
        for one in refused[:limit]:
            telemetry.warn(
                "record_refused",
                topic=one.stored.partition.topic,
                partition=one.stored.partition.number,
                offset=one.stored.offset,
                code=one.code.value,
            )
        left_out = len(refused) - min(len(refused), limit)
        if left_out:
            self._metrics.quarantine_left_out.inc(left_out)
            telemetry.warn("records_refused", more=left_out)
        for batch in self._batches(refused[:limit], now_ms):
            try:
                await self._log.append(Partition(QUARANTINE.name), batch)
            except LogError as error:
                self._metrics.quarantine_left_out.inc(len(batch))
                telemetry.warn("quarantine_failed", code=error.code, records=len(batch))

    def _batches(self, refused: Sequence[RefusedRecord], now_ms: int) -> Iterator[list[Record]]:
        """Encode the copies of refused records, in batches of at most BATCH_BYTES."""
        batch: list[Record] = []
        size = 0
        for one in refused:
            record = self._copy(one, now_ms)
            if batch and size + record.size > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += record.size
        if batch:
            yield batch

    def _copy(self, one: RefusedRecord, now_ms: int) -> Record:
        stored = one.stored
        event = RecordQuarantinedV1(
            topic=stored.partition.topic,
            partition=stored.partition.number,
            offset=stored.offset,
            code=one.code,
            found=one.found[:FOUND_CHARS],
            raw_key=base64.b64encode(stored.record.key[:RAW_KEY_BYTES]).decode(),
            raw_value=base64.b64encode((stored.record.value or b"")[:RAW_VALUE_BYTES]).decode(),
        )
        envelope = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=self._source,
            epoch=self._term,
            seq=self._seq,
            subject=stored.partition.topic,
            time_ms=now_ms,
            actor=Actor(kind=ActorKind.SERVICE, id=self._machine),
            data=event,
        )
        self._seq += 1
        return encode(envelope, stored.partition.topic)
