"""The `source` of agents' records: `node/<node>.<incarnation>`.

A source's records are numbered by `(epoch, seq)`; a record whose number does not increase is a
repeat. A new ledger is a new incarnation and hence a new source, so that its records are not
compared with the numbers of an earlier ledger, whatever the clock shows.

The first incarnation of a ledger is random, and each further one is a digest of the one before. So
the scheduler can tell an agent that joins again from another agent with the same name.
"""

import re
from hashlib import sha256
from typing import Final

_INCARNATION: Final = re.compile(r"[0-9a-f]{12}")


#: By how much an epoch may be ahead of the time of the cell. After a record with an epoch far
#: ahead, all further records of its source would be refused as repeats.
MAX_EPOCH_AHEAD_MS: Final = 3_600_000
#: The most incarnations that a ledger can begin between two that join.
MAX_SKIPPED: Final = 16


def next_incarnation(incarnation: str) -> str:
    """Return the incarnation that follows `incarnation` in the same ledger."""
    return sha256(incarnation.encode()).hexdigest()[: len(incarnation)]


def follows(incarnation: str, earlier: str) -> bool:
    """Tell whether `incarnation` is a later incarnation of the ledger of `earlier`."""
    for _ in range(MAX_SKIPPED):
        earlier = next_incarnation(earlier)
        if earlier == incarnation:
            return True
    return False


def agent_source(node: str, incarnation: str) -> str:
    """Return the source of a node's agent in one incarnation."""
    return f"node/{node}.{incarnation}"


def written_by_agent(source: str, node: str, incarnation: str | None = None) -> bool:
    """Tell whether `source` is the agent of `node`; with `incarnation`, only in that one."""
    if incarnation is not None:
        return source == agent_source(node, incarnation)
    written_in = source.removeprefix(f"node/{node}.")
    return written_in != source and _INCARNATION.fullmatch(written_in) is not None
