"""One generation as readers find it: every answer comes with the head that it was read with."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_projections.errors import ViewsDamaged, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.redis.wire import Command, Wire
from yardmaster_projections.row_codec import MissingPart, RowCodec
from yardmaster_projections.rows import Row

#: How often a read is tried while another generation comes to count, or rows lose their parts.
MAX_TRIES: Final = 8
#: The generation that counts where no pointer says so.
FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """Answers, and the head and generation at the very moment they were read."""

    keys: Keys
    head: Head
    answers: list[Any]


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Rows, and the head and generation at the very moment they were read."""

    keys: Keys
    head: Head
    rows: dict[tuple[type[Row], str], Row]


class _Rounds:
    """One look for all who ask while the one before is under way; it begins after they asked."""

    def __init__(self, look: Callable[[], Awaitable[Head]]) -> None:
        self._read = look
        self._lock = asyncio.Lock()
        self._begun = 0
        self._done = 0
        self._head: Head | None = None
        self._error: ViewsUnavailable | None = None

    async def result(self) -> Head:
        """What a look finds that begins now or later."""
        wanted = self._begun + 1
        async with self._lock:
            if self._done < wanted:
                self._begun += 1
                try:
                    self._head, self._error = await self._read(), None
                except ViewsUnavailable as error:
                    self._head, self._error = None, error
                self._done = self._begun
            if self._head is None:
                assert self._error is not None, "a look has a head or an error"
                raise ViewsUnavailable(**self._error.fields) from self._error
            return self._head


class RedisView:
    """A cell's views, by the generation that counts or by a given one."""

    def __init__(
        self, wire: Wire, cell: str, codec: RowCodec, generation: int | None = None
    ) -> None:
        self.cell = cell
        self.codec = codec
        self.wire = wire
        self.pinned: Final = generation
        self.pointer: Final = redis_keys.current(cell)
        self.keys = Keys(cell, FIRST if generation is None else generation)
        self._heads = _Rounds(self._read_head)

    def follow(self, keys: Keys, found: Sequence[bytes | None]) -> Head | None:
        """The head, given pointer and head as read by `keys`; None when those keys do not count.

        Raises: ViewsDamaged.
        """
        pointer, head = found
        generation = self.counting(pointer)
        if generation != keys.generation:
            self.keys = Keys(self.cell, generation)
            return None
        return Head.load(self.cell, head)

    def counting(self, pointer: bytes | None) -> int:
        """The generation that counts, given the pointer."""
        if self.pinned is not None:
            return self.pinned
        try:
            return int(pointer) if pointer is not None else FIRST
        except ValueError:
            raise ViewsDamaged(kind="pointer", found="it is no number") from None

    async def head(self) -> Head:
        """The head that counts now; who asks at the same time shares one look.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await self._heads.result()

    async def _read_head(self) -> Head:
        for _ in range(MAX_TRIES):
            keys = self.keys
            (found,) = await self.wire.run([("MGET", self.pointer, keys.head)])
            head = self.follow(keys, found)
            if head is not None:
                return head
        raise _restless()

    async def look(self, commands: Callable[[Keys], Sequence[Command]]) -> Seen:
        """Answers to commands, all of one moment and of the generation that counts then.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        for _ in range(MAX_TRIES):
            keys = self.keys
            where = (self.pointer, keys.head)
            found, *answers = await self.wire.read(where, [("MGET", *where), *commands(keys)])
            head = self.follow(keys, found)
            if head is not None:
                return Seen(keys, head, answers)
        raise _restless()

    async def rows(self, wanted: Mapping[type[Row], Sequence[str]]) -> "SeenRows":
        """Rows by kind and key, all of one moment; what is not there is left out.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        for _ in range(MAX_TRIES):
            seen = await self.look(
                lambda keys: [
                    ("HMGET", keys.rows(kind), *some) for kind, some in wanted.items() if some
                ]
            )
            raws = {
                (kind, key): raw
                for (kind, some), answer in zip(
                    ((kind, some) for kind, some in wanted.items() if some),
                    seen.answers,
                    strict=True,
                )
                for key, raw in zip(some, answer, strict=True)
                if raw is not None
            }
            needed = dict.fromkeys(name for raw in raws.values() for name in self.codec.needs(raw))
            given = await self.parts(seen.keys, list(needed))
            try:
                rows = {
                    (kind, key): self.codec.decode(kind, raw, given)
                    for (kind, key), raw in raws.items()
                }
                return SeenRows(seen.keys, seen.head, rows)
            except MissingPart:
                # The row changed between the two reads, and took the part's last holder with it.
                continue
            finally:
                self.codec.trim()
        raise _restless()

    async def parts(self, keys: Keys, names: Sequence[str]) -> dict[str, bytes]:
        """The parts of these names that are there.

        Raises: ViewsUnavailable.
        """
        if not names:
            return {}
        (found,) = await self.wire.run([("HMGET", keys.parts, *names)])
        return {name: body for name, body in zip(names, found, strict=True) if body is not None}


def _restless() -> ViewsUnavailable:
    return ViewsUnavailable(found=f"they changed under each of {MAX_TRIES} reads")
