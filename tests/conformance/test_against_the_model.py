"""The core and the slow model of Determined's planner agree on random clusters."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.conformance import planner_model as model
from yardmaster_simulation.conformance.determined_form import PlanningPass
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.scenarios import Outcome, check, parsed

places = st.sampled_from([0, 1, 2, 100])
agents = st.lists(
    st.fixed_dictionaries(
        {
            "slots": st.sampled_from([1, 2, 4, 4, 8]),
            "max_zero_slot": places,
            "draining": st.sampled_from([False] * 9 + [True]),
        }
    ),
    min_size=1,
    max_size=4,
)
asks = st.fixed_dictionaries(
    {
        "slots": st.sampled_from([0, 1, 1, 2, 4, 8]),
        "non_preemptible": st.sampled_from([False] * 3 + [True]),
    },
    optional={"single_agent": st.just(True), "blocked": st.integers(0, 9)},
)
groups = st.lists(
    st.fixed_dictionaries(
        {
            "priority": st.sampled_from([1, 5, 42, 42, 42, 50, 99]),
            "asks": asks,
            "tasks": st.lists(st.booleans(), min_size=1, max_size=5),
        }
    ),
    min_size=1,
    max_size=5,
)
options = st.fixed_dictionaries(
    {
        "fitting_policy": st.sampled_from(["best", "worst"]),
        "allow_heterogeneous_fits": st.sampled_from([False, False, True]),
        "preemption": st.sampled_from([True, True, False]),
        "impossible_block": st.just(True),
    }
)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """A scenario without its outcome; running tasks are where the model would place them."""
    listed = [{"id": f"a{n}", **agent} for n, agent in enumerate(draw(agents))]
    chosen: dict[str, Any] = draw(options)
    if chosen["fitting_policy"] == "worst":
        # Tasks that stand for places that an agent lacks would count as tasks that it runs.
        most = draw(places)
        listed = [{**agent, "max_zero_slot": most} for agent in listed]
    made: list[dict[str, Any]] = draw(groups)
    tasks: list[dict[str, Any]] = []
    for number, group in enumerate(made):
        for runs in group["tasks"]:
            ask = dict(group["asks"])
            blocked = ask.pop("blocked", None)
            if blocked is not None:
                ask["blocked_agents"] = [listed[blocked % len(listed)]["id"]]
            task = {"id": f"t{len(tasks)}", "group": f"g{number}", "created_order": len(tasks)}
            tasks.append({**task, **ask, "state": "pending", "runs": runs})
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(made))))
        chosen["queue_positions"] = {f"g{n}": str(place) for n, place in enumerate(order)}
    scenario = {
        "id": "made up",
        "policy": "priority",
        "options": chosen,
        "agents": [{**agent, "draining": False} for agent in listed],
        "groups": [{"id": f"g{n}", "priority": group["priority"]} for n, group in enumerate(made)],
        "tasks": tasks,
        "expected": {"to_allocate": [], "to_release": []},
    }
    read = parsed(PlanningPass, scenario)
    room = model.agents_of(read)
    for task, as_read in zip(tasks, read.tasks, strict=True):
        fit = model.fits(room, as_read, read.options) if task.pop("runs") else None
        if fit is not None:
            model.hold(room, as_read, fit)
            on = [{"agent": room[i].name, "slots_held": slots} for i, slots in fit]
            task |= {"state": "allocated", "on": on}
    used = [
        {**agent, "slots_used": has.used, "zero_slot_used": has.places_used}
        for agent, has in zip(listed, room, strict=True)
    ]
    return {**scenario, "agents": used}


@given(clusters())
@settings(max_examples=300)
def test_priority_decides_as_the_model_does(scenario: dict[str, Any]) -> None:
    plan = model.ByPriority(parsed(PlanningPass, scenario))
    assume(not plan.unsure)
    expected = {"to_allocate": sorted(plan.starts), "to_release": sorted(plan.stops)}
    verdict = check({**scenario, "expected": expected}, FORMATS)
    # Of equal nodes the model may choose another one: such a scenario says nothing.
    assume(verdict.outcome is not Outcome.SKIPPED)
    assert verdict.outcome is Outcome.PASSED, verdict.why
