"""Changes that are carried over to the next cycle.

A policy finds the groups that may start or preempt now by what changed. The decisions of the
planner change something after the policy has looked, so such a change counts in this cycle and in
the next one. What changes before the planner decides counts in this cycle only (`inputs_ended`).
Between two cycles, "this cycle" is the next one. A cycle that stops at its limit continues in the
one after it, and both count as one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CarriedOver(Generic[T]):
    """The values that changed, in the order of the changes.

    `dump` and `load` use the keys `name` and `name_next`. With `ascending`, values that were loaded
    come in ascending order.
    """

    __slots__ = ("_ascending", "_name", "_next", "_now")

    def __init__(self, name: str, *, ascending: bool = False) -> None:
        self._name = name
        self._ascending = ascending
        self._now: dict[T, None] = {}
        #: The values that count in the next cycle too.
        self._next: dict[T, None] = {}

    def __bool__(self) -> bool:
        return bool(self._now)

    def __iter__(self) -> Iterator[T]:
        return iter(self._now)

    def add(self, value: T) -> None:
        """Count a value in this cycle and in the next one."""
        self._now[value] = self._next[value] = None

    def add_for_this_cycle(self, value: T) -> None:
        """Count a value in this cycle only."""
        self._now[value] = None

    def inputs_ended(self) -> None:
        """Let the values so far count in this cycle only: the planner sees all of them."""
        self._next.clear()

    def cycle_ended(self) -> None:
        """Remove the values that counted in this cycle only."""
        self._now, self._next = self._next, {}

    def dump(self) -> dict[str, Any]:
        """Return the values as plain data."""
        return {
            self._name: self._dumped(self._now),
            f"{self._name}_next": self._dumped(self._next),
        }

    def load(self, dump: Mapping[str, Any]) -> None:
        """Set the values that `dump` returned.

        Raises:
            KeyError: the values are missing.
        """
        self._now = self._loaded(dump[self._name])
        self._next = self._loaded(dump[f"{self._name}_next"])

    def _dumped(self, values: Iterable[Any]) -> Any:
        return sorted(values) if self._ascending else list(values)

    def _loaded(self, dumped: Any) -> dict[T, None]:
        return dict.fromkeys(dumped)


class CarriedOverFlag(CarriedOver[bool]):
    """Whether something changed."""

    __slots__ = ()

    def set(self) -> None:
        """Set the flag for this cycle and the next one."""
        self._now[True] = self._next[True] = None

    def set_for_this_cycle(self) -> None:
        """Set the flag for this cycle only."""
        self._now[True] = None

    def _dumped(self, values: Iterable[bool]) -> bool:
        return any(values)

    def _loaded(self, dumped: bool) -> dict[bool, None]:
        return {True: None} if dumped else {}


def dump_all(carried: Iterable[CarriedOver[Any]]) -> dict[str, Any]:
    """Return the values of all as plain data."""
    return {key: value for each in carried for key, value in each.dump().items()}
