"""The `source` of agents' records: `node/<node>.<incarnation>`.

A source's records are numbered by `(epoch, seq)`; a record whose number does not increase is a
repeat. A new ledger is a new incarnation and hence a new source, so that its records are not
compared with the numbers of an earlier ledger, whatever the clock shows. Agents of earlier versions
use the source `node/<node>` in all their incarnations.
"""

import re
from typing import Final

_INCARNATION: Final = re.compile(r"[0-9a-f]{12}")


def agent_source(node: str, incarnation: str) -> str:
    """Return the source of a node's agent in one incarnation."""
    return f"node/{node}.{incarnation}"


def written_by_agent(source: str, node: str, incarnation: str | None = None) -> bool:
    """Tell whether a node's agent wrote a record, in the given incarnation or else in any.

    A record with the source `node/<node>` matches every incarnation.
    """
    plain = f"node/{node}"
    if source == plain:
        return True
    if incarnation is not None:
        return source == agent_source(node, incarnation)
    written_in = source.removeprefix(f"{plain}.")
    return written_in != source and _INCARNATION.fullmatch(written_in) is not None
