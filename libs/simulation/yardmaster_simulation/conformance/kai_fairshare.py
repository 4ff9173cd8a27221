"""Check KAI-Scheduler's scenarios that divide resources among queues once."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from yardmaster_core.scheduling.policies.quota.division import QueueDemand, divide, divide_rest
from yardmaster_simulation.conformance.scenarios import Format, Scenario, parsed

#: KAI's number for "no limit".
UNLIMITED: Final = -1
#: The units into which one unit of each resource is divided: a GPU has 1000 parts, and the other
#: resources are whole numbers.
PARTS: Final = {"gpu": 1000, "cpu_millis": 1, "mem_bytes": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue with its quota (`deserved`), limit (`max_allowed`) and request of one resource."""

    name: str
    tie_break_id: str
    priority: int
    created_seq: int
    deserved: Decimal
    max_allowed: Decimal
    request: Decimal
    over_quota_weight: int
    fair_share_before: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected fair shares, and the undivided rest; None: the scenario does not state it."""

    fair_share: dict[str, Decimal]
    remaining: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One division of a resource among queues.

    `over_quota_only`: the queues already have `fair_share_before`. `k_value`: the weight of past
    usage, which these scenarios do not have.
    """

    op: Literal["deserved_then_over_quota", "over_quota_only"]
    resource: Literal["gpu", "cpu_millis", "mem_bytes"]
    total: Decimal
    k_value: Decimal
    queues: tuple[Queue, ...]
    expected: Expected


def check(scenario: Scenario) -> str:
    """Return how the core's division differs from KAI's; empty: they agree."""
    case = parsed(Case, scenario)
    unit = PARTS[case.resource]

    def amount(value: Decimal) -> int:
        # KAI's numbers are floating-point numbers: 32.54999999999996 GPUs are 32,550 parts.
        return round(value * unit)

    def demand(queue: Queue) -> QueueDemand:
        limited = queue.max_allowed != UNLIMITED
        return QueueDemand(
            name=queue.tie_break_id,
            rank=queue.priority,
            deserved=None if queue.deserved == UNLIMITED else amount(queue.deserved),
            demand=amount(min(queue.request, queue.max_allowed) if limited else queue.request),
            weight=queue.over_quota_weight,
            age=queue.created_seq,
        )

    demands = [demand(queue) for queue in case.queues]
    usage_weight = Fraction(case.k_value)
    if case.op == "over_quota_only":
        before = {queue.tie_break_id: amount(queue.fair_share_before) for queue in case.queues}
        found = divide_rest(amount(case.total), demands, before, unit, usage_weight)
    else:
        found = divide(amount(case.total), demands, unit, usage_weight)
    ids = {queue.name: queue.tie_break_id for queue in case.queues}
    differences = [
        f"{name}: {found.shares[ids[name]] / unit:g} instead of {share}"
        for name, share in case.expected.fair_share.items()
        if found.shares[ids[name]] != amount(share)
    ]
    remaining = case.expected.remaining
    if remaining is not None and found.left != amount(remaining):
        differences.append(f"remaining: {found.left / unit:g} instead of {remaining}")
    return "; ".join(differences)


FAIRSHARE: Final = Format("kai_fairshare", frozenset({"op", "resource", "queues"}), check)
