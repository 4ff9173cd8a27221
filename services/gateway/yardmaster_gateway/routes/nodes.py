"""`/v1/nodes`: list, show, cordon, drain, uncordon, disable slots."""

from hashlib import sha256
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.http.bodies import body_of, invalid_body, request_body
from yardmaster_gateway.http.filters import Cursor, Limit, Names, States, split_values
from yardmaster_gateway.http.pages import page_of
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import (
    IfMatch,
    Write,
    check_condition,
    etag,
)
from yardmaster_gateway.identity.authorization import Action
from yardmaster_projections.queries import Filters
from yardmaster_projections.rows import NodeRow
from yardmaster_schemas.api import (
    Accepted,
    FieldError,
    List,
    Node,
    NodePatch,
    NodeSlots,
    RequestedNodeState,
)
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.requests import (
    NodeCordonRequestedV1,
    NodeDrainRequestedV1,
    NodeSlotsChangeRequestedV1,
    NodeUncordonRequestedV1,
)
from yardmaster_schemas.instants import parse_rfc3339

router = APIRouter(tags=["nodes"])

#: The problems of a request that changes a node.
_CHANGE_RESPONSES: Final = problem_responses(
    *("forbidden", "not_found", "version_mismatch", "too_large", "unsupported_media_type"),
    *("invalid_spec", "precondition_required", "busy", "outcome_unknown"),
)


def _tag(row: NodeRow) -> str:
    """The ETag of a node: a digest of its operator settings, which have no revision in the log."""
    changeable = f"{row.cordoned}|{row.deadline_at_ms}|{row.reason}"
    if row.disabled:
        changeable += f"|{row.disabled}|{row.disabled_reason}"
    return sha256(changeable.encode()).hexdigest()[:16]


@router.get(
    "/nodes",
    operation_id="list_nodes",
    response_model=List[Node],
    responses=problem_responses("bad_cursor"),
)
async def list_nodes(
    read: Read,
    pool: Names = None,
    state: States = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> List[Node]:
    """List the nodes that have joined or are enrolled, by name."""
    filters = Filters(
        pools=split_values(pool),
        states=split_values(state),
        newest_first=False,
        limit=limit,
        cursor=cursor,
    )
    return await page_of(read, NodeRow, filters, read.presenter.node)


async def _find(read: ReadContext, name: str) -> NodeRow:
    row = await read.store.get(NodeRow, name)
    if row is None or row.offer is None:
        raise errors.NotFound(what=f"node {name[:64]}")
    return row


async def _find_for_change(read: ReadContext, name: str, if_match: str | None) -> NodeRow:
    """Return a node that the caller may change, in the version that `If-Match` names."""
    authorize(read.caller, Action.OPERATE)
    row = await _find(read, name)
    check_condition(f"node {name}", _tag(row), if_match)
    return row


@router.get(
    "/nodes/{name}",
    operation_id="read_node",
    response_model=Node,
    responses=problem_responses("not_found"),
)
async def read_node(read: Read, response: Response, name: str) -> Node:
    """Show a node: its resources, and the tasks on its slots."""
    row = await _find(read, name)
    response.headers["ETag"] = etag(_tag(row))
    return await read.presenter.node(row)


@router.patch(
    "/nodes/{name}",
    operation_id="change_node",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(NodePatch),
    responses=_CHANGE_RESPONSES,
)
async def change_node(
    read: Read,
    write: Write,
    name: str,
    patch: Annotated[NodePatch, Depends(body_of(NodePatch))],
    if_match: IfMatch = None,
) -> Accepted:
    """Cordon a node, drain it by a deadline, or uncordon it."""
    await _find_for_change(read, name, if_match)
    event: Event
    deadline_ms = _deadline(patch)
    if patch.state is RequestedNodeState.READY:
        event = NodeUncordonRequestedV1(node=name)
    else:
        ref = await write.note(name, patch.reason)
        if deadline_ms is None:
            event = NodeCordonRequestedV1(node=name, note=ref)
        else:
            event = NodeDrainRequestedV1(node=name, deadline_at_ms=deadline_ms, note=ref)
    return await write.record(name, event)


@router.put(
    "/nodes/{name}/slots",
    operation_id="change_node_slots",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(NodeSlots),
    responses=_CHANGE_RESPONSES,
)
async def change_node_slots(
    read: Read,
    write: Write,
    name: str,
    slots: Annotated[NodeSlots, Depends(body_of(NodeSlots))],
    if_match: IfMatch = None,
) -> Accepted:
    """Disable the given slots of a node and enable all others. `If-Match` is the node's ETag."""
    row = await _find_for_change(read, name, if_match)
    offer = row.offer
    gpus = offer.gpus if offer is not None else 0
    for index, slot in enumerate(slots.disabled):
        if slot >= gpus and slot not in row.disabled:
            detail = f"{name} has {gpus} slots, numbered from 0"
            field = FieldError(pointer=f"/disabled/{index}", code="value_error", detail=detail)
            raise invalid_body([field])
    ref = await write.note(name, slots.reason)
    event = NodeSlotsChangeRequestedV1(
        node=name, disabled=tuple(sorted(set(slots.disabled))), stop=slots.stop, note=ref
    )
    return await write.record(name, event)


def _deadline(patch: NodePatch) -> int | None:
    if patch.deadline_at is None:
        return None
    try:
        return parse_rfc3339(patch.deadline_at)
    except ValueError as error:
        field = FieldError(pointer="/deadline_at", code="value_error", detail=str(error))
        raise invalid_body([field]) from None
