"""`/v1/nodes/{name}/enrolment`: which nodes may join, and with what."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_gateway import errors
from yardmaster_gateway.bodies import body_of, takes
from yardmaster_gateway.context import Read, Reading, may
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
from yardmaster_projections.rows import NodeRow
from yardmaster_schemas.api import Accepted, Enrolment, NodeEnrolment
from yardmaster_schemas.events.requests import NodeEnrolRequestedV1, NodeRevokeRequestedV1

router = APIRouter(tags=["nodes"])


async def _find(reading: Reading, name: str) -> NodeEnrolment | None:
    row = await reading.store.get(NodeRow, name)
    if row is None or row.enrolment is None:
        return None
    return NodeEnrolment(node=row.name, revision=row.enrolment_revision, enrolment=row.enrolment)


@router.get(
    "/nodes/{name}/enrolment",
    operation_id="read_enrolment",
    response_model=NodeEnrolment,
    responses=documented("not_found"),
)
async def read_enrolment(reading: Read, response: Response, name: str) -> NodeEnrolment:
    """What a node may claim when it joins."""
    found = await _find(reading, name)
    if found is None:
        raise errors.NotFound(what=f"enrolment of node {name[:64]}")
    response.headers["ETag"] = etag(found.revision)
    return found


@router.put(
    "/nodes/{name}/enrolment",
    operation_id="enrol_node",
    status_code=202,
    response_model=Accepted,
    openapi_extra=takes(Enrolment),
    responses=documented(
        *("forbidden", "not_found", "version_mismatch", "already_exists", "too_large"),
        *("unsupported_media_type", "invalid_spec", "precondition_required", "busy"),
        "outcome_unknown",
    ),
)
async def enrol_node(
    reading: Read,
    response: Response,
    asker: Ask,
    name: str,
    enrolment: Annotated[Enrolment, Depends(body_of(Enrolment))],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Accepted:
    """Let a node join: `If-None-Match: *` for a new one, `If-Match` to change what it may claim.

    From the first one on no node joins that is not enrolled.
    """
    may(reading.caller, Action.OPERATE)
    node = name_in_path(name, "node")
    known = await _find(reading, node)
    current = known.revision if known is not None else None
    found = condition(f"the enrolment of node {node}", current, if_match, if_none_match)
    event = NodeEnrolRequestedV1(node=node, enrolment=enrolment, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, node)], asker, response)


@router.delete(
    "/nodes/{name}/enrolment",
    operation_id="revoke_node",
    status_code=202,
    response_model=Accepted,
    responses=documented(
        *("forbidden", "not_found", "version_mismatch", "precondition_required"),
        *("busy", "outcome_unknown"),
    ),
)
async def revoke_node(
    reading: Read, response: Response, asker: Ask, name: str, if_match: IfMatch = None
) -> Accepted:
    """Trust a node no more: what it runs is stopped without grace, and it may not join again."""
    may(reading.caller, Action.OPERATE)
    known = await _find(reading, name)
    if known is None:
        raise errors.NotFound(what=f"enrolment of node {name[:64]}")
    found = condition(f"the enrolment of node {name}", known.revision, if_match)
    event = NodeRevokeRequestedV1(node=name, if_revision=revision_of(found))
    return await submit_requests(reading.gateway, [(event, name)], asker, response)
