"""The rounds of `max_min`, one member at a time.

`water_fill.py` uses it when so many different amounts are returned and redistributed that serving
equal demands together saves nothing any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True)
class Member:
    """A demand that is not satisfied, in grains: its share, its cap, the size of its smallest task,
    its fixed part, and how much of the fixed part is not counted yet (`fixed_left`).
    """

    weight: int
    share: int
    cap: int
    smallest_task: int
    fixed: int
    fixed_left: int


class WaterFillOneByOne:
    """The remaining capacity, and the members among which it is divided, oldest first."""

    def __init__(self, left: int, members: Sequence[Member]) -> None:
        self.left = left
        self.members = members
        self.weight = sum(member.weight for member in members)
        #: A linked list by demand and age: removing a member costs one step.
        self._list_end = len(members)
        self._next = [-1] * (len(members) + 1)
        self._previous = [-1] * (len(members) + 1)
        order = sorted(range(len(members)), key=lambda i: members[i].cap)
        for before, after in pairwise((self._list_end, *order, self._list_end)):
            self._next[before], self._previous[after] = after, before
        #: Members before this index were not checked yet for an unusable share.
        self._next_checked = len(members)

    def fill(self) -> None:
        """Divide the remaining capacity until every member is satisfied or none can use more."""
        while self.left and self._next[self._list_end] != self._list_end:
            round_start = self.left
            self._one_round()
            if self.left == round_start:
                self._skip_fixed_rounds()
            while not self.left and self._return_one():
                pass

    def _one_round(self) -> None:
        """Visit each member of the list once, the smallest demand first."""
        round_start = self.left
        i = self._next[self._list_end]
        while i != self._list_end and self.left:
            member = self.members[i]
            part = min(self._part(member, round_start), self.left)
            counted = min(part, member.fixed_left)
            member.fixed_left -= counted
            member.share += part - counted
            self.left -= part - counted
            if member.share >= member.cap:
                self._exclude(i)
            i = self._next[i]

    def _part(self, member: Member, round_start: int) -> int:
        """Return the part of a member in a round: by weight, at least 1, at most up to its cap."""
        part = max(1, round_start * member.weight // self.weight) if self.weight else 1
        return min(part, member.cap - member.share)

    def _skip_fixed_rounds(self) -> None:
        """Skip the rounds that repeat the last one, in which only fixed parts were counted."""
        parts: list[tuple[Member, int]] = []
        i = self._next[self._list_end]
        while i != self._list_end:
            member = self.members[i]
            parts.append((member, min(self._part(member, self.left), self.left)))
            i = self._next[i]
        rounds = min(member.fixed_left // part for member, part in parts)
        for member, part in parts:
            member.fixed_left -= rounds * part

    def _exclude(self, i: int) -> None:
        """Remove a member from the list: it takes part in no later round."""
        before, after = self._previous[i], self._next[i]
        self._next[before], self._previous[after] = after, before
        self.weight -= self.members[i].weight

    def _return_one(self) -> bool:
        """Take back the share of the youngest member whose share is too small for a task; return
        whether there is such a member.

        Shares only grow, so no member is checked twice.
        """
        while self._next_checked:
            self._next_checked -= 1
            member = self.members[self._next_checked]
            if member.share < member.cap and member.share < member.smallest_task:
                self._exclude(self._next_checked)
                self.left += member.share - member.fixed
                member.share = member.fixed
                return True
        return False
