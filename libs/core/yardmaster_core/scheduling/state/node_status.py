"""The state of a node under the name that users see (`yardmaster_schemas.api.NodeState`)."""

from collections.abc import Mapping
from typing import Final

from yardmaster_core.scheduling.state.enrollment import Enrolled
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.phases import NodeState

_NOT_UP: Final = {NodeState.LOST: "lost", NodeState.LEFT: "gone"}


def status_of(node: Node, enrolled: Mapping[str, Enrolled]) -> str:
    """The name of the state of `node`; `enrolled` is the cell's.

    A node that was only named, which users do not see, is "absent".
    """
    row = enrolled.get(node.name)
    if row is not None and row.config is None:
        return "revoked"
    if node.state is NodeState.ABSENT:
        return "absent" if row is None else "enrolled"
    if node.state is not NodeState.UP:
        return _NOT_UP[node.state]
    if node.barred:
        return "barred"
    if node.drain_ms:
        return "draining" if node.open else "drained"
    return "cordoned" if node.cordoned else "ready"
