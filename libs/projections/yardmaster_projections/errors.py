"""The errors of the views' store.

```
ViewsError   ViewsUnavailable  ViewsMoved  ViewsDamaged  TooMuchUsage
ViewsUnavailable   ViewsUnfinished  ViewsAhead
```

`NotLoaded` is not an error: a step raises it to request rows.
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
    """The views' store cannot be used: {found}. The log is not affected; try again."""

    code = "views_unavailable"


class ViewsUnfinished(ViewsUnavailable):
    """The views are at {found}, before {wanted}: they were lost, or are new, and are being filled.
    The log is not affected; try again.
    """


class ViewsAhead(ViewsUnavailable):
    """The views contain records that the log does not have: {found}. The log lost its end, or the
    views are those of another log; see docs/how-to/recover.md.
    """


class ViewsMoved(ViewsError):
    """The views are at {found}, not at {expected}, where their writer left them: another worker
    wrote, or the store was lost, restored or rebuilt. Start again from where they are.
    """

    code = "views_moved"


class ViewsDamaged(ViewsError):
    """A row of kind {kind} cannot be read: {found}. Another version of Yardmaster or another
    program wrote it: run `yard views rebuild`.
    """

    code = "views_damaged"


class TooMuchUsage(ViewsError):
    """The requested usage needs more than {limit} hours of projects, users and pools. Request a
    shorter time.
    """

    code = "too_much_usage"


class NotLoaded(Exception):
    """A step of the projection needs rows that are not cached.

    The caller of the step loads them (`CachedReader.load`) and runs the step again.
    """

    def __init__(
        self,
        wanted: tuple[tuple["type[Row]", str], ...] = (),
        facets: tuple[tuple["type[Row]", "Facet"], ...] = (),
    ) -> None:
        super().__init__()
        #: The missing rows: single rows by kind and key, all rows with a facet by kind and facet.
        self.wanted = wanted
        self.facets = facets

    @classmethod
    def merged(cls, several: "Iterable[NotLoaded]") -> "NotLoaded":
        """One exception with the rows of several."""
        wanted: dict[tuple[type[Row], str], None] = {}
        facets: dict[tuple[type[Row], Facet], None] = {}
        for one in several:
            wanted.update(dict.fromkeys(one.wanted))
            facets.update(dict.fromkeys(one.facets))
        return cls(tuple(wanted), tuple(facets))
