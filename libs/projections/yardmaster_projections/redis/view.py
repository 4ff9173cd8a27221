"""Reads of one generation: every answer comes with the head that was read together with it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from yardmaster_projections.errors import ViewsDamaged, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.client import Client, Command
from yardmaster_projections.redis.head import Head
from yardmaster_projections.redis.keys import Keys
from yardmaster_projections.row_codec import SHARED_BY, RowCodec, job_of
from yardmaster_projections.rows import Row

#: How often a read is tried while another generation becomes current.
MAX_TRIES: Final = 8
#: The current generation if no pointer exists.
FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class CurrentHead:
    """The current generation (`keys`) and its head, from one read.

    `pointer_raw` and `head_raw` are the bytes that were read; a conditional write compares them.
    """

    keys: Keys
    head: Head
    pointer_raw: bytes
    head_raw: bytes


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to some commands, in their order, and the head from the same read."""

    at: CurrentHead
    answers: list[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by kind and key, and the head from the same read."""

    at: CurrentHead
    rows: Mapping[tuple[type[Row], str], Row]


class _SharedLook:
    """Reads the head once for all callers that arrive while an earlier read is in progress."""

    def __init__(self, look: Callable[[], Awaitable[Head]]) -> None:
        self._look = look
        self._lock = asyncio.Lock()
        self._begun = 0
        self._done = 0
        self._head: Head | None = None
        self._error: ViewsUnavailable | None = None

    async def result(self) -> Head:
        """The head from a read that begins after this call."""
        wanted = self._begun + 1
        async with self._lock:
            if self._done < wanted:
                self._begun += 1
                try:
                    self._head, self._error = await self._look(), None
                except ViewsUnavailable as error:
                    self._head, self._error = None, error
                self._done = self._begun
            if self._head is None:
                assert self._error is not None, "a look has a head or an error"
                raise ViewsUnavailable(**self._error.fields) from self._error
            return self._head


class RedisView:
    """A cell's views: the current generation, or a given one."""

    def __init__(
        self, client: Client, cell: str, codec: RowCodec, generation: int | None = None
    ) -> None:
        self.cell = cell
        self.codec = codec
        self.pinned: Final = generation
        self.pointer: Final = redis_keys.current(cell)
        self.keys = Keys(cell, FIRST if generation is None else generation)
        self._client = client
        self._heads = _SharedLook(self._read_head)

    async def head(self) -> Head:
        """The head now; concurrent callers share one read.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await self._heads.result()

    async def _read_head(self) -> Head:
        return (await self.current()).head

    async def current(self) -> CurrentHead:
        """The current generation and its head.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        for _ in range(MAX_TRIES):
            keys = self.keys
            found = self.follow(keys, await self._client.run("MGET", self.pointer, keys.head))
            if found is not None:
                return found
        raise _switching()

    async def look(self, commands: Callable[[Keys], Sequence[Command]]) -> Answers:
        """The answers to commands on the current generation, with its head, from one read.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        for _ in range(MAX_TRIES):
            keys = self.keys
            guards, *answers = await self._client.read((self.pointer, keys.head), commands(keys))
            found = self.follow(keys, guards)
            if found is not None:
                return Answers(found, answers)
        raise _switching()

    def follow(self, keys: Keys, guards: Sequence[bytes | None]) -> CurrentHead | None:
        """Return the head, given the values of pointer and head that were read with `keys`.

        If another generation than that of `keys` is current, set `self.keys` to it, and return
        None: the read must be repeated.

        Raises: ViewsDamaged.
        """
        pointer, head = guards
        generation = self.pinned if self.pinned is not None else generation_of(pointer)
        if generation != keys.generation:
            self.keys = Keys(self.cell, generation)
            return None
        return CurrentHead(keys, Head.load(self.cell, head), pointer or b"", head or b"")

    async def rows(self, wanted: Mapping[type[Row], Sequence[str]]) -> Rows:
        """Rows by kind and key, joined with the values that rows of a job share.

        Rows that do not exist are left out.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        wanted = {kind: keys for kind, keys in wanted.items() if keys}
        # The key of a row contains the job, so one read returns the rows and their shared values.
        shared: dict[str, dict[str, None]] = {}
        for kind, row_keys in wanted.items():
            for name in SHARED_BY.get(kind, ()):
                shared.setdefault(name, {}).update(dict.fromkeys(map(job_of, row_keys)))

        def commands(keys: Keys) -> list[Command]:
            return [
                *(("HMGET", keys.rows(kind), *some) for kind, some in wanted.items()),
                *(("HMGET", keys.shared(name), *jobs) for name, jobs in shared.items()),
            ]

        seen = await self.look(commands)
        bodies = dict(zip(wanted, seen.answers, strict=False))
        values = {
            name: dict(zip(jobs, answer, strict=True))
            for (name, jobs), answer in zip(
                shared.items(), seen.answers[len(wanted) :], strict=True
            )
        }
        rows: dict[tuple[type[Row], str], Row] = {}
        for kind, row_keys in wanted.items():
            names = SHARED_BY.get(kind, ())
            for key, body in zip(row_keys, bodies[kind], strict=True):
                if body is not None:
                    of_job = {name: values[name][job_of(key)] for name in names}
                    rows[kind, key] = self.codec.decode(kind, body, of_job)
        return Rows(seen.at, rows)


def generation_of(pointer: bytes | None) -> int:
    """The generation that a pointer names.

    Raises: ViewsDamaged.
    """
    try:
        return int(pointer) if pointer is not None else FIRST
    except ValueError:
        raise ViewsDamaged(kind="pointer", found="it is no number") from None


def _switching() -> ViewsUnavailable:
    return ViewsUnavailable(found=f"their generation changed under each of {MAX_TRIES} reads")
