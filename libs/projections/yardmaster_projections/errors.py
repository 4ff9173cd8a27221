"""What the views' store may raise.

```
ViewsError   ViewsUnavailable  ViewsMoved  ViewsDamaged  TooMuchUsage
ViewsUnavailable   ViewsUnfinished
```

`NotLoaded` is no error: by it a step asks for rows.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from yardmaster_schemas.errors import YardmasterError

if TYPE_CHECKING:
    from yardmaster_projections.rows import Facet, Row


class ViewsError(YardmasterError):
    """The views cannot be used: {found}."""

    code = "views"


class ViewsUnavailable(ViewsError):
    """The views' store cannot be used: {found}. The log is not concerned; try again."""

    code = "views_unavailable"


class ViewsUnfinished(ViewsUnavailable):
    """The views are at {found}, before {wanted}: they were lost, or are new, and are being filled.
    The log is not concerned; try again.
    """


class ViewsMoved(ViewsError):
    """The views are at {found}, not at {expected}, where their writer left them: another worker
    wrote, or the store was lost, restored or rebuilt. Go on from where they are.
    """

    code = "views_moved"


class ViewsDamaged(ViewsError):
    """A row of kind {kind} cannot be read: {found}. Another version of Yardmaster wrote it, or
    somebody else: run `yard views rebuild`.
    """

    code = "views_damaged"


class TooMuchUsage(ViewsError):
    """The usage asked for rests on more than {limit} hours of projects, users and pools. Ask for a
    shorter time.
    """

    code = "too_much_usage"


class NotLoaded(Exception):
    """Rows that a step of the projection needs are not at hand; no failure, but a request.

    Whoever runs the step loads them (`CachedReader.load`) and runs it again.
    """

    def __init__(
        self,
        wanted: tuple[tuple["type[Row]", str], ...] = (),
        facets: tuple[tuple["type[Row]", "Facet"], ...] = (),
    ) -> None:
        super().__init__()
        #: Kinds and keys, and kinds and facets.
        self.wanted = wanted
        self.facets = facets

    @classmethod
    def merged(cls, several: "Iterable[NotLoaded]") -> "NotLoaded":
        """One that names all that several name."""
        wanted: dict[tuple[type[Row], str], None] = {}
        facets: dict[tuple[type[Row], Facet], None] = {}
        for one in several:
            wanted.update(dict.fromkeys(one.wanted))
            facets.update(dict.fromkeys(one.facets))
        return cls(tuple(wanted), tuple(facets))
