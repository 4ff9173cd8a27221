"""The result of a check of `yard doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; a result that is `needed` and not `good` fails the command.

    `what` was checked, `found` describes the result, and `get` says how to repair it. `lacking` is
    the state of a result that is not good; by default `missing` if needed, else `absent`.
    """

    what: str
    good: bool
    found: str
    needed: bool = False
    get: str = ""
    lacking: str = ""

    @property
    def state(self) -> str:
        """`ok` if the result is good, else `lacking` or its default."""
        return "ok" if self.good else self.lacking or ("missing" if self.needed else "absent")
