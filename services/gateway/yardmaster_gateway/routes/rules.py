"""`/v1/rules`: the version of the rules that decide, and the switch to newer ones."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from yardmaster_core.rules import RULES
from yardmaster_gateway.context import Gateway, Read, authorize
from yardmaster_gateway.http.bodies import body_of, request_body
from yardmaster_gateway.http.problems import problem_responses
from yardmaster_gateway.http.writes import IfMatch, Write, check_condition, etag
from yardmaster_gateway.identity.authorization import Action
from yardmaster_projections.rows import CycleRow, LogRow
from yardmaster_schemas.api import Accepted, Rules, RulesSwitch
from yardmaster_schemas.events.requests import RulesRequestedV1

router = APIRouter(tags=["rules"])


async def rules_in_force(gateway: Gateway) -> int | None:
    """Return the version of the rules of the scheduler's newest cycle; None before the first cycle.

    The scheduler switches to newer rules after quota does.
    """
    store = gateway.ports.views
    log = await store.get(LogRow, gateway.cell)
    row = None if log is None else await store.get(CycleRow, str(log.cycle))
    return None if row is None else row.commit.rules


@router.get(
    "/rules", operation_id="read_rules", response_model=Rules, responses=problem_responses()
)
async def read_rules(read: Read, response: Response) -> Rules:
    """Show the rules in force in the cell, and the newest rules of this gateway's version."""
    rules = await rules_in_force(read.gateway) or 0
    response.headers["ETag"] = etag(rules)
    return Rules(rules=rules, newest=RULES)


@router.put(
    "/rules",
    operation_id="switch_rules",
    status_code=202,
    response_model=Accepted,
    openapi_extra=request_body(RulesSwitch),
    responses=problem_responses(
        *("forbidden", "version_mismatch", "too_large", "unsupported_media_type", "invalid_spec"),
        *("precondition_required", "busy", "outcome_unknown"),
    ),
)
async def switch_rules(
    read: Read,
    write: Write,
    switch: Annotated[RulesSwitch, Depends(body_of(RulesSwitch))],
    if_match: IfMatch = None,
) -> Accepted:
    """Switch the cell to newer rules, as the last step of an upgrade. It cannot be taken back.

    Programs of the release before stop with `unknown_rules` where the rules change.
    """
    authorize(read.caller, Action.OPERATE)
    check_condition("rules", await rules_in_force(read.gateway) or 0, if_match)
    event = RulesRequestedV1(rules=switch.rules)
    return await write.record(read.gateway.cell, event)
