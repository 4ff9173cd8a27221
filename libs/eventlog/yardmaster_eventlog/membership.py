"""Which replica leads which cell: the port of a group of replicas, and the group in memory.

A replica offers to lead partitions (cells) as soon as it can; the group assigns each partition to
one of the members that offer it. The group only avoids conflicts; safety does not depend on it,
because the terms in the log ensure that the records of one leader count. So a member without news
keeps its partitions, and no leader is deposed without need.

`spread`, a pure function that both adapters use, assigns the partitions as evenly as possible with
as few moves as possible.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from yardmaster_eventlog.errors import LogClosed

NOTHING: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that the group has assigned to a member.

    Attributes:
        number: increases with each assignment that this member receives; 0 before the first.
        partitions: the partitions that the member leads.
    """

    number: int = 0
    partitions: frozenset[int] = NOTHING


class Membership(Protocol):
    """One replica's membership in a group; it joins when it first offers a partition."""

    @property
    def assigned(self) -> Assignment:
        """The newest assignment; valid until the next one arrives."""

    def offer(self, partition: int) -> None:
        """Offer to lead a partition from now on."""

    def withdraw(self, partition: int) -> None:
        """Withdraw the offer; the group assigns the partition to another member."""

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait for an assignment other than `seen`; it may have the same partitions.

        Raises:
            LogClosed: `close` was called.
        """

    async def confirmed(self, partition: int) -> bool:
        """Ask the group now whether the partition is assigned to this member.

        Returns False also when the group does not answer.
        """

    async def close(self) -> None:
        """Leave the group at once, so that other members need not wait for the session timeout."""


@dataclass(frozen=True, slots=True)
class CellClaim:
    """The cells that a member offers and holds, which it sends when it joins.

    Attributes:
        offers: the partitions that it can lead.
        holds: the partitions that it leads, with the round in which each was assigned to it. A
            round is one assignment by the group; rounds are numbered.
        round: the newest round that the member knows.
    """

    offers: frozenset[int] = NOTHING
    holds: Mapping[int, int] = field(default_factory=dict)
    round: int = 0


def spread(claims: Mapping[str, CellClaim]) -> dict[str, dict[int, int]]:
    """Return the partitions of each member, with the round in which each was assigned to it.

    A partition stays with the member that got it last: a member that missed a round claims with an
    older round than the member that got its partitions meanwhile. A partition without a holder goes
    to the member with the fewest; then partitions move from the member with the most to the member
    with the fewest, most recently assigned first, until no two members differ by more than one.
    Ties go to the lower name and the lower number.
    """
    now = max((claim.round for claim in claims.values()), default=0) + 1
    given: dict[str, dict[int, int]] = {member: {} for member in sorted(claims)}
    for number in sorted({each for claim in claims.values() for each in claim.offers}):
        able = [member for member in given if number in claims[member].offers]
        holders = [member for member in able if number in claims[member].holds]
        if holders:
            # Of members with the same round, max returns the first, which has the lower name.
            last = max(holders, key=lambda member: claims[member].holds[number])
            given[last][number] = claims[last].holds[number]
        else:
            given[_least(given, able)][number] = now
    while True:
        move = _next_move(given, claims)
        if move is None:
            return given
        giver, number, taker = move
        del given[giver][number]
        given[taker][number] = now


def _least(given: Mapping[str, Mapping[int, int]], members: Iterable[str]) -> str:
    return min(members, key=lambda member: len(given[member]))


def _next_move(
    given: Mapping[str, Mapping[int, int]], claims: Mapping[str, CellClaim]
) -> tuple[str, int, str] | None:
    """Return a partition that should move: its holder, its number, its next holder."""
    for giver in sorted(given, key=lambda member: -len(given[member])):
        held = given[giver]
        for number in sorted(held, key=lambda each: (-held[each], -each)):
            able = [member for member in given if number in claims[member].offers]
            taker = _least(given, able)
            if len(given[taker]) + 1 < len(held):
                return giver, number, taker
    return None


class MemoryGroup:
    """A group in this process, for tests and the simulator."""

    def __init__(self) -> None:
        self._members: dict[str, MemoryMembership] = {}
        self._count = 0

    def member(self) -> "MemoryMembership":
        """Return a replica that may become a member."""
        self._count += 1
        return MemoryMembership(self, f"member-{self._count:04}")

    def rebalance(self, joining: "MemoryMembership | None" = None) -> None:
        """Let `joining` join, for the first time or again, and assign all partitions."""
        if joining is not None:
            self._members[joining.name] = joining
        claims = {name: member.claim for name, member in self._members.items()}
        now = max((claim.round for claim in claims.values()), default=0) + 1
        for name, given in spread(claims).items():
            self._members[name].assign(given, now)

    def expire(self, member: "MemoryMembership") -> None:
        """Drop a member without a heartbeat; like a stopped process, it is not notified."""
        if self._members.pop(member.name, None) is not None:
            self.rebalance()

    def is_member(self, member: "MemoryMembership") -> bool:
        """Tell whether a replica is a member now."""
        return member.name in self._members


class MemoryMembership:
    """A member of a MemoryGroup; see `Membership` for its contract."""

    def __init__(self, group: MemoryGroup, name: str) -> None:
        self.name = name
        self.claim = CellClaim()
        self._group = group
        self._news = AssignmentNews()

    @property
    def assigned(self) -> Assignment:
        """The newest assignment."""
        return self._news.assigned

    def offer(self, partition: int) -> None:
        """Offer to lead a partition from now on."""
        self._offer(self.claim.offers | {partition})

    def withdraw(self, partition: int) -> None:
        """Withdraw the offer to lead a partition."""
        self._offer(self.claim.offers - {partition})

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait for an assignment other than `seen`."""
        return await self._news.other_than(seen)

    async def confirmed(self, partition: int) -> bool:
        """Tell whether the partition is assigned to this member now."""
        return self._group.is_member(self) and partition in self.assigned.partitions

    async def close(self) -> None:
        """Leave the group at once."""
        self._group.expire(self)
        self._news.close()

    def assign(self, partitions: Mapping[int, int], now: int) -> None:
        """Take the group's assignment: partitions with their rounds, and the current round."""
        self.claim = CellClaim(self.claim.offers, dict(partitions), now)
        self._news.publish(frozenset(partitions))

    def _offer(self, partitions: frozenset[int]) -> None:
        if partitions != self.claim.offers and not self._news.closed:
            self.claim = CellClaim(partitions, self.claim.holds, self.claim.round)
            self._group.rebalance(self)


class AssignmentNews:
    """A member's newest assignment, and the calls that wait for the next one."""

    def __init__(self) -> None:
        self.assigned = Assignment()
        self.closed = False
        self._next = asyncio.Event()

    def publish(self, partitions: frozenset[int]) -> None:
        self.assigned = Assignment(self.assigned.number + 1, partitions)
        self._wake()

    def close(self) -> None:
        """End all waiting calls with LogClosed."""
        self.closed = True
        self._wake()

    async def other_than(self, seen: Assignment) -> Assignment:
        """Return the newest assignment, as soon as it is not `seen`.

        Raises: LogClosed.
        """
        while True:
            if self.closed:
                raise LogClosed()
            if self.assigned.number != seen.number:
                return self.assigned
            await self._next.wait()

    def _wake(self) -> None:
        # Each assignment gets an event of its own; a waiting call compares when it wakes.
        self._next.set()
        self._next = asyncio.Event()
