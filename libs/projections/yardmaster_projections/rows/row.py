"""The base of all rows."""

from typing import ClassVar, TypeVar

#: Where a row stands among its kind: a number (a time), then names.
Order = tuple[int, str, int]
Facet = tuple[str, str]


class Row:
    """Base of all rows."""

    __slots__ = ()
    KIND: ClassVar[str]
    #: Whether a watch reports changes of this kind.
    WATCHED: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """What the row is found by; unique in its kind."""
        raise NotImplementedError

    @property
    def order(self) -> Order:
        """Where it stands in lists of its kind."""
        return (0, self.key, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """What lists are filtered by."""
        return ()

    @property
    def settled(self) -> bool:
        """Hardly any later step reads it: its writer does not keep it at hand."""
        return False


R = TypeVar("R", bound=Row)
