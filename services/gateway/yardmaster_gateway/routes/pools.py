"""`/v1/pools`: list, show, configure, delete."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Query

from yardmaster_core.errors import UnknownPolicy
from yardmaster_core.scheduling.policies import POLICIES, options_of, policy_of
from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext
from yardmaster_gateway.http.bodies import invalid_body
from yardmaster_gateway.http.filters import Limit, Names, split_values
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.routes.object_router import ObjectKind, object_router
from yardmaster_projections import queries
from yardmaster_projections.queue_pages import QueueReader
from yardmaster_projections.rows import PoolRow
from yardmaster_schemas.api import FieldError, List, Pool, PoolConfig, QueuedTasks, QueueShown
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import PoolChangeRequestedV1, PoolDeletionRequestedV1

#: A cursor of a queue. It may be longer than the cursor of a list, because it has more parts.
QueueCursor = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]+$", max_length=1000)]


class Pools(ObjectKind[PoolRow, PoolConfig, Pool]):
    """Pools: groups of nodes, each with a policy."""

    name = "pool"
    list_text = "List pools by name."
    read_text = "Show a pool and its policy."
    delete_text = (
        "Delete a pool that has no nodes and no tasks, and that neither a project, a quota, an "
        "enrollment nor the cell names."
    )
    row = PoolRow
    config = PoolConfig
    answer = Pool
    page_answer = List[Pool]

    def presenter(self, read: ReadContext) -> Callable[[PoolRow], Awaitable[Pool]]:
        return read.presenter.pool

    def validate(self, config: PoolConfig) -> None:
        """Refuse a policy that does not exist; quota judges everything else about a pool.

        Raises:
            InvalidBody: with the policies that exist.
        """
        try:
            policy_of(config.policy)
        except UnknownPolicy:
            ref = config.policy
            known = ", ".join(
                f"{name} (version {version})"
                for (name, version), policy in POLICIES.items()
                if not policy.simulation_only
            )
            detail = f"there is no policy {ref.name} version {ref.version}; choose one of: {known}"
            field = FieldError(pointer="/policy/name", code="policy_unknown", detail=detail)
            raise invalid_body([field]) from None

    async def users(self, read: ReadContext, name: str) -> str | None:
        counters = await queries.counters(read.store, f"pool/{name}")
        if counters.nodes or counters.waiting or counters.used_milli:
            nodes, tasks = (
                count_of(counters.nodes, "node"),
                count_of(counters.waiting, "pending task"),
            )
            return f"{nodes} and {tasks}"
        return None

    def change(self, name: str, config: PoolConfig, if_revision: int | None) -> Event:
        return PoolChangeRequestedV1(pool=name, config=config, if_revision=if_revision)

    def deletion(self, name: str, if_revision: int | None) -> Event:
        return PoolDeletionRequestedV1(pool=name, if_revision=if_revision)


POOLS: Final = Pools()
router = object_router(POOLS)


@router.get(
    "/pools/{name}/queue",
    operation_id="read_queue",
    response_model=QueueShown,
    responses=problem_responses("bad_cursor", "not_found"),
)
async def read_queue(
    read: Read,
    name: str,
    project: Names = None,
    grouped: bool = True,
    limit: Limit = 100,
    cursor: QueueCursor = None,
) -> QueueShown:
    """List the pending tasks of a pool in the order of its policy at the last cycle.

    An item is the tasks of one job that follow each other and wait for the same reason, or with
    `grouped=false` one task. Positions count all tasks, also those that the caller may not see or
    that `project` excludes; a task that is held keeps its place. Follow `next_cursor` even if a
    page has fewer items than `limit`.
    """
    row = await POOLS.get(read, name)
    presenter = read.presenter
    ref, wanted = row.config.policy, split_values(project)
    reader = QueueReader(
        read.store,
        row.name,
        policy_of(ref),
        options_of(ref),
        read.gateway.ports.clock.now_ms(),
        includes=lambda one: read.visibility.includes(one) and (not wanted or one in wanted),
        grouped=grouped,
    )
    try:
        page = await reader.page(limit, cursor)
    except queries.BadCursor:
        raise errors.BadCursor() from None
    items = [
        QueuedTasks(
            position=one.position,
            first=await presenter.task(one.first),
            last_index=one.last_index,
            count=one.count,
        )
        for one in page.groups
    ]
    return QueueShown(items=items, next_cursor=page.cursor, policy=ref, position=str(read.position))
