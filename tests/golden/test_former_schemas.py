"""Events that the release before cannot read are introduced by newer rules."""

import json
from typing import Final

from tests.support.former_schemas import KEPT, ROOT, SCHEMAS, digest
from yardmaster_core.rules import OLDEST_RULES
from yardmaster_schemas.events import EVENTS

#: Event types that no replica of the release before reads.
NOT_READ: Final = {
    "RulesRequested.v1": "quota answers it in the cycle where older replicas stop",
    "LogCut.v1": "the topic `cuts` is new; older programs do not read it",
}
#: Published schemas with a new value, and the rules below which no code writes or accepts it.
WIDENED: Final = {
    # For `isolation: user`; `share_limits` since 8.
    "NodeJoined.v1": 2,
    "TaskAdmitted.v1": 8,
    "CycleCommitted.v1": 4,
    "CycleCommitted.v2": 4,
    "RecordQuarantined.v1": 4,
    "ProjectChangeRequested.v1": 6,
    "DepartmentChangeRequested.v1": 8,
    "PoolChangeRequested.v1": 8,
    "PoolConfigured.v1": 8,
    "EntitlementsChanged.v1": 6,
    "RequestRefused.v1": 6,
    "TaskRejected.v1": 6,
    # For requests by memory of GPUs.
    "TaskSubmitted.v1": 8,
    "SlotsAllocated.v1": 8,
}


def test_a_new_event_type_or_version_is_introduced_by_rules_that_the_release_before_lacks() -> None:
    former = json.loads(KEPT.read_text())
    new = {f"{name}.v{version}": kind for (name, version), kind in EVENTS.items()}
    lacking = {
        name: kind.RULES
        for name, kind in new.items()
        if name not in former and kind.RULES <= OLDEST_RULES
    }
    assert lacking.keys() == NOT_READ.keys(), "see CONTRIBUTING, Add an event type"


def test_a_published_schema_that_accepts_more_than_before_names_the_rules_that_allow_it() -> None:
    """A changed schema makes replicas of the release before stop, unless newer rules guard it."""
    former = json.loads(KEPT.read_text())
    changed = {
        name
        for name, before in former.items()
        if digest((ROOT / SCHEMAS / f"{name}.json").read_text()) != before
    }
    assert changed == WIDENED.keys()
    assert min(WIDENED.values()) > OLDEST_RULES
