"""How far each node's topic was seen to reach, and which topics have lost copies since.

The topics of nodes hold copies, and one broker without replicas may lose their ends in a power
loss, while `decisions` is whole. A topic has lost copies if it ends before an offset that this
relay has seen in it, or if its newest copy is older than what `decisions` has for the node. The
relay copies them again; agents ignore repeats. This finds the copies that the agent has not read;
an agent that has read lost copies finds that itself and joins again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from yardmaster_eventlog.port import StoredRecord
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import (
    AllocationRevokedV1,
    NodeLostV1,
    PreemptionRequestedV1,
    SlotsAllocatedV1,
    StopRequestedV1,
)
from yardmaster_schemas.relayed import OFFSET_HEADER, relayed_from

#: The header of copies with the lowest offset in `decisions` that another node misses.
BEHIND_HEADER: Final = "yard_behind"
#: Instead of the offset of a topic's newest copy, if the topic may have lost all of them.
NO_COPY: Final = -1


@dataclass(slots=True)
class TopicEnds:
    """The ends of the nodes' topics, and the nodes that need copies again."""

    #: The lowest end that each node's topic can have.
    _ends: dict[str, int] = field(default_factory=dict)
    #: Nodes that may lack copies, each with the offset in `decisions` of the newest one it has.
    suspects: dict[str, int] = field(default_factory=dict)

    def appended(self, node: str, offset: int, count: int) -> bool:
        """Take an append of `count` records; return whether the topic had lost records before."""
        shorter = offset < self._ends.get(node, 0)
        self._ends[node] = offset + count
        if shorter:
            self.suspects[node] = NO_COPY
        return shorter

    def found(self, node: str, last: StoredRecord | None, end: int | None = None) -> None:
        """Take a topic's newest copy, and its end where that is not the offset after it."""
        self._ends[node] = end if end is not None else 0 if last is None else last.offset + 1
        self.suspects[node] = relayed(last)[0]

    def forget(self, node: str) -> None:
        """Take that nothing reads a node's topic any more."""
        self._ends.pop(node, None)
        self.suspects.pop(node, None)

    def known(self) -> Mapping[str, int]:
        """Return the lowest end that each node's topic can have, if it ever had a copy."""
        return {node: end for node, end in self._ends.items() if end > 0}


def nodes_to_notify(event: Event) -> Iterable[str]:
    """The nodes whose agents must act on a decision, each once."""
    match event:
        case SlotsAllocatedV1():
            return dict.fromkeys(placement.node for placement in event.placements)
        case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
            return dict.fromkeys(event.nodes)
        case NodeLostV1():
            return (event.node,)
        case _:
            return ()


def relayed(last: StoredRecord | None) -> tuple[int, int]:
    """Return the `yard_offset` of a newest copy, and minus the offset to continue from."""
    headers = dict(last.record.headers) if last is not None else {}
    offset = relayed_from(headers.get(OFFSET_HEADER, b"")).offset
    behind = int(text) if (text := headers.get(BEHIND_HEADER, b"")).isdigit() else -1
    return offset, -(behind if behind >= 0 else offset)
