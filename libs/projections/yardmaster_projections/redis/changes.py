"""The change sets that watches resume from, read once for all watches of this process.

This process has a decoded copy of the newest sets; the head in Redis tells which sets are still
kept. Sets follow each other without a gap: each names the position before it, and the number of its
first change is one more than the count of all earlier changes. If a new set does not fit the copy,
Redis was flushed or restored, and the copy is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from yardmaster_projections.errors import ViewsDamaged, ViewsUnavailable
from yardmaster_projections.redis.client import Client, Command
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.redis.view import RedisView
from yardmaster_projections.store import Change, ChangeSet
from yardmaster_schemas.position import Position

#: Sets read at once.
MAX_SETS: Final = 50


@dataclass(frozen=True, slots=True)
class _Kept:
    """A change set in the copy.

    `first` is the number of its first change, `next` that of the first change of the next set.
    `before` and `position` are the positions before and after it. `changes` is None if the set
    refers to a large value that has changed since; a watch that would resume before such a set
    begins with a snapshot.
    """

    first: int
    next: int
    before: Position
    position: Position
    changes: tuple[Change, ...] | None


class _Gone(Exception):
    """The stream was replaced or cut since it was copied."""


class KeptChanges:
    """Change sets of one view; concurrent callers share one read of Redis."""

    def __init__(self, view: RedisView, client: Client) -> None:
        self._view = view
        self._client = client
        self._lock = asyncio.Lock()
        self._copy: deque[_Kept] = deque()
        self._keys: Keys | None = None
        #: The number of the last read that began, and of the last read whose result is in the copy.
        self._begun = 0
        self._done = 0
        #: The position after the newest set, even if that set is no longer kept.
        self._newest: Position | None = None
        #: The error of the last read.
        self._error: ViewsUnavailable | None = None

    async def after(self, position: Position) -> Sequence[ChangeSet] | None:
        """The sets after a position, oldest first; None when they are no longer kept.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        wanted = self._begun + 1
        async with self._lock:
            try:
                if self._done < wanted:
                    await self._look()
                elif self._error is not None:
                    raise ViewsUnavailable(**self._error.fields)
                return await self._after(position)
            except _Gone:
                self._copy.clear()
                self._done = 0
                return None

    async def _look(self) -> None:
        self._begun += 1
        number = self._begun
        try:
            self._newest = await self._forward()
        except ViewsUnavailable as error:
            self._error, self._done = error, number
            raise
        self._error, self._done = None, number

    async def _after(self, position: Position) -> Sequence[ChangeSet] | None:
        while self._copy and not position.covers(self._copy[0].before):
            if not await self._backward():
                return None
        if not self._copy and self._newest is not None and not position.covers(self._newest):
            return None
        found: list[ChangeSet] = []
        for kept in reversed(self._copy):
            if position.covers(kept.position):
                break
            if kept.changes is None:
                return None
            found.append(ChangeSet(kept.changes, kept.position))
        return found[::-1]

    async def _forward(self) -> Position:
        """Extend the copy to the end of the stream; return the position after the newest set."""
        while True:
            start = self._copy[-1].next if self._copy else None
            seen = await self._view.look(partial(_newer, start))
            if seen.at.keys is not self._keys:
                self._keys = seen.at.keys
                self._copy.clear()
                if start is not None:
                    continue
            new = await self._read(seen.at.keys, seen.answers[0])
            if not self._fits(seen.at.head, new):
                self._copy.clear()
                continue
            self._copy.extend(new)
            while self._copy and self._copy[0].first < seen.at.head.kept:
                self._copy.popleft()
            if not new or new[-1].next > seen.at.head.total:
                return seen.at.head.watched

    def _fits(self, head: Head, new: Sequence[_Kept]) -> bool:
        """Whether the sets continue the copy without a gap, and the copy is not ahead of Redis."""
        last = self._copy[-1] if self._copy else None
        for kept in new:
            if last is not None and (kept.first != last.next or kept.before != last.position):
                return False
            last = kept
        return last is None or bool(new) or last.next == head.total + 1

    async def _backward(self) -> bool:
        """Read the sets before the copy; False when there are none."""
        end = self._copy[0].first
        seen = await self._view.look(
            lambda keys: [("XREVRANGE", keys.changes, f"({end}-0", "-", "COUNT", MAX_SETS)]
        )
        if seen.at.keys is not self._keys or end < seen.at.head.kept:
            raise _Gone
        older = await self._read(seen.at.keys, seen.answers[0])
        for kept in older:
            if kept.next != self._copy[0].first:
                raise _Gone
            self._copy.appendleft(kept)
        return bool(older)

    async def _read(self, keys: Keys, entries: Sequence[Any]) -> list[_Kept]:
        codec = self._view.codec
        found: list[_Kept] = []
        for entry in entries:
            first, count, before, position, payload = _kept_of(entry)
            stored = {
                (name, job): await self._client.run("HGET", keys.shared(name), job)
                for name, job in codec.references(payload)
            }
            changes = codec.decode_set(payload, stored)
            found.append(_Kept(first, first + count, before, position, changes))
        return found


def _newer(start: int | None, keys: Keys) -> list[Command]:
    """The commands that read the sets from the change numbered `start` on; None: the newest set."""
    if start is None:
        return [("XREVRANGE", keys.changes, "+", "-", "COUNT", 1)]
    return [("XRANGE", keys.changes, f"{start}-0", "+", "COUNT", MAX_SETS)]


def _kept_of(entry: Any) -> tuple[int, int, Position, Position, bytes]:
    """Return the first number, the count, the positions before and after, and the encoded changes
    of an entry of the stream.
    """
    number, fields = entry
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return (
            *(int(number.partition(b"-")[0]), int(found[b"n"])),
            *(Position.parse(found[name].decode()) for name in (b"b", b"p")),
            found[b"c"],
        )
    except (KeyError, ValueError) as error:
        raise ViewsDamaged(kind="change set", found=str(error)) from None
