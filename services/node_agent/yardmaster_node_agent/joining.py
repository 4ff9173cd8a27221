"""Whether the cell refuses this node's join, as `quarantine` says.

No decision answers a join, so an agent whose join is refused would wait without a word. The
scheduler copies each record that it refuses to `quarantine`; there the agent finds its own. It
looks only while the node was given nothing: a node that gets assignments has joined.
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

#: Between two looks, in seconds.
LOOK_S: Final = 10.0
#: Records before the topic's end that the first look reads: the join was sent a moment ago.
LOOK_BACK: Final = 200
#: The most records that one look reads.
MAX_RECORDS: Final = 1000

#: What the operator does about a refused join.
HINTS: Final = {
    RefusalCode.NOT_ENROLLED: "enroll it: yard nodes enrol NODE",
    RefusalCode.BEYOND_ENROLMENT: "enroll it with what it offers, or let its agent offer less",
    RefusalCode.REPEATED: "the log has newer records of this ledger, as after the ledger's return "
    "from a backup: move the ledger away, and the node joins as a new incarnation",
    RefusalCode.STALE_INCARNATION: "its incarnation is over: move the ledger away",
    RefusalCode.NOT_ITS_AUTHOR: "the scheduler is older than this agent: upgrade it first",
}


class JoinRefusals:
    """Reads `quarantine` for the joins of one source that were written in one epoch."""

    def __init__(self, log: EventLog, source: str, epoch: int) -> None:
        self._log = log
        self._place = Partition(QUARANTINE.name)
        self._source = source
        self._epoch = epoch
        self._next: int | None = None
        self._back = LOOK_BACK

    async def look(self) -> RefusalCode | None:
        """Why a join was refused since the last look; None when none was.

        None too when the topic cannot be read: it only informs, so that ends no agent.
        """
        code: RefusalCode | None = None
        try:
            if self._next is None:
                self._next = max(0, await self._log.end(self._place) - self._back)
                self._back = 0
            records = await self._log.read(self._place, self._next, max_records=MAX_RECORDS)
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
            return False  # cut, or never an event
        return isinstance(refused, dict) and (
            refused.get("type"),
            refused.get("source"),
            refused.get("epoch"),
        ) == (NodeJoinedV1.TYPE, self._source, self._epoch)
