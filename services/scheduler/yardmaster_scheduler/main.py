"""The scheduler service: a machine and a silence watch per cell; each leader also runs a relay, and
exposes the metrics of the work.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import NodeState, ReplicaState
from yardmaster_runtime.cells import run_cells
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.service import Ports, candidate, run_machine_process
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.waiting import Work, together
from yardmaster_scheduler.metrics import ShellMetrics
from yardmaster_scheduler.relay import Relay
from yardmaster_scheduler.settings import Settings, ShellLimits
from yardmaster_scheduler.silence import LiveNode, SilenceWatch
from yardmaster_scheduler.work_metrics import WorkMetrics

__all__ = ["Ports", "Settings", "main", "run"]


def live_nodes(state: ClusterState) -> Iterator[LiveNode]:
    """Yield the nodes that should send heartbeats.

    These include nodes whose silence was observed but that are not lost yet (the clock was set
    back, or the pool's timeout changed): otherwise they would not be checked again.
    """
    for node in state.nodes.values():
        if node.state is NodeState.UP:
            yield LiveNode(node.name, node.incarnation, node.timeout_s(state.config_of(node)))


def known_nodes(state: ClusterState) -> set[str]:
    """Return the nodes whose topics may have copies, or soon have: joined and enrolled nodes."""
    enrolled = {row.name for row in state.enrolled.values() if row.config is not None}
    return enrolled.union(state.nodes)


def needs_topic(state: ClusterState, name: str) -> bool:
    """Whether an agent of a node may read the node's topic, now or later.

    A closed cell accepts a node again only after an enrollment, which creates the topic. In an open
    cell an agent creates its node's topic when it starts. A lost node of an open cell needs its
    topic nevertheless, because its agent may still be running.
    """
    node = state.nodes.get(name)
    if node is not None and (node.state is NodeState.UP or node.open):
        return True
    if state.enrolled:
        row = state.enrolled.get(name)
        return row is not None and row.config is not None
    return node is not None and node.state is NodeState.LOST


def unstarted(
    state: ClusterState, task_id: str, attempt: int
) -> Mapping[str, tuple[str, Sequence[int]]]:
    """Return the replicas of an open attempt that have not started, by node.

    Each value is the node's incarnation and the numbers of these replicas. Empty if the attempt is
    not open.
    """
    task = state.tasks.get(task_id)
    run = None if task is None else task.run
    found: dict[str, tuple[str, list[int]]] = {}
    if run is None or run.number != attempt:
        return found
    for replica, placement in enumerate(run.placements):
        if run.replicas[replica] == ReplicaState.ALLOCATED:
            _, replicas = found.setdefault(placement.node, (placement.incarnation, []))
            replicas.append(replica)
    return found


async def run(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Schedule every cell until cancelled or all machines have stopped.

    Raises: the error of the first cell that stopped.
    """
    await run_cells(ports, settings, schedule)


async def schedule(ports: Ports, settings: RuntimeSettings) -> NoReturn:
    """Schedule one cell until cancelled.

    Raises: the errors of `Candidate.run`, of the relay and of the silence watch.
    """
    limits = settings.shell if isinstance(settings, Settings) else ShellLimits()
    metrics = ShellMetrics(ports.telemetry)
    machine = candidate(SchedulerMachine(), ports, settings)
    nodes_log = await ports.another_log() if ports.another_log else None

    def leader_tasks(leader: Leader[ClusterState]) -> Sequence[Work]:
        fold = leader.fold
        relay = Relay(
            machine.log,
            settings.cell,
            clock=ports.clock,
            limits=limits,
            metrics=metrics,
            partition=settings.partition,
            partitions=settings.partitions,
            nodes_log=nodes_log or ports.log,
            snapshots=ports.snapshots,
            unstarted=lambda task_id, attempt: unstarted(fold.state, task_id, attempt),
            needs_topic=lambda node: needs_topic(fold.state, node),
        )
        fold.listeners.append(relay.on_cycle)
        work = WorkMetrics(ports.telemetry, lambda: fold.state)
        fold.listeners.append(work.on_cycle)
        known = sorted(known_nodes(fold.state))
        return relay.run(known, fold.origin), work.run()

    watch = SilenceWatch(
        machine.log,
        lambda: None if machine.fold is None else live_nodes(machine.fold.state),
        machine.observations,
        now_ms=lambda: None if machine.leader is None else machine.leader.now_ms(),
        clock=ports.clock,
        limits=limits,
        metrics=metrics,
        partition=settings.partition,
    )
    await together(machine.run(leader_tasks), watch.run())
    raise AssertionError("neither the machine nor the watch returns")


def main() -> int:
    """Run the service in a process of its own; return its exit code."""
    return run_machine_process(Settings, "scheduler", SchedulerMachine.output, run)


if __name__ == "__main__":
    sys.exit(main())
