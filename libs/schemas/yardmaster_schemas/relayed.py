"""The header `yard_offset`, which the relay adds to a decision that it copies to a node's topic.

The value is `<offset>`, the decision's offset in `decisions`. For a decision that stops an attempt
it is `<offset> <incarnation> <replica>,<replica>...`, which also names the attempt's replicas on
this node that have not started: an agent that does not know one of them missed its assignment.
Agents of earlier versions treat the second form like a missing header.
"""

import re
from dataclasses import dataclass
from typing import Final

OFFSET_HEADER: Final = "yard_offset"
_FORM: Final = re.compile(rb"([0-9]{1,16})(?: ([0-9a-f]{12}) ([0-9]{1,4}(?:,[0-9]{1,4})*))?")


@dataclass(frozen=True, slots=True)
class RelayedFrom:
    """The origin of a copy, and the replicas of the node's incarnation that have not started."""

    offset: int
    incarnation: str = ""
    unstarted: tuple[int, ...] = ()

    def header(self) -> tuple[str, bytes]:
        """Return the name and the value of the header that the relay adds to a copy."""
        if not self.unstarted:
            return OFFSET_HEADER, str(self.offset).encode()
        replicas = ",".join(map(str, self.unstarted))
        return OFFSET_HEADER, f"{self.offset} {self.incarnation} {replicas}".encode()


#: The origin of a record without the header, or with a malformed one.
NOWHERE: Final = RelayedFrom(-1)


def relayed_from(value: bytes) -> RelayedFrom:
    """Parse the header's value; return NOWHERE for a value of another form."""
    found = _FORM.fullmatch(value)
    if found is None:
        return NOWHERE
    offset, incarnation, replicas = found.groups()
    if replicas is None:
        return RelayedFrom(int(offset))
    numbers = tuple(int(number) for number in replicas.split(b","))
    return RelayedFrom(int(offset), incarnation.decode(), numbers)
