"""Scenarios of Determined's planner: one planning pass, or the placement of one task.

An agent becomes a node and a group becomes a job. If the tasks of a group differ or were created at
different times, each task becomes a job, and under `fair_share` the group becomes the project of
these jobs. Tasks of several slots use the layout `whole_nodes`. A disabled or draining agent
becomes a cordoned node. The checks compare the first cycle: the set of tasks that start and the set
of tasks that are preempted.

Yardmaster chooses among equal nodes by the order in which they joined; Determined chooses by a hash
of task and agent. If the expected outcome needs another order of joins than the scenario's order of
agents, the tie decides the outcome, and the scenario is skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, islice, permutations
from math import lcm
from typing import Any, Final

from yardmaster_schemas.events.requests import Layout
from yardmaster_simulation.conformance.determined_form import (
    WORST_PRIORITY,
    Agent,
    Fit,
    FitTask,
    Group,
    Options,
    PlanningPass,
    Task,
)
from yardmaster_simulation.conformance.scenario_cluster import Decided, ScenarioCluster
from yardmaster_simulation.conformance.scenarios import Format, Scenario, Skip, parsed

#: With at most this many nodes, the check tries every order in which they can join.
MOST_PERMUTED: Final = 5
#: The most orders that the check tries.
MOST_ORDERS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Tasks of one group, in order, that are submitted as one job."""

    group: Group
    tasks: Sequence[Task]
    submitted: int
    settings: Mapping[str, Any]


# The cluster


def _once(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise Skip(f"two {what}s have the same id")


def _known(given: PlanningPass) -> None:
    """Check that every referenced agent and group is listed, and no id is listed twice.

    Raises:
        Skip: a reference has no entry, or an id has two.
    """
    agents = {agent.id for agent in given.agents}
    groups = {group.id for group in given.groups}
    for what, listed in (("agent", given.agents), ("group", given.groups), ("task", given.tasks)):
        _once(what, [one.id for one in listed])
    for task in given.tasks:
        if task.group not in groups:
            raise Skip(f"{task.id} belongs to {task.group}, a group that is not listed")
        elsewhere = sorted({held.agent for held in task.on} - agents)
        if elsewhere:
            raise Skip(f"{task.id} runs on {elsewhere[0]}, an agent that is not listed")


def _cluster(
    options: Options, agents: Sequence[Agent], order: Sequence[int], **policy: Any
) -> ScenarioCluster:
    """A cluster whose nodes are the agents, joined in the order of the indexes `order`."""
    cluster = ScenarioCluster(
        placement="best_fit" if options.fitting_policy == "best" else "worst_fit",
        unequal_gangs=options.allow_heterogeneous_fits,
        gpuless_per_node=max((_places(agent) for agent in agents), default=None),
        **policy,
    )
    cluster.nodes(agent.id for agent in agents)
    for index in order:
        agent = agents[index]
        cluster.joins(agent.id, agent.slots)
        if agent.draining or not agent.enabled:
            cluster.cordon(agent.id)
    return cluster


def _places(agent: Agent) -> int:
    return max(agent.max_zero_slot, agent.zero_slot_used)


def _occupy(
    cluster: ScenarioCluster, agents: Sequence[Agent], tasks: Iterable[Task] = (), *, bound: bool
) -> None:
    """Allocate the slots of running tasks; non-preemptible fillers hold all other used slots.

    A pool has one limit on tasks without GPUs per node, but each agent has its own. If `bound`,
    fillers also hold the places by which an agent's limit is lower than the pool's. This is needed
    only if tasks of zero slots are pending.
    """
    slots = {agent.id: agent.slots_used for agent in agents}
    places = {agent.id: agent.zero_slot_used for agent in agents}
    for task in tasks:
        if task.waits:
            continue
        if not task.on or sum(held.slots_held for held in task.on) != task.slots:
            raise Skip(f"{task.id} runs, but the scenario does not say where all of its slots are")
        cluster.runs(task.id, [(held.agent, held.slots_held) for held in task.on])
        for held in task.on:
            slots[held.agent] -= held.slots_held
            places[held.agent] -= task.slots == 0
    most = max(map(_places, agents), default=0)
    for agent in agents:
        left, without = slots[agent.id], places[agent.id]
        if left < 0 or without < 0 or agent.slots_used > agent.slots:
            raise Skip(f"{agent.id} lists other used slots than its tasks hold")
        without += (most - _places(agent)) * bound
        for gpus, replicas in ((left, min(left, 1)), (0, without)):
            if replicas:
                name = f"filler on {agent.id}, of {gpus} slots"
                cluster.stays(name, [(agent.id, gpus)] * replicas)


# Jobs


def _spec(task: Task | FitTask) -> dict[str, Any]:
    spread = task.slots > 1 and not task.single_agent
    return {
        "gpus": task.slots,
        "layout": Layout.WHOLE_NODES if spread else Layout.REPLICAS,
        "avoid": task.blocked_agents,
    }


def _tasks_by_group(given: PlanningPass) -> Iterator[tuple[Group, list[Task]]]:
    """The tasks of each group in order of creation, tasks without slots in a separate list."""
    tasks = sorted(given.tasks, key=lambda task: task.created_order)
    for group in given.groups:
        for zero in (False, True):
            selected = [t for t in tasks if t.group == group.id and (t.slots == 0) is zero]
            if selected:
                yield group, selected


def _alike(tasks: Sequence[Task]) -> bool:
    return len({task.likeness for task in tasks}) <= 1


def _by_priority(given: PlanningPass) -> Iterator[_Job]:
    """Jobs with a priority, ordered by their group's queue position or else by creation.

    The limits of groups are ignored, because Determined's planner does not read them here.
    """
    positions = given.options.queue_positions
    placed = bool(positions) and all(group.id in positions for group in given.groups)
    ranks = {at: rank for rank, at in enumerate(sorted(set(positions.values())))}
    for group, tasks in _tasks_by_group(given):
        settings: dict[str, Any] = {"priority": group.priority}
        if group.priority is None:
            # Determined's planner neither starts nor preempts these tasks.
            tasks = [task for task in tasks if not task.waits]
            settings = {"priority": WORST_PRIORITY, "preemptible": False}
        together = bool(tasks) and placed and _alike(tasks)
        for some in [tasks] if together else [[task] for task in tasks]:
            submitted = ranks[positions[group.id]] if placed else some[0].created_order
            yield _Job(group=group, tasks=some, submitted=submitted, settings=settings)


def _by_weight(given: PlanningPass, *, projects: bool) -> Iterator[_Job]:
    """Jobs in order of creation; with `projects`, their project has the weight instead."""
    weights = _weights(given.groups)
    for group, tasks in _tasks_by_group(given):
        most = group.max_slots
        settings = {
            "weight": weights[group.id],
            "max_slots_milli": None if most is None else most * 1000,
        }
        together = tasks[0].slots > 0 and not projects
        for some in [tasks] if together else [[task] for task in tasks]:
            yield _Job(
                group=group,
                tasks=some,
                submitted=some[0].created_order,
                settings=settings if together else {},
            )


def _weights(groups: Iterable[Group]) -> dict[str, int]:
    """Weights as integers in the same proportion; a weight of zero counts as one."""
    exact = {group.id: Fraction(str(group.weight)) or Fraction(1) for group in groups}
    scale = lcm(*(weight.denominator for weight in exact.values()))
    return {name: int(weight * scale) for name, weight in exact.items()}


def _are_projects(given: PlanningPass) -> bool:
    """Whether groups must become projects: a group's tasks differ, or its limit is zero."""
    return any(tasks[0].slots and not _alike(tasks) for _, tasks in _tasks_by_group(given)) or any(
        group.max_slots == 0 for group in given.groups
    )


# Decisions


def _plan(given: PlanningPass, order: Sequence[int]) -> Decided:
    """Decide the first cycle after the nodes joined in this order."""
    options = given.options
    projects = given.policy == "fair_share" and _are_projects(given)
    stated: dict[str, Any]
    if given.policy == "priority":
        stated = {
            "preemption": options.preemption,
            "backfill": options.backfill,
            "impossible_block": options.impossible_block,
        }
        jobs = list(_by_priority(given))
    else:
        stated = {
            "variant": options.variant,
            "release": options.release,
            "among": "project" if projects else "job",
        }
        jobs = list(_by_weight(given, projects=projects))
    # Options that the scenario omits keep the policy's defaults.
    policy = {name: value for name, value in stated.items() if value is not None}
    cluster = _cluster(options, given.agents, order, policy=given.policy, **policy)
    if projects:
        weights = _weights(given.groups)
        for group in given.groups:
            cluster.project(group.id, weight=weights[group.id], most_gpus=group.max_slots)
    jobs.sort(key=lambda job: (job.submitted, job.tasks[0].created_order))
    for job in jobs:
        settings = {"preemptible": not job.tasks[0].non_preemptible, **job.settings}
        cluster.job(
            [task.id for task in job.tasks],
            submitted=job.submitted,
            project=job.group.id if projects else None,
            **_spec(job.tasks[0]),
            **settings,
        )
    bound = any(task.waits and not task.slots for task in given.tasks)
    _occupy(cluster, given.agents, given.tasks, bound=bound)
    return cluster.decide()


def _place(given: Fit, order: Sequence[int]) -> Decided:
    """Place the task in the first cycle after the nodes joined in this order."""
    cluster = _cluster(given.options, given.agents, order)
    cluster.job(["task"], submitted=0, **_spec(given.task))
    _occupy(cluster, given.agents, bound=not given.task.slots)
    return cluster.decide()


def _orders(nodes: int) -> Iterator[tuple[int, ...]]:
    """Yield orders in which nodes can join, the listed order first.

    With at most MOST_PERMUTED nodes, these are all orders. With more, they are the orders with one
    node moved first or last, and the orders with one pair of nodes swapped.
    """
    listed = tuple(range(nodes))
    if nodes <= MOST_PERMUTED:
        yield from permutations(listed)
        return
    yield listed
    yield listed[::-1]
    for one in listed:
        others = listed[:one] + listed[one + 1 :]
        yield (one, *others)
        yield (*others, one)
    for one, other in combinations(listed, 2):
        swapped = list(listed)
        swapped[one], swapped[other] = other, one
        yield tuple(swapped)


def _compare(
    agents: Sequence[Agent],
    decide: Callable[[Sequence[int]], Decided],
    differs: Callable[[Decided], str],
) -> str:
    """How the decisions differ from the expected ones; empty if they agree.

    Raises:
        Skip: they would agree if the nodes had joined in another order.
    """
    orders = _orders(len(agents))
    difference = differs(decide(next(orders)))
    if not difference:
        return ""
    for order in islice(orders, MOST_ORDERS):
        if not differs(decide(order)):
            names = ", ".join(agents[index].id for index in order)
            raise Skip(
                "a tie between equal nodes decides: as expected if they join in the order "
                f"{names}, otherwise {difference}"
            )
    return difference


def _sets(what: str, decided: Iterable[str], expected: Iterable[str]) -> list[str]:
    missing, more = set(expected) - set(decided), set(decided) - set(expected)
    found = [f"missing in {what}: {', '.join(sorted(missing))}"] if missing else []
    return found + ([f"unexpected in {what}: {', '.join(sorted(more))}"] if more else [])


def check_plan(scenario: Scenario) -> str:
    """How the first cycle differs from the recorded planning pass; empty if they agree."""
    given = parsed(PlanningPass, scenario)
    _known(given)

    def differs(decided: Decided) -> str:
        expected = given.expected
        starts = _sets("starts", decided.starts, expected.to_allocate)
        return "; ".join(starts + _sets("stops", decided.stops, expected.to_release))

    return _compare(given.agents, lambda order: _plan(given, order), differs)


def check_fit(scenario: Scenario) -> str:
    """How the task's nodes differ from the recorded nodes; empty if they agree."""
    given = parsed(Fit, scenario)
    _once("agent", [agent.id for agent in given.agents])
    expected = given.expected
    agents = expected.agents if expected.agents is not None else expected.agents_any_order

    def differs(decided: Decided) -> str:
        on = decided.starts.get("task", ())
        agree = (
            (agents is None or sorted(agents) == sorted(on))
            and (expected.first_agent is None or on[:1] == (expected.first_agent,))
            and (expected.count is None or expected.count == len(on))
        )
        return "" if agree else f"the task is placed on {', '.join(on) or 'no node'}"

    return _compare(given.agents, lambda order: _place(given, order), differs)


#: The formats of Determined's scenarios.
DETERMINED: Final = (
    Format("determined_schedule", frozenset({"policy", "agents", "groups", "tasks"}), check_plan),
    Format("determined_fit", frozenset({"agents", "task"}), check_fit),
)
