"""The nodes on which a search for victims found none, remembered until something changes there.

Without this memory each search costs a step per victim of the pool, and finds the same. It depends
on what changed alone, so it is neither in the digest nor in a snapshot.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_core.scheduling.state.shapes import Fit

#: Fits whose failed searches are remembered; the oldest is forgotten first.
MAX_FITS: Final = 64


@dataclass(slots=True)
class _Failed:
    """The nodes that were searched without success, as a set of bits, and the amounts by which the
    victims of each owner were limited.
    """

    nodes: int
    limits: dict[Any, int]


class SearchedNodes:
    """The nodes of one pool on which no victims were found, by fit.

    Attributes:
        changed: the nodes whose future capacity changed, or the set of their tasks that may be
            preempted; the owner adds to it, and `_take_changed` takes them out of `_failed`.
    """

    def __init__(self) -> None:
        self._failed: dict[Fit, _Failed] = {}
        self.changed: set[int] = set()
        #: The nodes taken from `changed` in this cycle, as bits. A draft that is rolled back
        #: changes them again, so what was found there does not count.
        self._unsettled = 0

    def cycle_ended(self) -> None:
        """The decisions of the cycle are applied."""
        self._take_changed()
        self._unsettled = 0

    def clear(self) -> None:
        """Something changed on all nodes."""
        self._failed.clear()

    def failed(self, fit: Fit, limits: Mapping[Any, int]) -> tuple[int, list[Any]]:
        """Return the nodes on which tasks of a fit found no victims, and the owners of victims
        whose limits have changed since: their nodes must be searched again.
        """
        self._take_changed()
        failed = self._failed.get(fit)
        if failed is None:
            return 0, []
        before = failed.limits
        return failed.nodes, [owner for owner, most in limits.items() if before.get(owner) != most]

    def note(self, fit: Fit, nodes: int, limits: Mapping[Any, int]) -> None:
        """Note that tasks of a fit found no victims on `nodes`."""
        self._take_changed()
        self._failed.pop(fit, None)
        if len(self._failed) >= MAX_FITS:
            del self._failed[next(iter(self._failed))]
        self._failed[fit] = _Failed(nodes & ~self._unsettled, dict(limits))

    def _take_changed(self) -> None:
        if self.changed:
            changed = bits(self.changed)
            self.changed.clear()
            self._unsettled |= changed
            for each in self._failed.values():
                each.nodes &= ~changed


def bits(ordinals: Collection[int]) -> int:
    """Return a set of nodes as bits."""
    # In a byte array, because setting one bit of an integer copies the whole integer.
    found = bytearray(max(ordinals, default=0) // 8 + 1)
    for ordinal in ordinals:
        found[ordinal >> 3] |= 1 << (ordinal & 7)
    return int.from_bytes(found, "little")
