"""The `source` of agents' records: `node/<node>.<incarnation>`.

A source's records are numbered by `(epoch, seq)`, and a record is a repeat when its number does not
rise. A new ledger is a new incarnation and hence a new source, so that its records are not held
against the numbers of an earlier ledger, whatever the clock says. Agents of earlier versions write
as `node/<node>` in all their incarnations.
"""

import re
from typing import Final

_INCARNATION: Final = re.compile(r"[0-9a-f]{12}")


def agent_source(node: str, incarnation: str) -> str:
    """The source of a node's agent in one incarnation."""
    return f"node/{node}.{incarnation}"


def written_by_agent(source: str, node: str, incarnation: str | None = None) -> bool:
    """Whether a node's agent wrote a record: in that incarnation, or in any when it is not given.

    A record of `node/<node>` does not say in which incarnation it was written.
    """
    plain = f"node/{node}"
    if source == plain:
        return True
    if incarnation is not None:
        return source == agent_source(node, incarnation)
    written_in = source.removeprefix(f"{plain}.")
    return written_in != source and _INCARNATION.fullmatch(written_in) is not None
