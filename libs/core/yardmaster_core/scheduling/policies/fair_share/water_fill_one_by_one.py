"""The rounds of `max_min`, one member at a time: for the end of a filling (`filling.py`) in which
so many different parts change hands that serving equals together saves nothing any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True)
class Member:
    """Somebody who wants more, in grains: what he has, wants, needs for one task; what is fixed of
    it, and of that not counted yet (`fixed_left`).
    """

    weight: int
    share: int
    cap: int
    least: int
    fixed: int
    fixed_left: int


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
        order = sorted(range(len(members)), key=lambda i: members[i].cap)
        for one, other in pairwise((self._end, *order, self._end)):
            self._next[one], self._last[other] = other, one
        #: Those older than this were not asked yet whether they can use their offer.
        self._next_checked = len(members)

    def fill(self) -> None:
        """Offer all that is left, until nobody wants more or can use it."""
        while self.left and self._next[self._end] != self._end:
            at_first = self.left
            self._one_round()
            if self.left == at_first:
                self._skip_fixed_rounds()
            while not self.left and self._return_one():
                pass

    def _one_round(self) -> None:
        at_first = self.left
        i = self._next[self._end]
        while i != self._end and self.left:
            member = self.members[i]
            part = min(self._part(member, at_first), self.left)
            counted = min(part, member.fixed_left)
            member.fixed_left -= counted
            member.share += part - counted
            self.left -= part - counted
            if member.share >= member.cap:
                self._exclude(i)
            i = self._next[i]

    def _part(self, member: Member, at_first: int) -> int:
        part = max(1, at_first * member.weight // self.weight) if self.weight else 1
        return min(part, member.cap - member.share)

    def _skip_fixed_rounds(self) -> None:
        """Skip the rounds like the last one, in which all that was offered was fixed already."""
        parts: list[tuple[Member, int]] = []
        i = self._next[self._end]
        while i != self._end:
            member = self.members[i]
            parts.append((member, min(self._part(member, self.left), self.left)))
            i = self._next[i]
        rounds = min(member.fixed_left // part for member, part in parts)
        for member, part in parts:
            member.fixed_left -= rounds * part

    def _exclude(self, i: int) -> None:
        before, after = self._last[i], self._next[i]
        self._next[before], self._last[after] = after, before
        self.weight -= self.members[i].weight

    def _return_one(self) -> bool:
        """Take back what the youngest was offered who can start no task with all he has; whether
        there is one. Offers only grow, so nobody is asked twice.
        """
        while self._next_checked:
            self._next_checked -= 1
            member = self.members[self._next_checked]
            if member.share < member.cap and member.share < member.least:
                self._exclude(self._next_checked)
                self.left += member.share - member.fixed
                member.share = member.fixed
                return True
        return False
