"""Views as they were at a moment of the log: a fold in memory up to this moment."""

from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO

from yardmaster_core.commit import CountedCycle
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_eventlog.reader import Cursor, decoded
from yardmaster_projections import queries
from yardmaster_projections.fold import Fold
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.errors import BeforeFirstCycle
from yardmaster_runtime.replay.rebuild import after
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.position import Position
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS
from yardmaster_views.follower import MAX_READ, Follower, Metrics, Views


@dataclass(frozen=True, slots=True)
class PastViews:
    """Views of one projection at a moment: their time, and the last scheduler cycle in them."""

    store: MemoryViewStore
    now_ms: int
    cycle: int


async def views_at(
    log: EventLog,
    fold: Fold,
    cell: str,
    *,
    position: Position | None = None,
    time_ms: int | None = None,
    cycle: int | None = None,
    partition: int = 0,
) -> PastViews:
    """Fold the records within all bounds; without bounds, all records.

    A bound is a position, a time or the number of a scheduler cycle, and bounds cycles as in
    `state_at`. With `position` or `time_ms`, requests before this bound that no cycle has consumed
    are folded too; with `cycle`, they are not. The log is folded from its start.

    Raises:
        BeforeFirstCycle: the bounds are before the log's first cycle.
        and the errors of `Follower.project`.
    """
    clock = SystemClock()
    store = MemoryViewStore(cell, clock, max_kept=0)
    metrics = Metrics(Telemetry("views", now_ms=clock.now_ms, stream=StringIO(), level="warning"))
    follower = Follower(log, Views(store, store), cell, partition, metrics, fold=fold)
    await follower.start()
    if position is None and time_ms is None and cycle is None:
        await follower.project()
    else:
        beyond = after(DECISIONS.name, position, time_ms, cycle)
        await follower.project_cycles(DECISIONS.name, _not_first(beyond))
        if time_ms is not None or (position is not None and position.admissions is not None):
            beyond = after(ADMISSIONS.name, position, time_ms, None)
            await follower.project_cycles(ADMISSIONS.name, beyond)
        if time_ms is not None or (position is not None and position.requests is not None):
            taken = follower.position.requests or 0
            requests = Cursor(log, Partition(REQUESTS.name, partition), taken, MAX_READ)
            await follower.project_requests(await _end(requests, position, time_ms))
    row = await queries.log(store, cell)
    reached = (0, 0) if row is None else (row.now_ms, row.cycle)
    return PastViews(store, reached[0] if time_ms is None else time_ms, reached[1])


def _not_first(beyond: Callable[[CountedCycle], bool]) -> Callable[[CountedCycle], bool]:
    """Return `beyond` as a predicate that raises BeforeFirstCycle where no cycle is included.

    That is the case if `beyond` is true for the first cycle of the log.
    """
    seen = False

    def checked(counted: CountedCycle) -> bool:
        nonlocal seen
        ends = beyond(counted)
        if ends and not seen:
            first = counted.commit
            raise BeforeFirstCycle(cycle=first.cycle, at=rfc3339(first.now_ms))
        seen = True
        return ends

    return checked


async def _end(requests: Cursor, position: Position | None, time_ms: int | None) -> int:
    """Advance the cursor to the first request after the bounds; return the request's offset."""
    last = None if position is None else position.requests
    while (last is None or requests.offset < last) and await requests.fill(1):
        envelope = decoded(requests.peek())
        if time_ms is not None and envelope is not None and envelope.time_ms > time_ms:
            break
        requests.pop()
    return requests.offset
