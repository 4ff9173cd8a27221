"""The rounds of `max_min`, one member at a time: for the end of a filling (`filling.py`) in which
so many different parts change hands that serving equals together saves nothing any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True)
class Member:
    """Somebody who wants more, in grains: what he has, wants, needs for one task; what is fixed of
    it, and of that not counted yet (`ahead`).
    """

    weight: int
    offer: int
    most: int
    least: int
    fixed: int
    ahead: int


class WaterFillOneByOne:
    """What is left, and who wants more of it: `members` by age, the oldest first."""

    def __init__(self, left: int, members: Sequence[Member]) -> None:
        self.left = left
        self.members = members
        self.weight = sum(member.weight for member in members)
        #: By demand and age: leaving it costs nothing.
        self._end = len(members)
        self._next = [-1] * (len(members) + 1)
        self._last = [-1] * (len(members) + 1)
        order = sorted(range(len(members)), key=lambda i: members[i].most)
        for one, other in pairwise((self._end, *order, self._end)):
            self._next[one], self._last[other] = other, one
        #: Those older than this were not asked yet whether they can use their offer.
        self._oldest_asked = len(members)

    def fill(self) -> None:
        """Offer all that is left, until nobody wants more or can use it."""
        while self.left and self._next[self._end] != self._end:
            at_first = self.left
            self._one_round()
            if self.left == at_first:
                self._count_ahead()
            while not self.left and self._give_one_up():
                pass

    def _one_round(self) -> None:
        at_first = self.left
        i = self._next[self._end]
        while i != self._end and self.left:
            member = self.members[i]
            part = min(self._part(member, at_first), self.left)
            counted = min(part, member.ahead)
            member.ahead -= counted
            member.offer += part - counted
            self.left -= part - counted
            if member.offer >= member.most:
                self._close(i)
            i = self._next[i]

    def _part(self, member: Member, at_first: int) -> int:
        part = max(1, at_first * member.weight // self.weight) if self.weight else 1
        return min(part, member.most - member.offer)

    def _count_ahead(self) -> None:
        """Skip the rounds like the last one, in which all that was offered was fixed already."""
        parts: list[tuple[Member, int]] = []
        i = self._next[self._end]
        while i != self._end:
            member = self.members[i]
            parts.append((member, min(self._part(member, self.left), self.left)))
            i = self._next[i]
        rounds = min(member.ahead // part for member, part in parts)
        for member, part in parts:
            member.ahead -= rounds * part

    def _close(self, i: int) -> None:
        before, after = self._last[i], self._next[i]
        self._next[before], self._last[after] = after, before
        self.weight -= self.members[i].weight

    def _give_one_up(self) -> bool:
        """Take back what the youngest was offered who can start no task with all he has; whether
        there is one. Offers only grow, so nobody is asked twice.
        """
        while self._oldest_asked:
            self._oldest_asked -= 1
            member = self.members[self._oldest_asked]
            if member.offer < member.most and member.offer < member.least:
                self._close(self._oldest_asked)
                self.left += member.offer - member.fixed
                member.offer = member.fixed
                return True
        return False
