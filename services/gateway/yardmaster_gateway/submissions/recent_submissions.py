"""A cache of the newest submissions, read from the log itself, so that submitting needs no views.

A repeated submission with the same idempotency key must get the answer of the first one, whichever
gateway recorded it. The log contains it immediately, even if the views are behind or unavailable.
The cache covers the newest records of `requests`; older submissions are found in the views.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_gateway.submissions.shared_end import SharedEnd
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import TaskSubmittedV1
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS

#: Records read at once.
MAX_READ: Final = 1_000
#: The longest wait for a record that the log contains; then the end is compared, in seconds.
WAIT_S: Final = 5.0
#: The most sources whose newest record is remembered; the oldest source is dropped first.
MAX_SOURCES: Final = 10_000


@dataclass(frozen=True, slots=True)
class RecordedSubmission:
    """A submission in the log, with which a repetition of the same key is compared."""

    body_digest: str
    #: Offset of its record in `requests`.
    offset: int
    tasks: int
    project: str
    #: The id of the user, as authenticated.
    actor: str


class RecentSubmissions:
    """Submissions among the newest `max_requests` requests of a cell."""

    def __init__(
        self, log: EventLog, partition: Partition, telemetry: Telemetry, *, max_requests: int
    ) -> None:
        self._log = log
        self._end = SharedEnd(log, partition, telemetry)
        self._partition = partition
        self._max_requests = max_requests
        self._lock = asyncio.Lock()
        self._next = 0
        #: The latest append time of the requests that were read (ms, the log's clock).
        self._newest_ms = 0
        #: Every submission from this offset to the last record that was read is known.
        self.oldest = 0
        self._jobs: OrderedDict[str, RecordedSubmission] = OrderedDict()
        #: The newest (epoch, seq) of each source; quota accepts only higher ones.
        self._sources: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def find(self, job_id: str, *, before: int | None = None) -> RecordedSubmission | None:
        """The submission of a job, or None if it is not among the newest requests.

        All records that were in the log at the time of the call are considered, at the cost of a
        request for the end. With `before`, an offset after a record that the caller knows to be in
        the log, the records before it are enough, and the end is not requested.

        Raises:
            LogError: the log cannot be read.
        """
        end = before if before is not None else await self._end.read()
        async with self._lock:
            await self._read_to(end)
        return self._jobs.get(job_id)

    def forget(self, job_id: str, offset: int) -> None:
        """Forget the submission at an offset, which quota refused as a record."""
        known = self._jobs.get(job_id)
        if known is not None and known.offset == offset:
            del self._jobs[job_id]

    async def _read_to(self, end: int) -> None:
        """Read the records before `end` that were not read yet, and drop the oldest ones."""
        self._next = max(self._next, end - self._max_requests)
        # The log contains records up to `end`, so waiting for them replaces a request for the end.
        exist = True
        while self._next < end:
            if not await self._read(buffered_only=exist):
                exist = await self._log.wait({self._partition: self._next}, WAIT_S)
        self.oldest = max(0, self._next - self._max_requests)
        while self._jobs and next(iter(self._jobs.values())).offset < self.oldest:
            self._jobs.popitem(last=False)

    async def _read(self, *, buffered_only: bool) -> bool:
        """Read the next records; return False if there were none."""
        try:
            found = await self._log.read(
                self._partition, self._next, max_records=MAX_READ, buffered_only=buffered_only
            )
        except OffsetGone as gone:
            start = gone.fields.get("start")
            self._next = start if isinstance(start, int) else self._next + 1
            return True
        for stored in found:
            self._newest_ms = max(self._newest_ms, stored.appended_ms)
            self._add(stored)
            self._next = stored.offset + 1
        return bool(found)

    def _add(self, stored: StoredRecord) -> None:
        """Keep a request if it is the first submission of its job and quota accepts its number."""
        try:
            envelope = decode(stored.record)
        except SchemaError:
            return  # quota refuses this record too
        if envelope.epoch > self._newest_ms + MAX_EPOCH_AHEAD_MS:
            return  # quota refuses it, unless it has seen later appends; then the views have it
        mark = (envelope.epoch, envelope.seq)
        if mark <= self._sources.get(envelope.source, (-1, -1)):
            return  # the record arrived late: quota refuses it as repeated, so it does not count
        self._sources[envelope.source] = mark
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        data = envelope.data
        if isinstance(data, TaskSubmittedV1) and data.job_id not in self._jobs:
            self._jobs[data.job_id] = RecordedSubmission(
                data.body_digest, stored.offset, data.spec.tasks, data.project, envelope.actor.id
            )
