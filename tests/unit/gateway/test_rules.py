"""`/v1/rules`: the rules in force, and the switch to newer ones after an upgrade."""

import pytest

from tests.support.gateway import GatewayCell, gateway_cell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.rules import RULES
from yardmaster_core.scheduling.machine import SchedulerMachine


async def test_a_new_cell_has_the_newest_rules(cell: GatewayCell) -> None:
    await cell.joins("n2")
    await cell.run_until_idle()
    assert await cell.call("GET", "/v1/rules") == {"rules": RULES, "newest": RULES}
    match = {"If-Match": f'"{RULES}"'}
    accepted = await cell.call("PUT", "/v1/rules", status=202, json={"rules": RULES}, headers=match)
    request = await cell.call("GET", f"/v1/requests/{accepted['request_ids'][0]}")
    assert (request["state"], request["refusal"]["code"]) == ("refused", "repeated")


async def test_a_cell_of_the_release_before_is_switched_to_newer_rules_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = RULES + 1
    async with gateway_cell() as cell:
        await cell.joins("n2")
        await cell.run_until_idle()
        monkeypatch.setattr(QuotaMachine, "rules", newer)
        monkeypatch.setattr(SchedulerMachine, "rules", newer)
        monkeypatch.setattr("yardmaster_gateway.routes.rules.RULES", newer)
        path, body = "/v1/rules", {"rules": newer}
        assert await cell.call("GET", path) == {"rules": RULES, "newest": newer}
        match = {"If-Match": f'"{RULES}"'}
        await cell.call("PUT", path, status=428, json=body)
        await cell.call("PUT", path, status=422, json={"rules": 0}, headers=match)
        await cell.call("PUT", path, status=202, json=body, headers=match)
        assert await cell.call("GET", path) == {"rules": newer, "newest": newer}
        await cell.call("PUT", path, status=412, json=body, headers=match)
