"""Which nodes may join a cell, and what they may offer.

A cell is open until its first node is enrolled: any agent that can write to the log may join and
offer anything (one machine, a demo). From then on the cell stays closed, even when every node was
revoked again: a join counts only from an enrolled node, and only within its enrollment. A node
that already joined and is not covered by its enrollment is barred: it keeps its tasks and gets no
new ones until its enrollment covers it or it joins with less.
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Enrollment
from yardmaster_schemas.reasons import RefusalCode


class Enrolled:
    """The enrollment of a node; without `config`, it was revoked."""

    __slots__ = ("config", "hash", "name", "revision")

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: Enrollment | None = None
        self.revision = 0
        self.hash = 0

    def facts(self) -> tuple[object, ...]:
        """All that the state's digest covers; name and revision determine the rest."""
        return ("enrolled", self.name, self.revision, self.config is None)


def join_refusal(enrolled: Mapping[str, Enrolled], event: NodeJoinedV1) -> RefusalCode | None:
    """The reason to refuse the join, or None."""
    if not enrolled:
        return None
    row = enrolled.get(event.node)
    if row is None or row.config is None:
        return RefusalCode.NOT_ENROLLED
    within = covers(
        row.config, event.pool, event.gpus, event.node_type, event.labels, event.address
    )
    return None if within else RefusalCode.BEYOND_ENROLLMENT


def is_barred(enrolled: Mapping[str, Enrolled], node: Node, pool: str) -> bool:
    """Whether a node of `pool` gets no new tasks because its enrollment does not cover it."""
    if not enrolled:
        return False
    row = enrolled.get(node.name)
    if row is None or row.config is None:
        return True
    return not covers(row.config, pool, node.gpus, node.node_type, node.labels, node.address)


def covers(
    enrollment: Enrollment,
    pool: str,
    gpus: int,
    node_type: str,
    labels: Mapping[str, str],
    address: str,
) -> bool:
    """Whether `enrollment` allows a node to offer this."""
    return (
        pool == enrollment.pool
        and gpus <= enrollment.gpus
        and enrollment.node_type in (None, node_type)
        and enrollment.address in (None, address)
        and all(enrollment.labels.get(key) == value for key, value in labels.items())
    )
