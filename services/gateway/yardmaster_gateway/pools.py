"""`/v1/pools`: read, configure, delete."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_core.errors import UnknownPolicy
from yardmaster_core.scheduling.policies import POLICIES, policy_of
from yardmaster_gateway import errors
from yardmaster_gateway.authorization import Action
from yardmaster_gateway.bodies import body_of, invalid_body, request_body
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.filters import Cursor, Limit
from yardmaster_gateway.names import valid_name
from yardmaster_gateway.pages import page_of
from yardmaster_gateway.problems import problem_responses
from yardmaster_gateway.writes import (
    IfMatch,
    IfNoneMatch,
    Origin,
    as_revision,
    check_condition,
    etag,
    record_requests,
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
    responses=problem_responses("bad_cursor"),
)
async def list_pools(read: Read, limit: Limit = 100, cursor: Cursor = None) -> List[Pool]:
    """Pools, by name."""
    filters = Filters(newest_first=False, limit=limit, cursor=cursor)
    return await page_of(read, PoolRow, filters, read.presenter.pool)


async def _find(read: ReadContext, name: str) -> PoolRow:
    row = await read.store.get(PoolRow, name)
    if row is None:
        raise errors.NotFound(what=f"pool {name[:64]}")
    return row


@router.get(
    "/pools/{name}",
    operation_id="read_pool",
    response_model=Pool,
    responses=problem_responses("not_found"),
)
async def read_pool(read: Read, response: Response, name: str) -> Pool:
    """A pool and its policy."""
    row = await _find(read, name)
    response.headers["ETag"] = etag(row.revision)
    return await read.presenter.pool(row)


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
            if not policy.simulation_only
        )
        detail = f"there is no policy {ref.name} of version {ref.version}; there are: {known}"
        field = FieldError(pointer="/policy/name", code="policy_unknown", detail=detail)
        raise invalid_body([field]) from None


@router.put(
    "/pools/{name}",
    operation_id="configure_pool",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(PoolConfig),
    responses=problem_responses(
        *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def configure_pool(
    read: Read,
    response: Response,
    origin: Origin,
    name: str,
    config: Annotated[PoolConfig, Depends(body_of(PoolConfig))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Configure a pool: `If-None-Match: *` makes a new one, `If-Match` changes one."""
    authorize(read.caller, Action.OPERATE)
    _known_policy(config)
    pool = valid_name(name, "pool")
    row = await read.store.get(PoolRow, pool)
    current = row.revision if row is not None else None
    found = check_condition(f"pool {pool}", current, if_match, if_none_match)
    event = PoolChangeRequestedV1(pool=pool, config=config, if_revision=as_revision(found))
    return await record_requests(read.gateway, [(event, pool)], origin, response)


@router.delete(
    "/pools/{name}",
    operation_id="delete_pool",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(
        *("forbidden", "not_found", "in_use", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def delete_pool(
    read: Read, response: Response, origin: Origin, name: str, if_match: IfMatch = None
) -> Accepted:
    """Remove a pool that has neither nodes nor tasks, and that nothing names."""
    authorize(read.caller, Action.OPERATE)
    row = await _find(read, name)
    found = check_condition(f"pool {name}", row.revision, if_match)
    counters = await queries.counters(read.store, f"pool/{name}")
    if counters.nodes or counters.waiting or counters.used_milli:
        have = f"{counters.nodes} nodes, {counters.waiting} waiting tasks"
        raise errors.InUse(what=f"pool {name}", found=have)
    event = PoolDeletionRequestedV1(pool=name, if_revision=as_revision(found))
    return await record_requests(read.gateway, [(event, name)], origin, response)
