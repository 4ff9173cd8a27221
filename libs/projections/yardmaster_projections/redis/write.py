"""What one write is in Redis: the commands between MULTI and EXEC.

A row that takes another's place leaves the lists that the other was in. Where it was is kept beside
each row (`idx:`), as bytes that need no decoding, and read under the same WATCH as the position.
Rows and lists are written with as few commands as there are keys.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic_core import to_json

from yardmaster_projections.errors import ViewsMoved
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.redis.wire import Command
from yardmaster_projections.row_codec import Encoded, RowCodec
from yardmaster_projections.rows import Row
from yardmaster_projections.store import Change, Put, erases
from yardmaster_schemas.position import Position

#: Arguments of one command; more go into the next, of the same transaction.
MAX_ARGUMENTS: Final = 2_000
#: Ticks that are kept: who listens needs the newest.
MAX_TICKS: Final = 64
NO_NEWS: Final[list[Command]] = []


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a row stands: its member, the facets it has, the parts it shares."""

    member: bytes
    facets: tuple[str, ...]
    parts: tuple[str, ...]

    @classmethod
    def of(cls, row: Row, encoded: Encoded) -> "Entry":
        """Of a row that is to be written."""
        facets = dict.fromkeys(redis_keys.facet_name(facet) for facet in row.facets)
        return cls(redis_keys.member_of(row), tuple(facets), encoded.parts)

    @classmethod
    def load(cls, raw: bytes) -> "Entry":
        """What `dump` wrote."""
        facets, parts, member = raw.split(b"\0", 2)
        return cls(member, tuple(_split(facets, "\n")), tuple(_split(parts, ",")))

    def dump(self) -> bytes:
        """As kept beside the row; facets are printable, and members come last."""
        head = "\n".join(self.facets), ",".join(self.parts)
        return b"%b\0%b\0%b" % (head[0].encode(), head[1].encode(), self.member)


def _split(raw: bytes, by: str) -> list[str]:
    return raw.decode().split(by) if raw else []


class Write:
    """Changes on their way: encoded once, however often the transaction has to be tried."""

    def __init__(self, changes: Sequence[Change], codec: RowCodec) -> None:
        self._codec = codec
        self._encoded = [(change, codec.encode(change.row)) for change in changes]
        #: What is left of several changes of one row.
        self._last: dict[tuple[type[Row], str], tuple[Change, Encoded]] = {
            (type(change.row), change.key): (change, encoded) for change, encoded in self._encoded
        }
        #: What earlier changes said must not be told any more.
        self.erases = erases(changes)
        self._indexed: dict[type[Row], list[str]] = {}
        for kind, key in self._last:
            if not redis_keys.plain(kind):
                self._indexed.setdefault(kind, []).append(key)

    def reads(self, keys: Keys) -> list[Command]:
        """What must be known of the rows as they are."""
        return [("HMGET", keys.index(kind), *wanted) for kind, wanted in self._indexed.items()]

    def plan(self, keys: Keys, answers: Sequence[Any]) -> "Plan":
        """What changes, given the answers to `reads`."""
        before: dict[tuple[type[Row], str], bytes] = {
            (kind, key): raw
            for (kind, wanted), found in zip(self._indexed.items(), answers, strict=True)
            for key, raw in zip(wanted, found, strict=True)
            if raw is not None
        }
        plan = Plan(keys, self._codec)
        for (kind, key), (change, encoded) in self._last.items():
            if redis_keys.plain(kind):
                plan.plain(kind, change, encoded)
            else:
                plan.indexed(kind, change, encoded, before.get((kind, key)))
        return plan

    def watched(self) -> tuple[int, bytes]:
        """How many changes watches are told of, and those changes as bytes."""
        told = [(change, one) for change, one in self._encoded if change.row.WATCHED]
        return len(told), self._codec.encode_set(told) if told else b""


class Plan:
    """The commands of one write, gathered by key."""

    def __init__(self, keys: Keys, codec: RowCodec) -> None:
        self._keys = keys
        self._codec = codec
        #: Fields with their values, fields that go; members with their score, members that go.
        self._put: dict[str, list[str | bytes]] = defaultdict(list)
        self._drop: dict[str, list[str]] = defaultdict(list)
        self._enter: dict[str, list[bytes]] = defaultdict(list)
        self._leave: dict[str, list[bytes]] = defaultdict(list)
        #: By how much the count of each part's rows changes.
        self._shared: dict[str, int] = defaultdict(int)

    def plain(self, kind: type[Row], change: Change, encoded: Encoded) -> None:
        """A row whose key says where it stands."""
        name, member = self._keys.all(kind), redis_keys.member_of(change.row)
        if isinstance(change, Put):
            self._put[self._keys.rows(kind)] += (change.key, encoded.raw)
            self._enter[name] += (b"0", member)
        else:
            self._drop[self._keys.rows(kind)].append(change.key)
            self._leave[name].append(member)

    def indexed(
        self, kind: type[Row], change: Change, encoded: Encoded, before: bytes | None
    ) -> None:
        """A row that had the entry `before`."""
        keys, key = self._keys, change.key
        old = Entry.load(before) if before is not None else None
        new: Entry | None = None
        if isinstance(change, Put):
            new = Entry.of(change.row, encoded)
            self._put[keys.rows(kind)] += (key, encoded.raw)
            after = new.dump()
            if after == before:
                return
            self._put[keys.index(kind)] += (key, after)
        elif old is not None:
            self._drop[keys.rows(kind)].append(key)
            self._drop[keys.index(kind)].append(key)
        if old is None or new is None or old.member != new.member:
            self._move(kind, key, old, new)
        elif old.facets != new.facets:
            member, prefix = new.member, keys.having(kind, "")
            for facet in new.facets:
                if facet not in old.facets:
                    self._enter[prefix + facet] += (b"0", member)
            for facet in old.facets:
                if facet not in new.facets:
                    self._leave[prefix + facet].append(member)
        was, now = (old.parts if old else ()), (new.parts if new else ())
        if was != now:
            for part in was:
                self._shared[part] -= 1
            for part in now:
                self._shared[part] += 1

    def _move(self, kind: type[Row], key: str, old: Entry | None, new: Entry | None) -> None:
        """Out of every list that it was in, into every one that it belongs to."""
        for entry, out in ((old, True), (new, False)):
            if entry is None:
                continue
            places = [(self._keys.having(kind, facet), entry.member) for facet in entry.facets]
            places.append((self._keys.all(kind), entry.member))
            if not redis_keys.ordered_by_key(kind):
                places.append((self._keys.by_key(kind), redis_keys.by_key(key, entry.member)))
            for name, member in places:
                if out:
                    self._leave[name].append(member)
                else:
                    self._enter[name] += (b"0", member)

    @property
    def released(self) -> list[str]:
        """Parts that fewer rows share than before: whether any still does must be known."""
        return [part for part, by in self._shared.items() if by < 0]

    def commands(self, counts: Mapping[str, int]) -> Iterator[Command]:
        """All of it; `counts` says how many rows shared each of `released`."""
        keys = self._keys
        for part, by in self._shared.items():
            if by > 0:
                self._put[keys.parts] += (part, self._codec.body_of(part))
            if by > 0 or (by < 0 and counts[part] + by > 0):
                yield ("HINCRBY", keys.refs, part, by)
            elif by < 0:
                self._drop[keys.parts].append(part)
                self._drop[keys.refs].append(part)
        for command, gathered in (
            *(("HSET", self._put), ("HDEL", self._drop)),
            *(("ZADD", self._enter), ("ZREM", self._leave)),
        ):
            for name, arguments in gathered.items():
                yield from _cut(command, name, arguments)


def _cut(command: str, key: str, arguments: Sequence[str | bytes]) -> Iterator[Command]:
    for at in range(0, len(arguments), MAX_ARGUMENTS):
        yield (command, key, *arguments[at : at + MAX_ARGUMENTS])


@dataclass(frozen=True, slots=True)
class Fence:
    """Where a writer believes the store to be, and which notes there."""

    #: None: wherever it is.
    before: Position | None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def check(self, head: Head, generation: int, begun: int | None) -> None:
        """Compare it with what counts; `begun` is the generation that counted at first.

        Raises: ViewsMoved.
        """
        if self.before is None:
            return
        if begun is not None and generation != begun:
            raise ViewsMoved(found=f"generation {generation}", expected=f"generation {begun}")
        if head.position != self.before:
            raise ViewsMoved(found=head.position, expected=self.before)

    def check_notes(self, found: Sequence[bytes | None]) -> None:
        """Compare notes with what is there.

        Raises: ViewsMoved.
        """
        for (name, note), raw in zip(self.notes.items(), found, strict=True):
            there = None if raw is None else json.loads(raw)
            if there != note:
                raise ViewsMoved(found=f"{name} {there}", expected=note)


def notes_of(keys: Keys, notes: Mapping[str, Any]) -> Iterator[Command]:
    """The writer's notes, each by itself."""
    flat = [part for name, note in notes.items() for part in (name, to_json(note))]
    yield from _cut("HSET", keys.notes, flat)


def told(
    cell: str, keys: Keys, head: Head, position: Position, watched: tuple[int, bytes], keep: int
) -> tuple[Head, list[Command]]:
    """The head after a step that leads to `position`, and what tells readers of it."""
    count, payload = watched
    after = replace(head, position=position, writes=head.writes + 1)
    commands: list[Command] = []
    if count:
        after = replace(after, watched=position, total=head.total + count)
        # A set's id is the number of its first change: what must go is named by arithmetic.
        commands.append(
            (
                *("XADD", keys.changes, f"{head.total + 1}-0", "n", count, "b", str(head.watched)),
                *("p", str(position), "c", payload),
            )
        )
        if after.total > keep:
            after = replace(after, kept=max(after.kept, after.total - keep + 1))
            commands.append(("XTRIM", keys.changes, "MINID", f"{after.total - keep + 1}-0"))
    commands.append(tick(cell, keys.generation, position))
    return after, commands


def tick(cell: str, generation: int, position: Position, *, switched: bool = False) -> Command:
    """Tells waiters that a generation has reached a position."""
    return (
        *("XADD", redis_keys.ticks(cell), "MAXLEN", MAX_TICKS, "*"),
        *("g", generation, "p", str(position), "s", int(switched)),
    )
