"""Which nodes a cell lets join, and with what.

A cell is open until its first node is enrolled: any agent that can write to the log may join, with
whatever it says it has (one machine, a demo). From then on it is closed for good, also when every
node was revoked again: a join counts only from a node that is enrolled, and only within what was
enrolled. A node that is here already when its enrolment no longer covers it is barred: it keeps
what it holds and gets nothing new, until it is covered again or joins with less.
"""

from collections.abc import Mapping

from yardmaster_core.scheduling.state.entities import Enrolled, Node
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import Enrolment
from yardmaster_schemas.reasons import RefusalCode


def join_refusal(enrolled: Mapping[str, Enrolled], event: NodeJoinedV1) -> RefusalCode | None:
    """Why a node may not join so; None where it may."""
    if not enrolled:
        return None
    row = enrolled.get(event.node)
    if row is None or row.config is None:
        return RefusalCode.NOT_ENROLLED
    within = covers(
        row.config, event.pool, event.gpus, event.node_type, event.labels, event.address
    )
    return None if within else RefusalCode.BEYOND_ENROLMENT


def barred(enrolled: Mapping[str, Enrolled], node: Node, pool: str) -> bool:
    """Whether a node of `pool` gets nothing new, because its enrolment does not cover it."""
    if not enrolled:
        return False
    row = enrolled.get(node.name)
    if row is None or row.config is None:
        return True
    return not covers(row.config, pool, node.gpus, node.node_type, node.labels, node.address)


def covers(
    enrolment: Enrolment,
    pool: str,
    gpus: int,
    node_type: str,
    labels: Mapping[str, str],
    address: str,
) -> bool:
    """Whether a node may offer this."""
    return (
        pool == enrolment.pool
        and gpus <= enrolment.gpus
        and enrolment.node_type in (None, node_type)
        and enrolment.address in (None, address)
        and all(enrolment.labels.get(key) == value for key, value in labels.items())
    )
