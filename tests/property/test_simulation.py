"""For any workload and cluster, the log verifies and a second run is equal."""

import asyncio
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.simulated import Ran, job, node, ran
from yardmaster_core.scheduling.planner.placement import PLACEMENTS
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import SlotsAllocatedV1, TaskEndedV1
from yardmaster_schemas.events.requests import DetailsRef
from yardmaster_simulation.workload import Behavior, NodeFaults, SimJob

JOBS = st.lists(
    st.builds(
        lambda submit, runs, gpus, replicas, preemptible, priority, grace: job(
            submit,
            *runs,
            gpus=gpus,
            preemptible=preemptible,
            priority=priority,
            replicas_min=replicas,
            replicas_max=replicas,
            grace_s=grace,
        ),
        st.integers(0, 300),
        st.lists(st.integers(0, 200), min_size=1, max_size=3),
        st.integers(0, 4),
        st.sampled_from([1, 1, 1, 2]),
        st.booleans(),
        st.integers(10, 12),
        st.sampled_from([0, 7, 30]),
    ),
    min_size=1,
    max_size=8,
)
BEHAVIORS = st.builds(
    Behavior,
    works_in_grace=st.booleans(),
    checkpoint_every_ms=st.sampled_from([None, 20_000]),
    checkpoint_cost_ms=st.sampled_from([0, 1_000]),
    restart_cost_ms=st.sampled_from([0, 5_000]),
)
FAULTS = st.sampled_from([None, NodeFaults(mean_up_ms=200_000, mean_down_ms=90_000)])
CONFIGS = st.fixed_dictionaries(
    {"placement": st.sampled_from(sorted(PLACEMENTS)), "seed": st.integers(0, 5)}
)


#: References to details, which do not exist without a log.
NOWHERE = DetailsRef(offset=0, digest="0" * 64)


def twice(**of: Any) -> Ran:
    """Run twice, check that both runs are equal, and return one."""
    jobs = sorted(of.pop("jobs"), key=lambda each: each.submit_ms)
    one, other = (ran(jobs, NODES, **of) for _ in range(2))
    assert one.records() == other.records(), "the same run wrote another log"
    unlogged = ran(jobs, NODES, logged=False, **of)
    assert without_details(one) == without_details(unlogged), "without a log the run differs"
    assert one.world.cycles == unlogged.world.cycles
    return one


def without_details(run: Ran) -> list[tuple[float, Event]]:
    """The events of a run with their times, without references to details."""
    found: list[tuple[float, Event]] = []
    for at, event in run.events:
        of: Any = event
        found.append((at, replace(of, details=NOWHERE) if hasattr(of, "details") else of))
    return found


NODES = [node("node-0", 4), node("node-1", 4), node("node-2", 2)]


@pytest.mark.parametrize("policy", sorted({name for name, _ in POLICIES}))
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs=JOBS,
    behavior=BEHAVIORS,
    faults=FAULTS,
    config=CONFIGS,
    cadence_ms=st.sampled_from([0, 30_000]),
    seed=st.integers(0, 3),
)
def test_a_log_verifies_and_a_run_without_a_log_is_equal(policy: str, **of: Any) -> None:
    if policy in ("quota", "starved_first"):
        # Without a quota a project deserves no GPUs for tasks that cannot be preempted; and one
        # owner gets at most a part of the pool for them.
        jobs: list[SimJob] = of["jobs"]
        of["jobs"] = [replace(each, spec=replace(each.spec, preemptible=True)) for each in jobs]
    run = twice(policy=policy, **of)
    report = asyncio.run(run.proved())
    assert report.ok, (report.findings, report.promises)
    assert not run.world.open, "a task that fits did not end"
    ended = {event.task_id for _, event in run.of(TaskEndedV1)}
    started = {event.task_id for _, event in run.of(SlotsAllocatedV1)}
    assert started == ended
