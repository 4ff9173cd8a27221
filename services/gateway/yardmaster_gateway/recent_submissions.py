"""Which jobs were submitted lately, read from the log itself: a submission needs no views.

A second submission under an idempotency key must get the answer of the first, whichever gateway
recorded it. The log knows at once, also while the views lag or are unavailable. The newest of
`requests` are kept here, read on from where the last look ended; an older use of a key is found in
the views.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import OffsetGone
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.requests import TaskSubmittedV1

#: Records read at once.
MAX_READ: Final = 1_000
#: Writers of requests that are told apart; the one that was heard of first is forgotten.
MAX_SOURCES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it was submitted: what another submission under its key is held against."""

    body_digest: str
    #: Offset of its record in `requests`.
    offset: int
    tasks: int


class RecentSubmissions:
    """Submissions among the newest `most` requests of a cell."""

    def __init__(self, log: EventLog, partition: Partition, *, most: int) -> None:
        self._log = log
        self._partition = partition
        self._most = most
        self._lock = asyncio.Lock()
        self._next = 0
        #: The offset from which on every submission was seen at the last look.
        self.oldest = 0
        self._jobs: OrderedDict[str, Submission] = OrderedDict()
        #: The newest record of each source; quota takes none that is not above it.
        self._sources: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def find(self, job_id: str) -> Submission | None:
        """The submission of a job, if it is among the newest requests.

        Raises:
            LogError: the log cannot be read now.
        """
        async with self._lock:
            end = await self._log.end(self._partition)
            if self._next < end - self._most:
                self._next = end - self._most
            while self._next < end:
                await self._read(min(MAX_READ, end - self._next))
            self.oldest = max(0, end - self._most)
            while self._jobs and next(iter(self._jobs.values())).offset < self.oldest:
                self._jobs.popitem(last=False)
            return self._jobs.get(job_id)

    async def _read(self, count: int) -> None:
        try:
            found = await self._log.read(self._partition, self._next, max_records=count)
        except OffsetGone as gone:
            start = gone.fields.get("start")
            self._next = start if isinstance(start, int) else self._next + 1
            return
        for stored in found:
            self._take(stored)
            self._next = stored.offset + 1

    def _take(self, stored: StoredRecord) -> None:
        try:
            envelope = decode(stored.record)
        except SchemaError:
            return  # quota refuses it, and names it
        mark = (envelope.epoch, envelope.seq)
        if mark <= self._sources.get(envelope.source, (-1, -1)):
            return  # it landed late: quota takes it for a repeat, so it is no submission
        self._sources[envelope.source] = mark
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        data = envelope.data
        if isinstance(data, TaskSubmittedV1) and data.job_id not in self._jobs:
            self._jobs[data.job_id] = Submission(data.body_digest, stored.offset, data.spec.tasks)
