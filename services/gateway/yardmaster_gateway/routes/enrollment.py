"""`/v1/nodes/{name}/enrollment`: which nodes may join the cluster, and with which resources."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.context import Read, ReadContext, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.names import valid_name
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import (
    IfMatch,
    IfNoneMatch,
    Write,
    as_revision,
    check_condition,
    etag,
)
from yardmaster_gateway.identity.authorization import Action
from yardmaster_gateway.routes.object_router import CONFIGURE_RESPONSES
from yardmaster_projections.rows import NodeRow
from yardmaster_schemas.api import Accepted, Enrollment, NodeEnrollment
from yardmaster_schemas.events.requests import NodeEnrolRequestedV1, NodeRevokeRequestedV1

router = APIRouter(tags=["nodes"])


async def _find(read: ReadContext, name: str) -> NodeEnrollment | None:
    row = await read.store.get(NodeRow, name)
    if row is None or row.enrollment is None:
        return None
    return NodeEnrollment(
        node=row.name, revision=row.enrollment_revision, enrollment=row.enrollment
    )


@router.get(
    "/nodes/{name}/enrollment",
    operation_id="read_enrollment",
    response_model=NodeEnrollment,
    responses=problem_responses("not_found"),
)
async def read_enrollment(read: Read, response: Response, name: str) -> NodeEnrollment:
    """Show what a node may claim when it joins."""
    found = await _find(read, name)
    if found is None:
        raise errors.NotFound(what=f"enrollment of node {name[:64]}")
    response.headers["ETag"] = etag(found.revision)
    return found


@router.put(
    "/nodes/{name}/enrollment",
    operation_id="enrol_node",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(Enrollment),
    responses=CONFIGURE_RESPONSES,
)
async def enrol_node(
    read: Read,
    write: Write,
    name: str,
    enrollment: Annotated[Enrollment, Depends(body_of(Enrollment))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Enroll a node (`If-None-Match: *`), or change what it may claim (`If-Match`).

    After the first enrollment of a cell, only enrolled nodes may join it.
    """
    authorize(read.caller, Action.OPERATE)
    node = valid_name(name, "node")
    known = await _find(read, node)
    current = known.revision if known is not None else None
    found = check_condition(f"the enrollment of node {node}", current, if_match, if_none_match)
    event = NodeEnrolRequestedV1(node=node, enrollment=enrollment, if_revision=as_revision(found))
    return await write.record(node, event)


@router.delete(
    "/nodes/{name}/enrollment",
    operation_id="revoke_node",
    status_code=202,
    response_model=Accepted,
    responses=problem_responses(
        *("forbidden", "not_found", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def revoke_node(read: Read, write: Write, name: str, if_match: IfMatch = None) -> Accepted:
    """Revoke a node: kill its tasks at once, and refuse it until it is enrolled again."""
    authorize(read.caller, Action.OPERATE)
    known = await _find(read, name)
    if known is None:
        raise errors.NotFound(what=f"enrollment of node {name[:64]}")
    found = check_condition(f"the enrollment of node {name}", known.revision, if_match)
    event = NodeRevokeRequestedV1(node=name, if_revision=as_revision(found))
    return await write.record(name, event)
