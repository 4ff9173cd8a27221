"""Find out in the topic `quarantine` which reports of this node the cell refuses.

No decision answers a join, a start or a checkpoint, so an agent could not know that one was
refused. The scheduler copies each record that it refuses to `quarantine`, where the agent looks for
its own.
"""

import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.node_events import CheckpointDoneV1, NodeJoinedV1, TaskStartedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import written_by_agent
from yardmaster_schemas.topics import QUARANTINE

#: Seconds between two polls.
POLL_S: Final = 10.0
#: How many of the topic's newest records the first poll reads: the join was sent just before it.
LOOK_BACK: Final = 200
#: The most records that one poll reads.
MAX_RECORDS: Final = 1000

_KEY: Final = TypeAdapter(ReplicaKey)
#: Advice for the operator after a refused join.
HINTS: Final = {
    RefusalCode.NOT_ENROLLED: "enroll it: yard nodes enroll NODE",
    RefusalCode.BEYOND_ENROLLMENT: "enroll it with what it offers, or let its agent offer less",
    RefusalCode.NODE_TAKEN: "another agent runs as NODE, or ran a moment ago: this one ends if the "
    "other sends heartbeats, and joins when the other is lost",
    RefusalCode.STALE_INCARNATION: "its incarnation is over: move the ledger away",
    RefusalCode.NOT_ITS_AUTHOR: "the scheduler is older than this agent: upgrade it first",
}


#: Codes of refused starts which mean that the log does not place the replica in this incarnation.
NOT_HERE: Final = frozenset(
    {
        RefusalCode.NOT_ITS_AUTHOR,
        RefusalCode.UNKNOWN_TASK,
        RefusalCode.UNKNOWN_ATTEMPT,
        RefusalCode.STALE_ATTEMPT,
    }
)


#: Codes of refusals because of a record's number, whatever the record reports.
OF_NUMBER: Final = frozenset({RefusalCode.REPEATED, RefusalCode.EPOCH_AHEAD})


class Refusals:
    """Reads from `quarantine` which reports of one source the cell refused.

    It finds refused joins in one epoch, refused numbers in this epoch, and refused starts and
    checkpoints in any epoch. After a repeated append, the log may contain a record twice. The
    second one is then refused because of its number, which means nothing. `written_once` returns
    whether the record with a number was appended only once.
    """

    def __init__(
        self, log: EventLog, source: str, epoch: int, *, written_once: Callable[[int], bool]
    ) -> None:
        self._log = log
        self._partition = Partition(QUARANTINE.name)
        self._source = source
        self._epoch = epoch
        self._written_once = written_once
        #: Whether the cell refuses all further records of the source: the log has one with a higher
        #: number, which another process wrote.
        self.overtaken = False
        self._doubted = False
        self._next: int | None = None
        self._back = LOOK_BACK
        self._not_here: list[ReplicaKey] = []
        self._not_allowed: dict[ReplicaKey, str] = {}

    def take_not_here(self) -> list[ReplicaKey]:
        """Return the replicas, found since the last call, that the log does not place here."""
        found, self._not_here = self._not_here, []
        return found

    def take_not_allowed(self) -> dict[ReplicaKey, str]:
        """Return the replicas, found since the last call, whose project forbids their checkpoint.

        The value is the URI of the last checkpoint that was refused.
        """
        found, self._not_allowed = self._not_allowed, {}
        return found

    def take_doubt(self) -> bool:
        """Return whether a report was refused because of its number since the last call."""
        doubted, self._doubted = self._doubted, False
        return doubted

    async def poll(self) -> RefusalCode | None:
        """Read new records; return why a join was refused since the last poll; None if none was.

        Other findings are kept for the `take_` methods. If the topic cannot be read, return None:
        the topic only informs, so the agent continues without it.
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
            if not isinstance(event, RecordQuarantinedV1):
                continue
            match self._own(event):
                case {"type": NodeJoinedV1.TYPE, "epoch": self._epoch, "seq": int(seq)}:
                    if event.code not in OF_NUMBER:
                        code = event.code
                    elif self._written_once(seq):
                        self.overtaken = True
                case {"epoch": self._epoch} if event.code in OF_NUMBER:
                    self._doubted = True
                case {"type": TaskStartedV1.TYPE, "data": dict(start)} if event.code in NOT_HERE:
                    if (key := self._replica(start)) is not None:
                        self._not_here.append(key)
                case {"type": CheckpointDoneV1.TYPE, "data": dict(checkpoint)} if (
                    event.code is RefusalCode.CHECKPOINT_NOT_ALLOWED
                ):
                    if (key := self._replica(checkpoint)) is not None:
                        self._not_allowed[key] = str(checkpoint.get("uri"))
        return code

    def _own(self, event: RecordQuarantinedV1) -> dict[str, Any]:
        """Return the refused record as JSON if this source wrote it, else an empty object."""
        try:
            refused = from_json(base64.b64decode(event.raw_value))
        except ValueError:
            return {}  # a truncated record, or no event
        own = isinstance(refused, dict) and refused.get("source") == self._source
        return refused if own else {}

    def _replica(self, claim: dict[str, Any]) -> ReplicaKey | None:
        """Return the replica that a refused report is about, if this agent may have written it."""
        # A record that another client wrote in this agent's name has another author.
        if not written_by_agent(self._source, str(claim.get("node")), claim.get("incarnation")):
            return None
        fields = {name: claim.get(name) for name in ("task_id", "attempt", "replica")}
        with suppress(ValidationError):
            return _KEY.validate_json(to_json(fields))
        return None
