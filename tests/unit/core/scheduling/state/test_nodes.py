"""Nodes: lost, rejoined, replaced, leaving, cordoned, drained."""

from typing import Any

from tests.unit.core.scheduling.reading import all_of, kinds, only, running, started, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.state.capacity_index import MAX_GPULESS
from yardmaster_core.scheduling.state.phases import NodeState
from yardmaster_core.testing import Cell
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.sources import next_incarnation

FIRST = "0" * 12
SECOND = next_incarnation("0" * 12)


def cell_with(**spec: Any) -> Cell:
    """One node and one running task, `job`."""
    cell = Cell(node_timeout_s=60)
    cell.node("n1", gpus=2)
    cell.submit("job", **spec)
    running(cell, "job")
    return cell


def silent(cell: Cell, name: str, for_s: float) -> list[Event]:
    """Run a cycle in which the shell observes that a node has been silent for this long."""
    return cell.cycle(silent={name: cell.now_ms - int(for_s * 1000)})


# Lost


def test_a_node_silent_for_its_timeout_is_lost_and_its_task_is_pending_again() -> None:
    cell = cell_with()
    heard_ms = cell.now_ms
    cell.now_ms += 60_000
    decided = cell.cycle(silent={"n1": heard_ms})
    assert kinds(decided) == [
        "NodeSilenceObserved",
        "NodeLost",
        "TaskRequeued",
        "TaskUnschedulable",
    ]
    lost = only(decided, dec.NodeLostV1)
    assert (lost.cause, lost.incarnation, lost.last_heard_at_ms) == ("silent", FIRST, heard_ms)
    assert [(c.task_id, c.attempt, c.replica) for c in lost.closed] == [(cell.task("job").id, 1, 0)]
    requeued = only(decided, dec.TaskRequeuedV1)
    assert (requeued.code, requeued.restarts, requeued.not_before_ms) == ("node_lost", 0, 0)
    assert waits(cell, "job").numbers == {"nodes": 1, "cordoned": 0, "lost": 1}
    assert_sound(cell.state)


def test_a_node_never_holds_more_replicas_than_its_loss_can_name() -> None:
    cell = Cell(node_timeout_s=60, gpuless_per_node=1_000_000)
    cell.node("n1", gpus=1)
    for name in ("a", "b", "c"):
        cell.submit(name, gpus=0, tasks=2000)
    cell.cycle()
    lost = only(silent(cell, "n1", 60), dec.NodeLostV1)
    assert len(lost.closed) == MAX_GPULESS
    assert plain.load(dec.NodeLostV1, plain.dump(lost)) == lost


def test_a_node_is_not_lost_before_its_timeout() -> None:
    cell = cell_with()
    assert kinds(silent(cell, "n1", 59.999)) == ["NodeSilenceObserved"]
    assert cell.phase("job") == "running"


def test_a_silence_shorter_than_the_timeout_is_forgotten_and_observed_again() -> None:
    cell = cell_with()
    heard_ms = cell.now_ms - 59_000
    cell.cycle(silent={"n1": heard_ms})
    assert cell.state.nodes["n1"].silent_ms == 0
    assert_sound(cell.state)
    lost = only(cell.cycle(after_s=1, silent={"n1": heard_ms}), dec.NodeLostV1)
    assert lost.last_heard_at_ms == heard_ms


def test_the_runtime_of_a_lost_attempt_counts_against_its_limit() -> None:
    cell = cell_with(time_limit_s=100)
    cell.cycle(after_s=70)
    silent(cell, "n1", 60)
    assert cell.task("job").ran_ms == 70_000


def test_a_gang_that_loses_a_replica_is_stopped_and_pending_again() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("gang", replicas=2, grace_s=40)
    running(cell, "gang")
    decided = silent(cell, "n2", 60)
    assert kinds(decided) == ["NodeSilenceObserved", "NodeLost", "StopRequested"]
    stop = only(decided, dec.StopRequestedV1)
    assert (stop.stop.code, stop.stop.about, stop.grace_s) == ("node_lost", "n2", 40)
    assert stop.stop.numbers == {"last_heard_at_ms": cell.now_ms - 60_000}
    cell.ends("gang", replica=0)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "node_lost"
    assert_sound(cell.state)


def test_a_gang_that_loses_all_its_nodes_is_pending_again_at_once() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("gang", replicas=2)
    running(cell, "gang")
    heard = cell.now_ms - 60_000
    decided = cell.cycle(silent={"n1": heard, "n2": heard})
    assert only(decided, dec.TaskRequeuedV1).code == "node_lost"
    assert all_of(decided, dec.StopRequestedV1) == []


def test_a_task_that_was_being_cancelled_is_cancelled_when_its_node_is_lost() -> None:
    cell = cell_with()
    cell.cancel("job")
    cell.cycle()
    assert only(silent(cell, "n1", 60), dec.TaskEndedV1).outcome == "cancelled"
    assert_sound(cell.state)


def test_a_preempted_task_whose_node_is_lost_frees_its_slots() -> None:
    cell = cell_with(gpus=2)
    cell.submit("top", priority=1, gpus=2)
    cell.cycle()
    silent(cell, "n1", 60)
    cell.node("n2", gpus=2)
    assert started(cell.run_until_idle()) == ["top"]
    assert_sound(cell.state)


# Rejoined


def test_a_lost_node_rejoins_as_a_new_incarnation_without_tasks() -> None:
    cell = cell_with()
    silent(cell, "n1", 60)
    cell.node("n1", gpus=2, incarnation=SECOND)
    event = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert (event.attempt, event.placements[0].incarnation) == (2, SECOND)
    assert_sound(cell.state)


def test_a_lost_node_does_not_rejoin_with_its_old_incarnation() -> None:
    cell = cell_with()
    silent(cell, "n1", 60)
    cell.node("n1", gpus=2)
    assert cell.cycle() == []
    assert [code for _, code in cell.refused] == ["stale_incarnation"]
    cell.node("n1", gpus=2, incarnation=SECOND)
    cell.cycle()
    cell.node("n1", gpus=2)
    cell.cycle()
    assert [code for _, code in cell.refused] == ["stale_incarnation"]


def test_a_node_stays_the_same_when_its_agent_restarts() -> None:
    cell = cell_with()
    ref = nev.ReplicaRef(task_id=cell.task("job").id, attempt=1, replica=0)
    cell.node("n1", gpus=2, running=(ref,))
    assert cell.cycle() == []
    assert cell.refused == []
    assert cell.phase("job") == "running"


def test_what_enforces_fractions_changes_with_the_agent_and_is_in_the_digest_only_if_it_does() -> (
    None
):
    cell = cell_with()
    before = cell.state.node("n1").facts()
    assert not [fact for fact in before if fact == "fraction_limits"]
    cell.node("n1", gpus=2, fraction_limits=nev.FractionLimits.MPS)
    cell.cycle()
    node = cell.state.node("n1")
    assert node.facts() == (*before, "fraction_limits", "mps")
    cell.node("n1", gpus=2)
    cell.cycle()
    assert node.facts() == before
    cell.node("n1", gpus=2, incarnation=SECOND, fraction_limits=nev.FractionLimits.MPS)
    cell.cycle()
    cell.cycle()
    assert (node.incarnation, node.fraction_limits) == (SECOND, "mps")
    assert_sound(cell.state)


def test_a_join_ends_the_silence() -> None:
    cell = cell_with()
    cell.submit("other")
    cell.cycle(silent={"n1": cell.now_ms - 30_000}, limit=1)
    assert not cell.complete
    assert cell.state.nodes["n1"].silent_ms
    cell.node("n1", gpus=2)
    cell.cycle(after_s=60)
    assert cell.state.nodes["n1"].state is NodeState.UP


def test_a_node_replaced_while_tasks_run_on_it_is_lost_first() -> None:
    cell = cell_with()
    cell.node("n1", gpus=4, incarnation=SECOND)
    decided = cell.cycle()
    lost = only(decided, dec.NodeLostV1)
    assert (lost.cause, lost.incarnation) == ("replaced", FIRST)
    assert only(decided, dec.TaskRequeuedV1).code == "node_lost"
    assert cell.machine.due_ms(cell.state) == cell.now_ms, "the new incarnation can be used at once"
    event = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert event.placements[0].incarnation == SECOND
    assert cell.state.nodes["n1"].gpus == 4
    assert_sound(cell.state)


def test_a_new_incarnation_cannot_have_running_tasks() -> None:
    cell = cell_with()
    ref = nev.ReplicaRef(task_id=cell.task("job").id, attempt=1, replica=0)
    cell.node("n1", gpus=2, incarnation=SECOND, running=(ref,))
    assert cell.cycle() == []
    assert [code for _, code in cell.refused] == ["contradiction"]


def test_a_node_may_rejoin_in_another_pool() -> None:
    cell = Cell()
    cell.pool("side")
    cell.node("n1", gpus=1)
    cell.submit("here", gpus=2)
    cell.submit("there", pools=("side",))
    cell.cycle()
    assert waits(cell, "here").code == "exceeds_every_node"
    cell.node("n1", gpus=1, pool="side", incarnation=SECOND)
    assert started(cell.cycle()) == ["there"]
    assert waits(cell, "here").code == "no_matching_node"
    assert_sound(cell.state)


# Leaving


def test_a_node_that_left_takes_no_tasks_until_it_joins_again() -> None:
    cell = Cell()
    cell.node("n1")
    cell.cycle()
    cell.leaves("n1")
    cell.submit("job")
    assert started(cell.cycle()) == []
    assert waits(cell, "job").code == "nodes_unavailable"
    cell.node("n1")
    assert started(cell.cycle()) == ["job"]


def test_a_node_that_left_and_rejoined_may_restart_its_agent() -> None:
    cell = Cell()
    cell.node("n1")
    cell.cycle()
    cell.leaves("n1")
    cell.node("n1")
    cell.cycle()
    cell.node("n1")
    cell.cycle()
    assert cell.refused == []


def test_a_node_with_tasks_has_not_left() -> None:
    cell = cell_with()
    cell.leaves("n1")
    cell.cycle()
    assert [code for _, code in cell.refused] == ["contradiction"]


# Cordon and drain


def test_no_task_starts_on_a_cordoned_node_and_running_tasks_continue() -> None:
    cell = cell_with()
    cell.cordon("n1")
    cell.submit("next")
    assert started(cell.cycle()) == []
    assert cell.phase("job") == "running"
    assert waits(cell, "next").numbers == {"nodes": 1, "cordoned": 1, "lost": 0}
    cell.uncordon("n1")
    assert started(cell.cycle()) == ["next"]


def test_a_node_cordoned_before_it_joins_stays_cordoned() -> None:
    cell = Cell()
    cell.cordon("n1")
    cell.node("n1")
    cell.submit("job")
    assert started(cell.cycle()) == []
    cell.uncordon("n1")
    assert started(cell.cycle()) == ["job"]


def test_a_drain_stops_preemptible_tasks_now_with_grace_and_the_rest_at_the_deadline_too() -> None:
    cell, grace_s = cell_with(grace_s=30), 45
    cell.submit("shell", preemptible=False, grace_s=grace_s)
    running(cell, "shell")
    cell.drain("n1", within_s=600)
    stop = only(cell.cycle(), dec.StopRequestedV1)
    deadline_ms = cell.now_ms + 600_000
    assert (stop.task_id, stop.stop.code, stop.grace_s) == (
        cell.task("job").id,
        "node_drained",
        30,
    )
    assert (stop.stop.about, stop.stop.numbers) == ("n1", {"until_at_ms": deadline_ms})
    assert cell.machine.due_ms(cell.state) == cell.now_ms + 90_000, "then the stop is overdue"
    cell.ends("job")
    assert kinds(cell.cycle()) == ["TaskRequeued", "TaskUnschedulable"]
    assert cell.machine.due_ms(cell.state) == deadline_ms
    assert cell.cycle(after_s=599.999) == []
    stop = only(cell.cycle(after_s=0.001), dec.StopRequestedV1)
    assert (stop.task_id, stop.grace_s) == (cell.task("shell").id, grace_s)
    assert stop.deadline_at_ms == deadline_ms + grace_s * 1000
    cell.ends("shell", signal=9)
    assert only(cell.cycle(), dec.TaskRequeuedV1).code == "node_drained"


def test_grace_does_not_outlast_a_drains_deadline() -> None:
    cell = cell_with(grace_s=600)
    cell.drain("n1", within_s=20)
    assert only(cell.cycle(), dec.StopRequestedV1).grace_s == 20


def test_a_drain_of_one_node_stops_a_gang_on_several() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("gang", replicas=2)
    running(cell, "gang")
    cell.drain("n2", within_s=60)
    assert only(cell.cycle(), dec.StopRequestedV1).nodes == ("n1", "n2")


def test_uncordoning_cancels_a_drain() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("shell", preemptible=False)
    running(cell, "shell")
    cell.drain("n1", within_s=60)
    cell.cycle()
    cell.uncordon("n1")
    assert cell.cycle(after_s=60) == []
    assert cell.phase("shell") == "running"


def test_a_drained_task_continues_elsewhere_with_its_checkpoint() -> None:
    cell = cell_with()
    cell.node("n2", gpus=2)
    cell.checkpoints("job", step=3)
    cell.drain("n1", within_s=60)
    cell.cycle()
    cell.ends("job")
    again = only(cell.cycle(), dec.SlotsAllocatedV1)
    assert again.placements[0].node == "n2"
    assert again.checkpoint is not None
    assert again.checkpoint.step == 3
