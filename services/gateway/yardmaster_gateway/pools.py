"""`/v1/pools`: read, configure, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_core.errors import UnknownPolicy
from yardmaster_core.scheduling.policies import POLICIES, policy_of
from yardmaster_gateway import errors
from yardmaster_gateway.bodies import body_of, invalid, takes
from yardmaster_gateway.context import Read, Reading, may
from yardmaster_gateway.filters import Cursor, Limit
from yardmaster_gateway.lists import page_of
from yardmaster_gateway.names import name_in_path
from yardmaster_gateway.problems import documented
from yardmaster_gateway.rights import Action
from yardmaster_gateway.writes import (
    Ask,
    IfMatch,
    IfNoneMatch,
    condition,
    etag,
    revision_of,
    submit_requests,
)
from yardmaster_projections import queries
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import PoolRow
from yardmaster_schemas.api import Accepted, FieldError, List, Pool, PoolConfig
from yardmaster_schemas.events.requests import PoolChangeRequestedV1, PoolDeletionRequestedV1

router = APIRouter(tags=["pools"])


@router.get(
    "/pools",
    operation_id="list_pools",
    response_model=List[Pool],
    responses=documented("bad_cursor"),
)
async def list_pools(reading: Read, limit: Limit = 100, cursor: Cursor = None) -> List[Pool]:
    """Pools, by name."""
    filters = Filters(newest_first=False, limit=limit, cursor=cursor)
    return await page_of(reading, PoolRow, filters, reading.presenter.pool)


async def _find(reading: Reading, name: str) -> PoolRow:
    row = await reading.store.get(PoolRow, name)
    if row is None:
        raise errors.NotFound(what=f"pool {name[:64]}")
    return row


@router.get(
    "/pools/{name}",
    operation_id="read_pool",
    response_model=Pool,
    responses=documented("not_found"),
)
async def read_pool(reading: Read, response: Response, name: str) -> Pool:
    """A pool and its policy."""
    row = await _find(reading, name)
    response.headers["ETag"] = etag(row.revision)
    return await reading.presenter.pool(row)


def _known_policy(config: PoolConfig) -> None:
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
            if not policy.simulated
        )
        detail = f"there is no policy {ref.name} of version {ref.version}; there are: {known}"
        field = FieldError(pointer="/policy/name", code="policy_unknown", detail=detail)
        raise invalid([field]) from None


@router.put(
    "/pools/{name}",
    operation_id="configure_pool",
    status_code=202,
    response_model=Accepted,
    openapi_extra=takes(PoolConfig),
    responses=documented(
        *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def configure_pool(
    reading: Read,
    response: Response,
    asker: Ask,
    name: str,
    config: Annotated[PoolConfig, Depends(body_of(PoolConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a pool: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    may(reading.caller, Action.OPERATE)
    _known_policy(config)
    pool = name_in_path(name, "pool")
    row = await reading.store.get(PoolRow, pool)
    current = row.revision if row is not None else None
    found = condition(f"pool {pool}", current, if_match, if_none_match)
    event = PoolChangeRequestedV1(pool=pool, config=config, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, pool)], asker, response)


@router.delete(
    "/pools/{name}",
    operation_id="delete_pool",
    status_code=202,
    response_model=Accepted,
    responses=documented(
        *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def delete_pool(
    reading: Read, response: Response, asker: Ask, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a pool that has neither nodes nor tasks, and that nothing names."""
    may(reading.caller, Action.OPERATE)
    row = await _find(reading, name)
    found = condition(f"pool {name}", row.revision, if_match)
    tally = await queries.tally(reading.store, f"pool/{name}")
    if tally.nodes or tally.waiting or tally.used_milli:
        have = f"{tally.nodes} nodes, {tally.waiting} waiting tasks"
        raise errors.InUse(what=f"pool {name}", found=have)
    event = PoolDeletionRequestedV1(pool=name, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, name)], asker, response)
