"""Who of several replicas leads which cell: the port of a group, and the group in memory.

A replica offers to lead partitions (cells) as soon as it could; the group gives each partition to
one of those that offer. This is for convenience only: that no two leaders of a cell count is in the
log's terms. So a member that hears nothing keeps what it has, and a leader is not deposed for
nothing.

How partitions are shared out is `spread`, a pure function that both adapters use: as evenly as can
be, and moving as few as can be.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from yardmaster_eventlog.errors import LogClosed

NOTHING: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the group has given to a member.

    Attributes:
        number: rises with each assignment that this member is told of; 0 before the first.
        partitions: those that the member leads.
    """

    number: int = 0
    partitions: frozenset[int] = NOTHING


class Membership(Protocol):
    """One replica's part in a group; it is a member once it has offered something."""

    @property
    def assigned(self) -> Assignment:
        """The newest assignment; it stands until another one is known."""

    def offer(self, partition: int) -> None:
        """From now on this member can lead the partition."""

    def withdraw(self, partition: int) -> None:
        """From now on it cannot; the group gives the partition to another."""

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait until there is another assignment than `seen`; it may have the same partitions.

        Raises:
            LogClosed: `close` was called.
        """

    async def confirmed(self, partition: int) -> bool:
        """Whether the group says now that this member has the partition.

        False also when the group cannot be asked.
        """

    async def close(self) -> None:
        """Leave the group at once, so that others need not wait for the session's end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says when it joins.

    Attributes:
        offers: the partitions that it can lead.
        holds: those that it leads, with the round in which each was given to it.
        round: the newest round that it knows of.
    """

    offers: frozenset[int] = NOTHING
    holds: Mapping[int, int] = field(default_factory=dict)
    round: int = 0


def spread(claims: Mapping[str, Claim]) -> dict[str, dict[int, int]]:
    """What each member gets: partitions, with the round in which each was given to it.

    A partition stays where it was given last: a member that slept through a round claims by an
    older one than the member that got its partitions meanwhile. What nobody holds goes to who has
    least; then partitions move from who has most to who has least, those held shortest first,
    until no two differ by more than one. Ties fall to the lower name and the lower number.
    """
    now = max((claim.round for claim in claims.values()), default=0) + 1
    given: dict[str, dict[int, int]] = {member: {} for member in sorted(claims)}
    for number in sorted({each for claim in claims.values() for each in claim.offers}):
        able = [member for member in given if number in claims[member].offers]
        holders = [member for member in able if number in claims[member].holds]
        if holders:
            # max takes the first, so the lower name, of equals.
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
    given: Mapping[str, Mapping[int, int]], claims: Mapping[str, Claim]
) -> tuple[str, int, str] | None:
    """A partition that should move: its holder, its number, its next holder."""
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
        """One that may become a member."""
        self._count += 1
        return MemoryMembership(self, f"member-{self._count:04}")

    def share_out(self, joining: "MemoryMembership | None" = None) -> None:
        """Let a member in, for the first time or again, and share out anew."""
        if joining is not None:
            self._members[joining.name] = joining
        claims = {name: member.claim for name, member in self._members.items()}
        now = max((claim.round for claim in claims.values()), default=0) + 1
        for name, given in spread(claims).items():
            self._members[name].give(given, now)

    def expire(self, member: "MemoryMembership") -> None:
        """Drop a member that was not heard; it is not told, as one that was stopped is not."""
        if self._members.pop(member.name, None) is not None:
            self.share_out()

    def has(self, member: "MemoryMembership") -> bool:
        """Whether it is a member now."""
        return member.name in self._members


class MemoryMembership:
    """A member of a MemoryGroup; see `Membership` for what its methods promise."""

    def __init__(self, group: MemoryGroup, name: str) -> None:
        self.name = name
        self.claim = Claim()
        self._group = group
        self._news = News()

    @property
    def assigned(self) -> Assignment:
        """The newest assignment."""
        return self._news.assigned

    def offer(self, partition: int) -> None:
        """From now on this member can lead the partition."""
        self._offer(self.claim.offers | {partition})

    def withdraw(self, partition: int) -> None:
        """From now on it cannot."""
        self._offer(self.claim.offers - {partition})

    async def changed(self, seen: Assignment) -> Assignment:
        """Wait until there is another assignment than `seen`."""
        return await self._news.other_than(seen)

    async def confirmed(self, partition: int) -> bool:
        """Whether the group says now that this member has the partition."""
        return self._group.has(self) and partition in self.assigned.partitions

    async def close(self) -> None:
        """Leave the group at once."""
        self._group.expire(self)
        self._news.close()

    def give(self, partitions: Mapping[int, int], now: int) -> None:
        """The group's word: partitions with the rounds in which they were given, and this round."""
        self.claim = Claim(self.claim.offers, dict(partitions), now)
        self._news.tell(frozenset(partitions))

    def _offer(self, partitions: frozenset[int]) -> None:
        if partitions != self.claim.offers and not self._news.closed:
            self.claim = Claim(partitions, self.claim.holds, self.claim.round)
            self._group.share_out(self)


class News:
    """A member's newest assignment, and who waits for the next."""

    def __init__(self) -> None:
        self.assigned = Assignment()
        self.closed = False
        self._next = asyncio.Event()

    def tell(self, partitions: frozenset[int]) -> None:
        """There is a new assignment."""
        self.assigned = Assignment(self.assigned.number + 1, partitions)
        self._wake()

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._wake()

    async def other_than(self, seen: Assignment) -> Assignment:
        """The newest assignment, once it is another than `seen`.

        Raises: LogClosed.
        """
        while True:
            if self.closed:
                raise LogClosed()
            if self.assigned.number != seen.number:
                return self.assigned
            await self._next.wait()

    def _wake(self) -> None:
        # One event for each piece of news: who wakes finds out what it was.
        self._next.set()
        self._next = asyncio.Event()
