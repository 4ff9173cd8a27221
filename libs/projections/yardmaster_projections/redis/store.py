"""The views' store on Redis: rows, lists, position, notes and change sets of one cell.

A write is one Lua script (`write.lua`): it compares the pointer to the generation and the head of
the generation with what the writer read, and makes all changes or none. So a writer never
overwrites the changes of another writer. A read returns the pointer and the head too, in the same
step (`Client.read`), so its answer is of one generation and one position. A page takes several
reads, and starts again if the head has changed in between. After a bounded number of tries the page
is returned anyway; its rows may then be newer than its position, but never older.

`keys` shows the layout, `write` and `write.lua` make a write, `pages` reads lists, `changes` and
`ticks` serve watches and waiters, `generations` rebuilds views while the old ones are read.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from yardmaster_projections.errors import ViewsMoved, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.changes import KeptChanges
from yardmaster_projections.redis.client import Client, Command, arguments_of
from yardmaster_projections.redis.pages import PageReader
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.ticks import Clock, Ticks
from yardmaster_projections.redis.view import CurrentHead, RedisView
from yardmaster_projections.redis.write import (
    Shared,
    Write,
    news,
    note_operations,
)
from yardmaster_projections.row_codec import RowCodec
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import Change, ChangeSet, Count, Found, Page, Query, RowKey
from yardmaster_schemas.position import Position

#: Changes that are kept for watches to resume from; a set is kept or dropped whole.
MAX_KEPT_CHANGES: Final = 50_000
#: How often a write is tried while other processes write.
MAX_WRITE_TRIES: Final = 20
#: The most shared values that the writer remembers as stored.
MAX_STORED: Final = 100_000


class RedisViewStore:
    """Rows of one cell in Redis; see `ViewStore`. It connects on the first call.

    `generation`: the generation to read and write; by default the current one.
    `space`: the name of a part of the cell's rows with keys and a position of its own.
    """

    def __init__(
        self,
        settings: RedisSettings,
        cell: str,
        clock: Clock,
        *,
        generation: int | None = None,
        space: str = redis_keys.VIEWS,
        max_kept: int = MAX_KEPT_CHANGES,
    ) -> None:
        self.cell = redis_keys.namespace(cell, space)
        self._max_kept = max_kept
        self._client = Client(settings)
        self._script = self._client.script("write.lua")
        self._view = RedisView(self._client, self.cell, RowCodec(), generation)
        # A listener blocks for at most half of the deadline, so that it does not exceed the
        # deadline when no tick arrives.
        self._ticks = Ticks(self._client, self._view, clock, settings.timeout_s / 2)
        self._kept = KeptChanges(self._view, self._client)
        #: The generation that was current when `begin` was called; None if it was not called.
        self._begun: int | None = None
        self._writing = asyncio.Lock()
        #: The head after the last write of this store; None: it must be read first.
        self._last: CurrentHead | None = None
        #: The shared values that are stored at `_last`, so that they are not written again.
        self._stored: Shared = {}

    async def close(self) -> None:
        """Close all connections; waiting callers get `ViewsUnavailable`."""
        await self._client.close()

    async def ping(self) -> None:
        """Check that Redis answers.

        Raises: ViewsUnavailable.
        """
        await self._client.run("PING")

    # --- writing --------------------------------------------------------------------------------

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes in one write, and set the position of the rows to `position`.

        Raises:
            ViewsMoved: the store is not at `before`, or another generation is current than when
                its writer began; nothing was changed.
            ViewsUnavailable: the changes may have been made, or not; read `position`.
        """
        await self._write(changes, notes, position, before, {})

    async def begin(self) -> Position:
        """Become the writer of the current generation; return the position of its rows.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        at = await self._view.current()
        self._begun = at.keys.generation
        self._last = None
        return at.head.position

    async def check(self, before: Position) -> None:
        """Check that the store is where its writer left it, in the generation where it began.

        Raises: ViewsMoved, ViewsUnavailable.
        """
        self._compare(await self._view.current(), before)

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes that leave the position as it is.

        Raises:
            ViewsMoved: see `apply`; or a stored note differs from `noted`.
            ViewsUnavailable.
        """
        await self._write(changes, notes, None, before, noted or {})

    async def _write(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        position: Position | None,
        before: Position | None,
        noted: Mapping[str, Any],
    ) -> None:
        write = Write(changes, self._view.codec)
        async with self._writing:
            await self._try(write, notes, position, before, noted)

    async def _try(
        self,
        write: Write,
        notes: Mapping[str, Any],
        position: Position | None,
        before: Position | None,
        noted: Mapping[str, Any],
    ) -> None:
        """Write on top of the last head; if other processes wrote meanwhile, read the head again.

        Raises: ViewsMoved; ViewsUnavailable: other processes wrote first MAX_WRITE_TRIES times.
        """
        for _ in range(MAX_WRITE_TRIES):
            last, self._last = self._last, None
            if last is None:
                self._stored.clear()
            at = last or await self._view.current()
            try:
                self._compare(at, before)
                await self._compare_notes(at, noted)
            except ViewsMoved:
                if last is None:
                    raise
                continue  # another process wrote: read the head first
            if before is None and position is not None and at.head.position.covers(position):
                if last is None:
                    return
                continue
            if await self._attempt(at, write, notes, position):
                return
        raise ViewsUnavailable(found=f"other processes wrote first {MAX_WRITE_TRIES} times")

    async def _attempt(
        self, at: CurrentHead, write: Write, notes: Mapping[str, Any], position: Position | None
    ) -> bool:
        """Write, and return True, if nothing was written since `at` was read."""
        keys = at.keys
        operations = [*write.operations(keys, self._stored), *note_operations(keys, notes)]
        after = replace(at.head, writes=at.head.writes + 1)
        if position is not None:
            watched = write.watched()
            kept = watched[0] if write.erases else self._max_kept
            after, commands = news(self.cell, keys, at.head, position, watched, kept)
            operations += commands
        raw = after.dump()
        pointer = b"*" if self._view.pinned is not None else at.pointer_raw
        arguments = (pointer, at.head_raw, raw, *arguments_of(operations))
        if not await self._script((self._view.pointer, keys.head), arguments):
            return False
        if len(self._stored) > MAX_STORED:
            self._stored.clear()
        self._stored |= write.shared
        self._last = CurrentHead(keys, after, at.pointer_raw, raw)
        return True

    def _compare(self, at: CurrentHead, before: Position | None) -> None:
        """Check that the store is at `before`, in the generation in which its writer began.

        Raises: ViewsMoved.
        """
        if before is None:
            return
        generation, begun = at.keys.generation, self._begun
        if begun is not None and generation != begun:
            raise ViewsMoved(found=f"generation {generation}", expected=f"generation {begun}")
        if at.head.position != before:
            raise ViewsMoved(found=at.head.position, expected=before)

    async def _compare_notes(self, at: CurrentHead, noted: Mapping[str, Any]) -> None:
        """Check that the stored notes equal `noted`, as their writer left them.

        A write after this check changes the head, so that the conditional write fails.

        Raises: ViewsMoved.
        """
        if not noted:
            return
        for (name, note), raw in zip(
            noted.items(),
            await self._client.run("HMGET", at.keys.notes, *noted),
            strict=True,
        ):
            found = None if raw is None else json.loads(raw)
            if found != note:
                raise ViewsMoved(found=f"{name} {found}", expected=note)

    # --- reading --------------------------------------------------------------------------------

    async def position(self) -> Position:
        """The position of the rows.

        Raises: ViewsUnavailable.
        """
        return (await self._view.head()).position

    async def notes(self) -> Mapping[str, Any]:
        """The notes that the writer stored with the rows.

        Raises: ViewsUnavailable.
        """

        def commands(keys: redis_keys.Keys) -> list[Command]:
            return [("HGETALL", keys.notes)]

        (notes,) = (await self._view.look(commands)).answers
        pairs = zip(notes[::2], notes[1::2], strict=True)
        return {name.decode(): json.loads(note) for name, note in pairs}

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        found = await self.get_all([(kind, key)])
        row = found.rows[0]
        return row if isinstance(row, kind) else None

    async def get_all(self, wanted: Sequence[RowKey]) -> Found:
        """The rows of many keys, at one position.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        kinds: dict[type[Row], dict[str, None]] = {}
        for kind, key in wanted:
            kinds.setdefault(kind, {})[key] = None
        seen = await self._view.rows({kind: list(keys) for kind, keys in kinds.items()})
        return Found(tuple(seen.rows.get(one) for one in wanted), seen.at.head.position)

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await PageReader(self._view, kind, query).page()

    async def count(self, kind: type[Row], query: Query) -> Count:
        """The number of rows that a page would have.

        Raises: ViewsUnavailable.
        """
        return await PageReader(self._view, kind, query).count()

    # --- waiting and watching -------------------------------------------------------------------

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position; False after `timeout_s`.

        Raises: ViewsUnavailable.
        """
        return await self._ticks.until(lambda now: now.covers(position), timeout_s)

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position; None when they are no longer kept.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await self._kept.after(after)

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied; False after `timeout_s`.

        Raises: ViewsUnavailable.
        """
        return await self._ticks.until(lambda now: not after.covers(now), timeout_s)
