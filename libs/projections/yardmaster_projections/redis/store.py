"""The views' store on Redis: rows, lists, position, notes and change sets of one cell.

A write is one MULTI/EXEC under WATCH of the generation's head and of the pointer to the generation:
whole or not at all, and never on top of another writer's (no scripting, so it runs wherever Redis
does). A read names the pointer and the head in its own MULTI/EXEC, so that what it finds is of one
generation and one position; a page takes several, and starts again when the head moved meanwhile,
a bounded number of times: then rows may be newer than the page's position, never older.

`redis_keys` draws the layout, `redis_write` says what a write is, `redis_pages` how a list is
walked, `redis_changes` and `redis_ticks` what watches and waiters read, `redis_generations` how
views are rebuilt beside those that are read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from yardmaster_projections.errors import ViewsMoved, ViewsUnavailable
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.redis.changes import KeptChanges
from yardmaster_projections.redis.pages import Walk
from yardmaster_projections.redis.settings import RedisSettings
from yardmaster_projections.redis.ticks import Clock, Ticks
from yardmaster_projections.redis.view import RedisView
from yardmaster_projections.redis.wire import EXEC, MULTI, UNWATCH, Link, Wire
from yardmaster_projections.redis.write import NO_NEWS, Fence, Write, notes_of, told
from yardmaster_projections.row_codec import RowCodec
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import Change, ChangeSet, Count, Found, Page, Query, Wanted
from yardmaster_schemas.position import Position

#: Changes that are kept for watches to resume from; a set is kept or dropped whole.
MAX_KEPT_CHANGES: Final = 50_000
#: How often a write is tried when others write between its look and its EXEC.
MAX_WRITE_TRIES: Final = 20


class RedisViewStore:
    """Rows of one cell in Redis; see `ViewStore`. It connects when it is first asked.

    `generation`: read and write that one, whatever counts; by default the one that counts.
    `space`: what else is kept of the cell under keys of its own, at a position of its own.
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
        self.cell = redis_keys.place(cell, space)
        self._max_kept = max_kept
        self._wire = Wire(settings)
        self._view = RedisView(self._wire, self.cell, RowCodec(), generation)
        # Half of what an answer may take, so that hearing nothing is no failure.
        self._ticks = Ticks(self._wire, self._view, clock, settings.timeout_s / 2)
        self._kept = KeptChanges(self._view)
        #: The generation that counted when its writer began; None: nobody did.
        self._begun: int | None = None

    async def close(self) -> None:
        """Hang up; whoever still waits is told that the store is gone."""
        await self._ticks.close()
        await self._wire.close()

    async def ping(self) -> None:
        """Whether Redis answers.

        Raises: ViewsUnavailable.
        """
        await self._wire.run([("PING",)])

    # --- writing --------------------------------------------------------------------------------

    async def apply(
        self,
        changes: Sequence[Change],
        position: Position,
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
    ) -> None:
        """Make all changes at once, with their position.

        Raises:
            ViewsMoved: the store is not at `before`, or another generation counts than when its
                writer began; nothing was changed.
            ViewsUnavailable: it may have been made, or not; `position` tells.
        """
        await self._write(changes, notes, position, Fence(before))

    async def begin(self) -> Position:
        """Be its writer, of the generation that counts now; what its rows cover.

        Raises: ViewsUnavailable.
        """
        seen = await self._view.look(lambda _: [])
        self._begun = seen.keys.generation
        return seen.head.position

    async def check(self, before: Position) -> None:
        """See that the store is where its writer left it, in the generation that it began.

        Raises: ViewsMoved, ViewsUnavailable.
        """
        seen = await self._view.look(lambda _: [])
        Fence(before).check(seen.head, seen.keys.generation, self._begun)

    async def note(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        *,
        before: Position | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """Make changes that no position counts.

        Raises:
            ViewsMoved: see `apply`; or a note of `noted` is another.
            ViewsUnavailable.
        """
        await self._write(changes, notes, None, Fence(before, noted or {}))

    async def _write(
        self,
        changes: Sequence[Change],
        notes: Mapping[str, Any],
        position: Position | None,
        fence: Fence,
    ) -> None:
        write = Write(changes, self._view.codec)
        async with self._wire.link() as link:
            try:
                written = await self._attempt(link, write, notes, position, fence)
            except _Unsent as unsent:
                if not link.was_idle:
                    raise unsent.error from unsent.error.__cause__
                written = None
        tries = 1
        while not written:
            if tries == MAX_WRITE_TRIES:
                raise ViewsUnavailable(found=f"others wrote first {tries} times")
            tries += 1
            async with self._wire.link() as link:
                try:
                    written = await self._attempt(link, write, notes, position, fence)
                except _Unsent as unsent:
                    raise unsent.error from unsent.error.__cause__
        self._view.codec.trim()

    async def _attempt(
        self,
        link: Link,
        write: Write,
        notes: Mapping[str, Any],
        position: Position | None,
        fence: Fence,
    ) -> bool:
        """Look, plan, write; False when another write came between, or another generation.

        Raises:
            _Unsent: nothing was sent that could change anything.
            ViewsMoved: see `apply`.
            ViewsUnavailable: the outcome is unknown.
        """
        view = self._view
        keys = view.keys
        watch = ("WATCH", view.pointer, keys.head)
        try:
            _, found, *answers = await link.run(
                [watch, ("MGET", view.pointer, keys.head), *write.reads(keys)]
            )
            head = view.follow(keys, found)
            if head is None:
                await link.run([UNWATCH])
                return False
            try:
                fence.check(head, keys.generation, self._begun)
                if fence.notes:
                    (noted,) = await link.run([("HMGET", keys.notes, *fence.notes)])
                    fence.check_notes(noted)
            except ViewsMoved:
                await link.run([UNWATCH])
                raise
            if fence.before is None and position is not None and head.position.covers(position):
                await link.run([UNWATCH])
                return True
            plan = write.plan(keys, answers)
            counts: dict[str, int] = {}
            if plan.released:
                (shared,) = await link.run([("HMGET", keys.refs, *plan.released)])
                counts = {
                    part: int(count or 0) for part, count in zip(plan.released, shared, strict=True)
                }
        except ViewsUnavailable as error:
            raise _Unsent(error) from error
        if position is None:
            after, news = replace(head, writes=head.writes + 1), NO_NEWS
        else:
            watched = write.watched()
            kept = watched[0] if write.erases else self._max_kept
            after, news = told(self.cell, keys, head, position, watched, kept)
        *_, done = await link.run(
            [
                MULTI,
                *plan.commands(counts),
                *notes_of(keys, notes),
                ("SET", keys.head, after.dump()),
                *news,
                EXEC,
            ]
        )
        return done is not None

    # --- reading --------------------------------------------------------------------------------

    async def position(self) -> Position:
        """What the rows cover.

        Raises: ViewsUnavailable.
        """
        return (await self._view.head()).position

    async def notes(self) -> Mapping[str, Any]:
        """What the writer stored beside the rows.

        Raises: ViewsUnavailable.
        """
        found = await self._view.look(lambda keys: [("HGETALL", keys.notes)])
        flat: list[bytes] = found.answers[0]
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(): json.loads(note) for name, note in pairs}

    async def get(self, kind: type[R], key: str) -> R | None:
        """The row of a key.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        found = await self.get_all([(kind, key)])
        row = found.rows[0]
        return row if isinstance(row, kind) else None

    async def get_all(self, wanted: Sequence[Wanted]) -> Found:
        """The rows of many keys, at one position.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        kinds: dict[type[Row], dict[str, None]] = {}
        for kind, key in wanted:
            kinds.setdefault(kind, {})[key] = None
        seen = await self._view.rows({kind: list(keys) for kind, keys in kinds.items()})
        return Found(tuple(seen.rows.get(one) for one in wanted), seen.head.position)

    async def page(self, kind: type[R], query: Query) -> Page[R]:
        """Rows of a kind, filtered, one page.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await Walk(self._view, kind, query).page()

    async def count(self, kind: type[Row], query: Query) -> Count:
        """How many rows a page would have.

        Raises: ViewsUnavailable.
        """
        return await Walk(self._view, kind, query).count()

    # --- waiting and watching -------------------------------------------------------------------

    async def reach(self, position: Position, timeout_s: float) -> bool:
        """Wait until the rows cover a position.

        Raises: ViewsUnavailable.
        """
        return await self._ticks.until(lambda now: now.covers(position), timeout_s)

    async def changes(self, after: Position) -> Sequence[ChangeSet] | None:
        """The change sets after a position; None when they are no longer kept.

        Raises: ViewsUnavailable, ViewsDamaged.
        """
        return await self._kept.after(after)

    async def changed(self, after: Position, timeout_s: float) -> bool:
        """Wait until something after a position was applied.

        Raises: ViewsUnavailable.
        """
        return await self._ticks.until(lambda now: not after.covers(now), timeout_s)


class _Unsent(Exception):
    """Nothing was sent that could change anything."""

    def __init__(self, error: ViewsUnavailable) -> None:
        super().__init__()
        self.error = error
