"""The base of all rows."""

from typing import ClassVar, TypeVar

#: The sort key of a row among the rows of its kind: a number (often a time), a name, and an index.
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
        """The key of the row, unique in its kind."""
        raise NotImplementedError

    @property
    def order(self) -> Order:
        """The sort key in lists of the row's kind."""
        return (0, self.key, 0)

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The names and values that lists are filtered by."""
        return ()

    @property
    def final(self) -> bool:
        """Whether later steps hardly ever read the row, so that its writer does not cache it."""
        return False


R = TypeVar("R", bound=Row)
