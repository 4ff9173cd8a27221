"""Find out whether another agent runs as this node, after the cell has refused this one."""

from typing import Final

from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition, StoredRecord
from yardmaster_node_agent.agent_state import Head
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events.expiring import NodeHeartbeatV1
from yardmaster_schemas.topics import HEARTBEATS

#: Records of one read.
MAX_RECORDS: Final = 1000


class RivalWatch:
    """Finds heartbeats of the node in another incarnation: another agent that runs as the node."""

    def __init__(self, log: EventLog, head: Head, partition: int) -> None:
        self._log = log
        self._head = head
        self._partition = Partition(HEARTBEATS.name, partition)
        self._next: int | None = None

    async def beats(self) -> bool:
        """Return whether another agent has sent a heartbeat since the last call.

        The first call only finds the end of the topic, and so does the first call after an error.
        The cell refuses a join also for a while after the node's last agent has died. Only a
        heartbeat that is newer than the refusal shows that another agent is alive. If heartbeats
        cannot be read, return False.
        """
        try:
            if self._next is None:
                self._next = await self._log.end(self._partition)
            while records := await self._log.read(
                self._partition, self._next, max_records=MAX_RECORDS
            ):
                self._next = records[-1].offset + 1
                if any(self._is_rival(stored) for stored in records):
                    return True
        except LogError:
            self._next = None
        return False

    def _is_rival(self, stored: StoredRecord) -> bool:
        try:
            beat = decode(stored.record).data
        except SchemaError:
            return False
        return (
            isinstance(beat, NodeHeartbeatV1)
            and beat.node == self._head.node
            and beat.incarnation != self._head.incarnation
        )
