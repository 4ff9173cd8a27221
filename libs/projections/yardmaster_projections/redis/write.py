"""One write as the operations of `write.lua`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic_core import to_json

from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.client import Command
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.row_codec import Encoded, RowCodec, job_of
from yardmaster_projections.rows import JobRow, Row
from yardmaster_projections.store import Change, Put, erases
from yardmaster_schemas.position import Position

#: The most arguments of one operation; Lua cannot unpack many more. The number is even, because
#: some arguments are pairs.
MAX_ARGUMENTS: Final = 2_000
#: The number of ticks that are kept; a listener needs only the newest.
MAX_TICKS: Final = 64
_DELETED: Final = b""

#: Values that the rows of a job share, by name and job; None for a removed value.
Shared = dict[tuple[str, str], Any]


def entry_of(row: Row) -> bytes:
    """A row's place in the sorted sets: its facets, which are printable, then its member."""
    facets = dict.fromkeys(redis_keys.facet_name(facet) for facet in row.facets)
    return b"%b\0%b" % ("\n".join(facets).encode(), redis_keys.member_of(row))


def facets_of(entry: bytes) -> list[str]:
    """The facets that an entry names."""
    return entry.partition(b"\0")[0].decode().split("\n")


class Write:
    """The changes of one write, encoded once even if the write is tried several times."""

    def __init__(self, changes: Sequence[Change], codec: RowCodec) -> None:
        self._codec = codec
        self._encoded = [(change, codec.encode(change.row)) for change in changes]
        #: Whether earlier change sets must not be kept.
        self.erases = erases(changes)
        #: The last change of each row, by kind.
        self._last: dict[type[Row], dict[str, tuple[Change, Encoded]]] = {}
        #: Values that the changed rows share with other rows of their job.
        self.shared: Shared = {}
        for change, encoded in self._encoded:
            row = change.row
            self._last.setdefault(type(row), {})[change.key] = (change, encoded)
            if isinstance(row, JobRow):
                self.shared["facts", row.key] = row.facts if isinstance(change, Put) else None
                self.shared["run", row.key] = row.run if isinstance(change, Put) else None
            elif encoded.shared and isinstance(change, Put):
                job = job_of(change.key)
                self.shared |= {(name, job): one for name, one in encoded.shared.items()}

    def operations(self, keys: Keys, stored: Shared) -> Iterator[Command]:
        """All operations, except those for notes and for notifications (see `news`).

        The shared values in `stored` are not written again.
        """
        for kind, changed in self._last.items():
            put: list[str | bytes] = []
            drop: list[str | bytes] = []
            for key, (change, encoded) in changed.items():
                if isinstance(change, Put):
                    put += (key, encoded.body)
                else:
                    drop.append(key)
            yield from _split("HSET", keys.rows(kind), put)
            yield from _split("HDEL", keys.rows(kind), drop)
        for (name, job), value in self.shared.items():
            if (name, job) in stored and stored[name, job] is value:
                continue
            if value is None:
                yield ("HDEL", keys.shared(name), job)
            else:
                yield ("HSET", keys.shared(name), job, self._codec.dump(name, value))
        for kind, changed in self._last.items():
            changes = [change for change, _ in changed.values()]
            yield from (self._plain if redis_keys.plain(kind) else self._indexed)(
                keys, kind, changes
            )

    def _plain(self, keys: Keys, kind: type[Row], changes: Sequence[Change]) -> Iterator[Command]:
        """Operations for rows of a kind that is sorted by key and has no facets."""
        enter: list[str | bytes] = []
        leave: list[str | bytes] = []
        for change in changes:
            member = redis_keys.member_of(change.row)
            if isinstance(change, Put):
                enter += (b"0", member)
            else:
                leave.append(member)
        yield from _split("ZADD", keys.all(kind), enter)
        yield from _split("ZREM", keys.all(kind), leave)

    def _indexed(self, keys: Keys, kind: type[Row], changes: Sequence[Change]) -> Iterator[Command]:
        by_key = "" if redis_keys.ordered_by_key(kind) else keys.by_key(kind)
        sets = (keys.index(kind), keys.all(kind), by_key, keys.having(kind, ""))
        for at in range(0, len(changes), MAX_ARGUMENTS // 2):
            arguments: list[str | bytes] = []
            for change in changes[at : at + MAX_ARGUMENTS // 2]:
                entry = entry_of(change.row) if isinstance(change, Put) else _DELETED
                arguments += (change.key, entry)
            yield ("INDEX", *sets, *arguments)

    def watched(self) -> tuple[int, bytes]:
        """The count of changes that watches report, and those changes as bytes."""
        watched = [(change, one) for change, one in self._encoded if change.row.WATCHED]
        return len(watched), self._codec.encode_set(watched) if watched else b""


def _split(command: str, key: str, arguments: Sequence[str | bytes]) -> Iterator[Command]:
    for at in range(0, len(arguments), MAX_ARGUMENTS):
        yield (command, key, *arguments[at : at + MAX_ARGUMENTS])


def note_operations(keys: Keys, notes: Mapping[str, Any]) -> Iterator[Command]:
    """Store the writer's notes, each under its name."""
    flat = [part for name, note in notes.items() for part in (name, to_json(note))]
    yield from _split("HSET", keys.notes, flat)


def news(
    cell: str, keys: Keys, head: Head, position: Position, watched: tuple[int, bytes], keep: int
) -> tuple[Head, list[Command]]:
    """The head after a write that leads to `position`, and the commands that notify readers."""
    count, payload = watched
    after = replace(head, position=position, writes=head.writes + 1)
    commands: list[Command] = []
    if count:
        after = replace(after, watched=position, total=head.total + count)
        # A set's id is the number of its first change, so the ids tell which sets to drop.
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
    """Notify waiters that a generation has reached a position."""
    return (
        *("XADD", redis_keys.ticks(cell), "MAXLEN", MAX_TICKS, "*"),
        *("g", generation, "p", str(position), "s", int(switched)),
    )
