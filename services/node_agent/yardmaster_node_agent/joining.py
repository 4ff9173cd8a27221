"""Find out in the topic `quarantine` whether the cell refuses this node's join.

No decision answers a join, so an agent could not report that its join was refused. The scheduler
copies each record that it refuses to `quarantine`, where the agent looks for its own joins. The
agent polls only while the node has no assignments: a node that gets assignments has joined.
"""

import base64
from typing import Final

from pydantic_core import from_json

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import QUARANTINE

#: Seconds between two polls.
POLL_S: Final = 10.0
#: Records before the topic's end that the first poll reads; the join was sent just before.
LOOK_BACK: Final = 200
#: The most records that one poll reads.
MAX_RECORDS: Final = 1000

#: Advice for the operator after a refused join.
HINTS: Final = {
    RefusalCode.NOT_ENROLLED: "enroll it: yard nodes enrol NODE",
    RefusalCode.BEYOND_ENROLMENT: "enroll it with what it offers, or let its agent offer less",
    RefusalCode.REPEATED: "the log has newer records of this ledger, as after the ledger's return "
    "from a backup: move the ledger away, and the node joins as a new incarnation",
    RefusalCode.STALE_INCARNATION: "its incarnation is over: move the ledger away",
    RefusalCode.NOT_ITS_AUTHOR: "the scheduler is older than this agent: upgrade it first",
}


class JoinRefusals:
    """Reads from `quarantine` the joins of one source in one epoch."""

    def __init__(self, log: EventLog, source: str, epoch: int) -> None:
        self._log = log
        self._partition = Partition(QUARANTINE.name)
        self._source = source
        self._epoch = epoch
        self._next: int | None = None
        self._back = LOOK_BACK

    async def poll(self) -> RefusalCode | None:
        """Return why a join was refused since the last poll; None if none was.

        Also None if the topic cannot be read: it is only informative, so the agent continues.
        """
        code: RefusalCode | None = None
        try:
            if self._next is None:
                self._next = max(0, await self._log.end(self._partition) - self._back)
                self._back = 0
            records = await self._log.read(self._partition, self._next, max_records=MAX_RECORDS)
        except LogError:
            self._next = None
            return None
        for stored in records:
            self._next = stored.offset + 1
            try:
                event = decode(stored.record).data
            except SchemaError:
                continue
            if isinstance(event, RecordQuarantinedV1) and self._own_join(event):
                code = event.code
        return code

    def _own_join(self, event: RecordQuarantinedV1) -> bool:
        try:
            refused = from_json(base64.b64decode(event.raw_value))
        except ValueError:
            return False  # a truncated record, or no event
        return isinstance(refused, dict) and (
            refused.get("type"),
            refused.get("source"),
            refused.get("epoch"),
        ) == (NodeJoinedV1.TYPE, self._source, self._epoch)
