"""`/v1/pools`: list, show, configure, delete."""

from collections.abc import Awaitable, Callable

from yardmaster_core.errors import UnknownPolicy
from yardmaster_core.scheduling.policies import POLICIES, policy_of
from yardmaster_gateway.bodies import invalid_body
from yardmaster_gateway.context import ReadContext
from yardmaster_gateway.object_router import ObjectKind, object_router
from yardmaster_projections import queries
from yardmaster_projections.rows import PoolRow
from yardmaster_schemas.api import FieldError, List, Pool, PoolConfig
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import PoolChangeRequestedV1, PoolDeletionRequestedV1


class Pools(ObjectKind[PoolRow, PoolConfig, Pool]):
    """Pools: groups of nodes, each with a policy."""

    name = "pool"
    list_text = "List pools by name."
    read_text = "Show a pool and its policy."
    delete_text = (
        "Delete a pool that has no nodes and no tasks, and that no project, quota or enrollment "
        "names."
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
            return f"{counters.nodes} nodes and {counters.waiting} pending tasks"
        return None

    def change(self, name: str, config: PoolConfig, if_revision: int | None) -> Event:
        return PoolChangeRequestedV1(pool=name, config=config, if_revision=if_revision)

    def deletion(self, name: str, if_revision: int | None) -> Event:
        return PoolDeletionRequestedV1(pool=name, if_revision=if_revision)


router = object_router(Pools())
