"""How far each node's topic was seen to reach, and which topics have lost copies since.

The relay copies decisions from the topic `decisions` to one topic per node. A single broker without
replicas may lose the newest copies in a power loss while `decisions` stays whole. A node's topic
has lost copies if it ends before an offset that this relay has seen in it, or if its newest copy is
older than the newest decision for the node. The relay then copies these decisions again; agents
ignore repeats. This module finds lost copies that the agent has not read. If the agent had read a
copy that the topic lost later, the agent finds the loss itself and joins again.

A cut of the log deletes all copies, because `decisions` lacks the originals of the newest ones, and
will have other decisions at their offsets. Kafka forgets a deletion if the broker crashes within a
minute. Therefore a copy contains the generation of the log, and copies of another one do not count.
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

#: The header of a copy that contains the lowest offset in `decisions` that another node misses.
BEHIND_HEADER: Final = "yard_behind"
#: The header of a copy that contains the generation of the log, the number of its cuts. A log that
#: was never cut has copies without it.
GENERATION_HEADER: Final = "yard_generation"
#: Stands for the offset of a topic's newest copy if the topic may have lost all its copies.
NO_COPY: Final = -1


@dataclass(slots=True)
class TopicEnds:
    """The ends of the nodes' topics, and the nodes that need copies again."""

    #: The generation of the log; copies of another one do not count.
    generation: int = 0
    #: By node, the offset before which the node's topic cannot end unless it lost copies.
    _ends: dict[str, int] = field(default_factory=dict)
    #: Nodes whose topics may lack copies; the value is the offset in `decisions` of the newest copy
    #: in the node's topic.
    suspects: dict[str, int] = field(default_factory=dict)

    def appended(self, node: str, offset: int, count: int) -> bool:
        """Note that `count` records were appended at `offset` to a node's topic.

        Return whether the topic had lost records before; the node is then a suspect.
        """
        shorter = offset < self._ends.get(node, 0)
        self._ends[node] = offset + count
        if shorter:
            self.suspects[node] = NO_COPY
        return shorter

    def found(self, node: str, last: StoredRecord | None, end: int | None = None) -> None:
        """Note the newest copy in a node's topic, and make the node a suspect.

        `end`: the end of the topic; None: it is the offset after the newest copy.
        """
        self._ends[node] = end if end is not None else 0 if last is None else last.offset + 1
        self.suspects[node] = relayed(last, self.generation)[0]

    def forget(self, node: str) -> None:
        """Remove a node whose topic is read by no agent any more."""
        self._ends.pop(node, None)
        self.suspects.pop(node, None)

    def known(self) -> Mapping[str, int]:
        """Return, for each node that ever had a copy, the end that its topic must have reached."""
        return {node: end for node, end in self._ends.items() if end > 0}


def nodes_to_notify(event: Event) -> Iterable[str]:
    """Return the nodes whose agents must act on a decision, each node once."""
    match event:
        case SlotsAllocatedV1():
            return dict.fromkeys(placement.node for placement in event.placements)
        case PreemptionRequestedV1() | StopRequestedV1() | AllocationRevokedV1():
            return dict.fromkeys(event.nodes)
        case NodeLostV1():
            return (event.node,)
        case _:
            return ()


def relayed(last: StoredRecord | None, generation: int) -> tuple[int, int]:
    """Return a copy's offset in `decisions`, and the negated offset from which to continue.

    `generation` is that of the log; a copy of another generation does not count.

    A relay continues from the lowest offset that any node misses (`BEHIND_HEADER`), else from the
    copy itself. The second value is negated so that `max` over the copies of all nodes prefers the
    earliest offset among copies with the same first value. Without a copy: (-1, 1).
    """
    headers = dict(last.record.headers) if last is not None else {}
    if headers.get(GENERATION_HEADER, b"0") != str(generation).encode():
        headers = {}
    offset = relayed_from(headers.get(OFFSET_HEADER, b"")).offset
    behind = int(text) if (text := headers.get(BEHIND_HEADER, b"")).isdigit() else -1
    return offset, -(behind if behind >= 0 else offset)
