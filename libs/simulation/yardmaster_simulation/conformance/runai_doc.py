"""Check scenarios of several steps, from the documentation of Run:ai and from this project.

In each step jobs are submitted and deleted, then some cycles run. Between two cycles, agents start
and stop tasks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Final

from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.decisions import PreemptionRequestedV1
from yardmaster_simulation.conformance.kai import PERIOD_S, require_supported
from yardmaster_simulation.conformance.kai_cluster import KaiCluster
from yardmaster_simulation.conformance.kai_form import (
    POOL,
    DocumentScenario,
    Job,
    Step,
    StepExpected,
)
from yardmaster_simulation.conformance.kai_terms import WHOLE, priorities_of, units_of
from yardmaster_simulation.conformance.scenarios import Format, Scenario, Skip, parsed


def check(scenario: Scenario) -> str:
    """Return the first step whose outcome differs, and the difference; empty: all steps agree."""
    given = parsed(DocumentScenario, scenario)
    jobs = [job for step in given.steps for job in step.submit]
    require_supported(jobs)
    units = units_of(given.nodes, (task for job in jobs for task in job.tasks))
    cluster = KaiCluster(units, priorities_of(jobs), policy="quota")
    for name, pool in given.pools.items():
        cluster.cell.pool(name, policy="quota", pool_order=pool.pool_order, **pool.options)
    cluster.configure(given.queues)
    cluster.join(given.nodes)
    for number, step in enumerate(given.steps, 1):
        _begin(cluster, step)
        after_s = PERIOD_S + step.after_s
        stops: dict[str, str] = {}
        for _ in range(step.cycles or given.cycles):
            stops |= _stops(cluster, cluster.cycle(after_s=after_s))
            cluster.play_agents()
            after_s = PERIOD_S
        differing = [
            *_differences(cluster, step.expect),
            *_own_differences(cluster, step.expect, stops),
        ]
        if differing:
            return f"after step {number}: {'; '.join(differing)}"
    return ""


def _begin(cluster: KaiCluster, step: Step) -> None:
    for name in _deleted(cluster, step):
        cluster.cancel(name)
    jobs = [each for job in step.submit for each in _copies(job)]
    for number, job in enumerate(jobs):
        cluster.submit(job, submitted_ms=cluster.cell.now_ms + number)


def _copies(job: Job) -> Iterator[Job]:
    if job.copies == 1:
        yield job
        return
    for number in range(1, job.copies + 1):
        yield replace(job, name=f"{job.name}-{number}")


def _stops(cluster: KaiCluster, decided: Iterable[Event]) -> dict[str, str]:
    """Return the rule of each stop that the policy decided, by job."""
    stops = [event for event in decided if isinstance(event, PreemptionRequestedV1)]
    names = cluster.names_of([event.task_id.split(".")[0] for event in stops])
    return {name: event.stop.rule for name, event in zip(names, stops, strict=True)}


def _deleted(cluster: KaiCluster, step: Step) -> list[str]:
    deleted = list(step.delete)
    if step.delete_running_of is not None:
        project = cluster.queue_id(step.delete_running_of)
        deleted += _names(cluster, (t for t in running(cluster) if t.job.project.name == project))
    if step.delete_one_of_two_on_the_full_node:
        deleted.append(min(_names(cluster, _on_the_full_node(cluster))))
    return deleted


def _on_the_full_node(cluster: KaiCluster) -> list[Task]:
    full = [
        tasks
        for node in cluster.cell.state.nodes.values()
        if node.free.gpu_milli == 0 and len(tasks := list(node.open.values())) == 2
    ]
    if len(full) != 1:
        raise Skip(f"there are {len(full)} full nodes with two tasks, where there must be one")
    return full[0]


def running(cluster: KaiCluster) -> list[Task]:
    """Return the tasks that have slots and are not about to release them."""
    return [task for task in cluster.cell.state.tasks.values() if task.run and not task.run.stop]


def _names(cluster: KaiCluster, tasks: Iterable[Task]) -> list[str]:
    return cluster.names_of([task.job.id for task in tasks])


def _differences(cluster: KaiCluster, expected: StepExpected) -> Iterator[str]:
    state = cluster.cell.state
    now_running = _names(cluster, running(cluster))
    now_pending = _names(cluster, (task for task in state.tasks.values() if task.run is None))
    for what, found, jobs, count in (
        ("running", now_running, expected.running, expected.running_count),
        ("pending", now_pending, expected.pending, expected.pending_count),
    ):
        missing = sorted(set(jobs or ()) - set(found))
        if missing:
            yield f"not {what}: {', '.join(missing)}"
        if count is not None and count != len(found):
            yield f"{len(found)} jobs {what} instead of {count}"
    for owners, gpus in (
        (state.projects, expected.gpus),
        (state.departments, expected.department_gpus),
    ):
        for name, wanted in gpus.items():
            held = _gpus(owners[cluster.queue_id(name)].used_milli.get(POOL, 0))
            if held != wanted:
                yield f"{name} holds {held} GPUs instead of {wanted}"
    free = _gpus(state.pools[POOL].free.free_milli)
    if expected.free_gpus is not None and free != expected.free_gpus:
        yield f"{free} GPUs free instead of {expected.free_gpus}"


def _own_differences(
    cluster: KaiCluster, expected: StepExpected, stops: Mapping[str, str]
) -> Iterator[str]:
    """Yield the differences in values that only this project's own scenarios state."""
    placed = {
        name: (task.run.pool_name, [placement.node for placement in task.run.placements])
        for task in running(cluster)
        for name in _names(cluster, [task])
        if task.run is not None
    }
    for name, pool in expected.pools.items():
        found = placed[name][0] if name in placed else None
        if found != pool:
            yield f"{name} runs in {found} instead of {pool}"
    for name, node in expected.nodes.items():
        nodes = placed[name][1] if name in placed else []
        if set(nodes) != {cluster.node_id(node)}:
            yield f"{name} runs on {[cluster.node_names[each] for each in nodes]}, not on {node}"
    for name, code in expected.waits.items():
        waits = cluster.cell.wait_code(cluster.job_id(name)) or ""
        if waits != code:
            yield f"{name} waits with {waits or 'nothing'} instead of {code or 'nothing'}"
    if expected.stops is not None and expected.stops != stops:
        yield f"stops by {dict(stops)} instead of {expected.stops}"


def _gpus(gpu_milli: int) -> Decimal:
    return Decimal(gpu_milli) / WHOLE


RUNAI_DOC: Final = Format("runai_doc", frozenset({"steps", "nodes", "queues"}), check)
