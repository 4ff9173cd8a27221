"""Failed starts: they are counted apart from failures, avoid the node, and never cost other tasks
their slots.
"""

import pytest

from tests.unit.core.scheduling.reading import all_of, kinds, only, running, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.planner.lifecycle import MAX_FAILED_NODES, MAX_FAILED_STARTS
from yardmaster_core.scheduling.state.shapes import EXPIRY_MS, SEPARATE_AFTER
from yardmaster_core.testing import Cell, fold
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.node_events import ExecutorKind
from yardmaster_schemas.events.requests import Layout, Quota
from yardmaster_schemas.reasons import StartFailure

PROCESS, CONTAINER = ExecutorKind.PROCESS, ExecutorKind.CONTAINER
OTHER = StartFailure.OTHER
#: Policies under which tasks preempt others, with what lets job `new` preempt job `old`.
PREEMPTING = {
    "priority": {},
    "fitgpp": {},
    "lrtp": {},
    "rand": {},
    "fair_share": {},
    "fair_share max_min": {"variant": "max_min"},
    "fair_share projects": {"among": "project"},
    "fair_share max_min projects": {"variant": "max_min", "among": "project"},
}


def fails_to_start(cell: Cell, name: str, **how: StartFailure) -> dec.TaskRequeuedV1:
    """Report that a starting task of one replica cannot be started; return the next decision."""
    cell.never_starts(name, failure=how.get("failure", OTHER))
    return only(cell.cycle(), dec.TaskRequeuedV1)


def set_apart(cell: Cell, name: str) -> None:
    """Let a task fail to start so often in a row that it is grouped apart from its equals."""
    for _ in range(SEPARATE_AFTER - 1):
        cell.cycle(after_s=waited_s(cell, fails_to_start(cell, name)))
    fails_to_start(cell, name)


def waited_s(cell: Cell, requeued: dec.TaskRequeuedV1) -> int:
    return (requeued.not_before_ms - cell.now_ms) // 1000


def stops(events: list[Event]) -> list[Event]:
    kinds_ = (dec.PreemptionRequestedV1, dec.StopRequestedV1)
    return [event for event in events if isinstance(event, kinds_)]


# Counting


def test_the_back_off_after_a_failed_start_depends_on_failed_starts_alone() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("low", priority=50)
    running(cell, "low")
    for number in range(9):
        high = f"high{number}"
        cell.submit(high, priority=1)
        cell.cycle()
        cell.ends("low", signal=15)
        running(cell, high)
        cell.ends(high)
        cell.cycle()
        if number < 8:
            cell.starts("low")
            cell.cycle()
    assert cell.task("low").attempt == 10
    assert waited_s(cell, fails_to_start(cell, "low")) == 2


def test_a_task_that_fails_to_start_five_times_in_a_row_ends_with_restarts_left() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", max_restarts=3)
    cell.cycle()
    pauses = []
    for number in range(1, MAX_FAILED_STARTS):
        requeued = fails_to_start(cell, "job")
        assert (requeued.code, requeued.restarts) == ("never_started", 0)
        assert requeued.failed_starts == number
        pauses.append(waited_s(cell, requeued))
        assert started(cell.cycle(after_s=pauses[-1])) == ["job"]
        assert_sound(cell.state)
    cell.never_starts("job", failure=OTHER)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.attempt) == ("failed", "start_failed", 5)
    assert pauses == [2, 4, 8, 16]
    assert_sound(cell.state)


def test_a_start_that_succeeds_makes_the_next_failed_one_the_first() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", max_restarts=9)
    cell.cycle()
    for _ in range(3):
        assert started(cell.cycle(after_s=waited_s(cell, fails_to_start(cell, "job")))) == ["job"]
    cell.starts("job")
    cell.cycle()
    assert cell.task("job").failed_starts == 0
    cell.ends("job", exit_code=1)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.failed_starts, requeued.failed_nodes) == (0, ())
    cell.cycle(after_s=2)
    assert fails_to_start(cell, "job").failed_starts == 1


def test_an_attempt_that_is_preempted_before_it_started_keeps_the_count() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job", priority=50)
    cell.cycle()
    cell.cycle(after_s=waited_s(cell, fails_to_start(cell, "job")))
    cell.submit("high", priority=1)
    assert only(cell.cycle(), dec.PreemptionRequestedV1).stop.code == "priority"
    cell.never_starts("job")
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert (requeued.code, requeued.failed_starts, requeued.not_before_ms) == ("priority", 1, 0)


def test_a_start_that_takes_too_long_is_a_failed_start() -> None:
    cell = Cell(start_timeout_s=10)
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("job")
    cell.cycle()
    assert cell.slots_of("job")[0][0] == "n1"
    for number in range(1, MAX_FAILED_STARTS):
        revoked = only(cell.cycle(after_s=10), dec.AllocationRevokedV1)
        assert revoked.late == revoked.nodes
        cell.never_starts("job")
        requeued = only(cell.cycle(), dec.TaskRequeuedV1)
        assert (requeued.code, requeued.failed_starts) == ("start_timeout", number)
        assert waited_s(cell, requeued) == 2**number
        cell.cycle(after_s=2**number)
        assert cell.phase("job") == "starting"
        assert number > 1 or cell.slots_of("job")[0][0] == "n2"
    cell.cycle(after_s=10)
    cell.never_starts("job")
    assert only(cell.cycle(), dec.TaskEndedV1).code == "start_failed"


# Nodes


def test_the_next_attempt_avoids_the_nodes_on_which_the_start_failed() -> None:
    cell = Cell()
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=2)
    cell.submit("job")
    cell.cycle()
    nodes = []
    for _ in range(4):
        nodes.append(cell.slots_of("job")[0][0])
        cell.cycle(after_s=waited_s(cell, fails_to_start(cell, "job")))
    assert sorted(nodes[:3]) == ["n1", "n2", "n3"]
    assert nodes[3] in nodes[:3], "where no other node is left, one of them will do"


def test_a_node_on_which_the_start_failed_is_used_again_when_no_other_fits() -> None:
    cell = Cell()
    cell.node("n1", gpus=4)
    cell.node("n2", gpus=1)
    cell.submit("job", gpus=2)
    cell.cycle()
    assert started(cell.cycle(after_s=waited_s(cell, fails_to_start(cell, "job")))) == ["job"]
    assert cell.slots_of("job")[0][0] == "n1"


def test_a_gang_avoids_only_the_nodes_on_which_a_replica_did_not_start() -> None:
    cell = Cell()
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=1)
    cell.submit("gang", replicas=2)
    cell.cycle()
    assert [node for node, *_ in cell.slots_of("gang")] == ["n1", "n2"]
    cell.starts("gang", replica=0)
    cell.never_starts("gang", replica=1, failure=OTHER)
    cell.cycle()
    cell.ends("gang", replica=0, signal=15)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert requeued.failed_nodes == ("n2",)
    cell.cycle(after_s=2)
    assert sorted(node for node, *_ in cell.slots_of("gang")) == ["n1", "n3"]


def test_a_task_on_whole_nodes_avoids_them_too() -> None:
    cell = Cell()
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=2)
    cell.submit("wide", gpus=4, layout=Layout.WHOLE_NODES)
    cell.cycle()
    first = [node for node, *_ in cell.slots_of("wide")]
    cell.never_starts("wide", replica=0, failure=OTHER)
    cell.cycle()
    cell.never_starts("wide", replica=1)
    cell.cycle()
    cell.cycle(after_s=2)
    assert first[0] not in [node for node, *_ in cell.slots_of("wide")]


def test_only_the_newest_failed_nodes_are_remembered() -> None:
    cell = Cell()
    names = [f"n{number:02d}" for number in range(MAX_FAILED_NODES + 4)]
    for name in names:
        cell.node(name, gpus=1)
    cell.submit("gang", replicas=len(names))
    cell.cycle()
    for replica in range(len(names)):
        cell.never_starts("gang", replica=replica, failure=OTHER)
    requeued = only(cell.cycle(), dec.TaskRequeuedV1)
    assert requeued.failed_nodes == tuple(names[4:])


def test_whether_a_task_fits_does_not_depend_on_where_its_start_failed() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("job", preemptible=False)
    cell.submit("equal", preemptible=False)
    cell.cycle()
    fails_to_start(cell, "job")
    assert cell.phase("equal") == "starting"
    cell.cycle(after_s=2)
    assert waits(cell, "job").code == "insufficient_free"
    cell.ends("equal") if cell.phase("equal") == "running" else cell.never_starts("equal")
    cell.cycle()
    assert started(cell.run_until_idle()) == [] or cell.phase("job") == "starting"
    assert cell.phase("job") == "starting"
    assert_sound(cell.state)


# Causes that apply to every node


@pytest.mark.parametrize(
    "failure", [one for one in StartFailure if one.rank > StartFailure.IMAGE_MISSING.rank]
)
def test_a_cause_that_applies_to_every_node_ends_the_task_at_once(failure: StartFailure) -> None:
    cell = Cell()
    cell.node("n1")
    cell.node("n2")
    cell.submit("job", max_restarts=3)
    cell.cycle()
    cell.never_starts("job", failure=failure)
    ended = only(cell.cycle(), dec.TaskEndedV1)
    assert (ended.outcome, ended.code) == ("failed", failure.value)


def test_a_gang_ends_with_the_cause_that_applies_to_every_node_once_all_replicas_are_released() -> (
    None
):
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.never_starts("gang", replica=0, failure=OTHER)
    cell.never_starts("gang", replica=1, failure=StartFailure.SECRET_MISSING)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "secret_missing"


def test_a_start_failure_of_a_started_replica_is_refused() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job")
    running(cell, "job")
    cell.exits("job")
    about = cell.task("job")
    cell.releases("job")
    event, record = cell._inputs.pop()
    object.__setattr__(event, "failure", OTHER)
    cell._inputs.append((event, record))
    cell.cycle()
    assert [code for _, code in cell.refused] == ["contradiction"]
    assert about.run is not None


# Executors


def test_a_job_with_an_image_waits_as_never_until_a_node_that_runs_containers_joins() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", image=True)
    cell.submit("plain")
    assert started(cell.cycle()) == ["plain"]
    wait = waits(cell, "job")
    assert (wait.code, wait.code.wait_class, wait.numbers) == ("no_executor", "never", {"nodes": 1})
    cell.node("n2", executors=(PROCESS, CONTAINER))
    assert started(cell.cycle()) == ["job"]
    assert cell.slots_of("job")[0][0] == "n2"
    assert_sound(cell.state)


def test_an_agent_that_comes_back_with_another_executor_gets_the_jobs_that_need_it() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("job", image=True)
    cell.cycle()
    cell.node("n1", executors=(PROCESS, CONTAINER))
    assert started(cell.cycle()) == ["job"]
    assert_sound(cell.state)
    cell.restart()
    cell.submit("next", image=True)
    assert started(cell.cycle()) == ["next"]


# Preempting


def preempting(policy: str, failed_starts: int = SEPARATE_AFTER) -> Cell:
    """Return a full cell in which `new` would preempt `old`, if its starts had not failed
    earlier.
    """
    name, _, _ = policy.partition(" ")
    cell = Cell(policy=name, **PREEMPTING[policy])
    cell.node("n1", gpus=2)
    strict = name in ("fitgpp", "lrtp", "rand")
    cell.submit("new", project="q", gpus=1, priority=1, preemptible=not strict)
    cell.cycle()
    if failed_starts == SEPARATE_AFTER:
        set_apart(cell, "new")
    else:
        fails_to_start(cell, "new")
    cell.submit("old", project="p", gpus=1, tasks=2, priority=50)
    cell.cycle()
    cell.starts("old", 0)
    cell.starts("old", 1)
    cell.cycle()
    return cell


@pytest.mark.parametrize("policy", PREEMPTING)
def test_a_task_whose_last_starts_failed_preempts_no_other(policy: str) -> None:
    cell = preempting(policy)
    decided = cell.run_until_idle()
    assert stops(decided) == [], "nor in its pause"
    cell.now_ms += 4000
    decided = cell.run_until_idle()
    assert stops(decided) == []
    assert cell.phase("new") == "pending"
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", PREEMPTING)
def test_its_failed_starts_expire_so_that_it_preempts_again_without_further_input(
    policy: str,
) -> None:
    cell = preempting(policy)
    last_ms = cell.now_ms
    cell.cycle(after_s=4)
    cell.run_until_idle()
    cell.restart()
    assert cell.machine.due_ms(cell.state) == last_ms + 4000 + EXPIRY_MS
    cell.cycle(after_s=(EXPIRY_MS // 1000) - 1)
    assert stops(cell.run_until_idle()) == []
    decided = [*cell.cycle(after_s=1), *cell.run_until_idle()]
    assert only(decided, dec.FailedStartsExpiredV1).failed_starts == SEPARATE_AFTER
    assert stops(decided) != []
    assert_sound(cell.state)


def test_after_one_more_failed_start_it_preempts_no_other_again_and_at_last_it_ends() -> None:
    cell = preempting("priority")
    decided: list[Event] = []
    for number in range(SEPARATE_AFTER, MAX_FAILED_STARTS):
        cell.cycle(after_s=1 << number)
        assert stops(cell.run_until_idle()) == []
        assert stops(cell.cycle(after_s=EXPIRY_MS // 1000)) != []
        old = next(i for i in (0, 1) if cell.phase("old", i) == "stopping")
        cell.ends("old", old, signal=15)
        assert "new" in started(cell.cycle())
        cell.restart()
        cell.never_starts("new", failure=OTHER)
        decided = cell.cycle()
        assert_sound(cell.state)
        if number + 1 < MAX_FAILED_STARTS:
            assert only(decided, dec.TaskRequeuedV1).failed_starts == number + 1
            assert cell.task("new").set_apart
            # `old` starts again.
            cell.starts("old", old)
    assert only(decided, dec.TaskEndedV1).code == "start_failed"


def test_a_task_within_what_its_project_deserves_takes_it_once_its_failed_starts_expired() -> None:
    cell = Cell(policy="quota")
    cell.node("n1", gpus=2)
    for project, deserved_milli in (("p", 2000), ("q", 0)):
        cell.entitle(project, quotas={"main": Quota(deserved_milli=deserved_milli)})
    cell.submit("hi", project="p", gpus=2)
    cell.cycle()
    set_apart(cell, "hi")
    cell.submit("low", project="q", gpus=1, tasks=2)
    cell.cycle()
    for index in (0, 1):
        cell.starts("low", index)
    cell.cycle(after_s=4)
    assert cell.run_until_idle() == []
    decided = cell.cycle(after_s=EXPIRY_MS // 1000)
    assert sorted(stopped(decided)) == ["low", "low.1"]
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", PREEMPTING)
def test_it_starts_on_free_capacity_and_may_preempt_once_it_started(policy: str) -> None:
    cell = preempting(policy)
    cell.cycle(after_s=4)
    cell.run_until_idle()
    cell.ends("old", 0)
    assert "new" in started(cell.run_until_idle())
    cell.starts("new")
    cell.cycle()
    assert (cell.task("new").failed_starts, cell.phase("new")) == (0, "running")
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", PREEMPTING)
def test_one_failed_start_takes_neither_its_place_nor_its_right_to_preempt(policy: str) -> None:
    cell = preempting(policy, failed_starts=1)
    assert stops([*cell.cycle(after_s=2), *cell.run_until_idle()]) != []
    assert_sound(cell.state)


def test_a_gang_with_one_failed_start_does_not_wait_behind_later_tasks() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("high", replicas=2, priority=1)
    cell.cycle()
    cell.submit("low", priority=50, tasks=9)
    cell.never_starts("high", replica=0, failure=OTHER)
    cell.never_starts("high", replica=1)
    cell.cycle()
    cell.starts("low", 0)
    cell.starts("low", 1)
    cell.cycle()
    stopped = all_of(cell.cycle(after_s=2), dec.PreemptionRequestedV1)
    assert {stop.stop.for_task for stop in stopped} == {cell.task("high").id}
    cell.ends("low", 0, signal=15)
    cell.ends("low", 1, signal=15)
    assert "high" in started(cell.run_until_idle())
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", PREEMPTING)
def test_without_the_failed_start_it_preempts(policy: str) -> None:
    name, _, _ = policy.partition(" ")
    cell = Cell(policy=name, **PREEMPTING[policy])
    cell.node("n1", gpus=2)
    cell.submit("old", project="p", gpus=1, tasks=2, priority=50)
    cell.cycle()
    cell.starts("old", 0)
    cell.starts("old", 1)
    cell.cycle()
    strict = name in ("fitgpp", "lrtp", "rand")
    cell.submit("new", project="q", gpus=1, priority=1, preemptible=not strict)
    assert stops(cell.run_until_idle()) != []


def test_an_equal_task_behind_it_preempts_for_itself_and_gets_those_slots() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("failed", priority=1)
    cell.cycle()
    set_apart(cell, "failed")
    cell.submit("low", priority=50)
    running(cell, "low")
    cell.cycle(after_s=4)
    cell.submit("equal", priority=1)
    stop = only(cell.cycle(), dec.PreemptionRequestedV1)
    assert stop.stop.for_task == cell.task("equal").id
    cell.ends("low", signal=15)
    assert started(cell.cycle()) == ["equal"]
    assert_sound(cell.state)


@pytest.mark.parametrize("policy", ["priority", "quota", "starved_first"])
def test_it_gets_no_slots_that_a_task_releases_until_they_are_free(policy: str) -> None:
    cell = Cell(policy=policy)
    cell.node("n1", gpus=1)
    cell.submit("failed", priority=1)
    cell.cycle()
    set_apart(cell, "failed")
    cell.submit("running", priority=50)
    running(cell, "running")
    cell.cycle(after_s=4)
    cell.cancel("running")
    decided = cell.run_until_idle()
    assert all_of(decided, dec.SlotsReservedV1) == []
    cell.ends("running", signal=15)
    assert started(cell.run_until_idle()) == ["failed"]


@pytest.mark.parametrize("policy", ["fitgpp", "lrtp", "rand"])
def test_in_a_strict_queue_tasks_behind_it_still_preempt(policy: str) -> None:
    cell = preempting(policy)
    cell.cycle(after_s=4)
    cell.submit("behind", project="r", gpus=1, preemptible=False)
    decided = cell.run_until_idle()
    victims = all_of(decided, dec.PreemptionRequestedV1)
    assert [stop.stop.for_task for stop in victims] == [cell.task("behind").id]


# Snapshots, other readers


def test_a_snapshot_keeps_failed_starts() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("job")
    cell.cycle()
    fails_to_start(cell, "job")
    before = cell.machine.digest(cell.state)
    cell.restart()
    assert cell.machine.digest(cell.state) == before
    cell.cycle(after_s=2)
    cell.never_starts("job", failure=OTHER)
    cell.cycle()
    cell.restart()
    assert (cell.task("job").failed_starts, cell.task("job").failed_nodes) == (2, ("n1", "n2"))
    assert fold(cell.steps).digest() == cell.machine.digest(cell.state)


def test_a_snapshot_keeps_the_cause_that_an_open_gang_will_end_with() -> None:
    cell = Cell()
    cell.node("n1", gpus=2)
    cell.submit("gang", replicas=2)
    cell.cycle()
    cell.never_starts("gang", replica=0, failure=StartFailure.DIRECTORY_MISSING)
    cell.cycle()
    cell.restart()
    cell.never_starts("gang", replica=1)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "directory_missing"


# Exits before a loss


def test_a_reported_exit_takes_precedence_over_a_later_loss_of_the_node() -> None:
    cell = Cell()
    cell.node("n1")
    cell.node("n2")
    cell.submit("job")
    running(cell, "job")
    cell.exits("job", exit_code=3)
    cell.cycle()
    heard_ms = cell.now_ms
    ended = only(cell.cycle(after_s=61, silent={"n1": heard_ms}), dec.TaskEndedV1)
    assert (ended.outcome, ended.code, ended.exit_code) == ("failed", "exit", 3)


def test_a_gang_of_which_a_replica_failed_fails_though_another_ones_node_is_lost_then() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.node("n2", gpus=1)
    cell.submit("gang", replicas=2)
    running(cell, "gang")
    cell.exits("gang", replica=0, exit_code=3)
    heard_ms = cell.now_ms
    decided = cell.cycle(after_s=61, silent={"n2": heard_ms})
    assert "SlotsAllocated" not in kinds(decided)
    cell.releases("gang", replica=0)
    ended = only(cell.run_until_idle(), dec.TaskEndedV1)
    assert (ended.code, ended.exit_code) == ("exit", 3)


# Decisions that are too large for a record


def test_a_task_whose_allocation_cannot_be_written_ends_with_a_code_of_its_own() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("big")
    cell.submit("next")
    cell.pause("big")
    cell.cycle()
    cell.ends("next") if cell.phase("next") == "running" else cell.never_starts("next")
    decided = cell.cycle(unwritable=["big"])
    assert kinds(decided)[0] == "AllocationUnwritable"
    ended = only(decided, dec.TaskEndedV1)
    assert (ended.outcome, ended.code) == ("failed", "decision_too_large")
    assert_sound(cell.state)


def test_the_end_of_such_a_task_may_come_in_the_next_cycle() -> None:
    cell = Cell()
    cell.node("n1")
    cell.submit("big")
    cell.pause("big")
    cell.cycle()
    cell.resume("big")
    assert kinds(cell.cycle(unwritable=["big"], limit=1)) == ["AllocationUnwritable"]
    cell.restart()
    assert only(cell.cycle(), dec.TaskEndedV1).code == "decision_too_large"


@pytest.mark.parametrize("project", ["p", "q"])
def test_under_quota_released_slots_go_first_to_tasks_whose_starts_did_not_fail(
    project: str,
) -> None:
    """Nothing wakes the tasks that fit after a release."""
    cell = Cell(policy="quota", actions=["allocate"])
    cell.entitle("p", quotas={"main": Quota(deserved_milli=1000)})
    cell.node("n1", gpus=1)
    cell.submit("failed", priority=1)
    cell.cycle()
    set_apart(cell, "failed")
    cell.submit("running", priority=50)
    running(cell, "running")
    cell.submit("pending", project=project, priority=50)
    cell.cycle(after_s=60)
    cell.run_until_idle()
    assert waits(cell, "failed").code is waits(cell, "pending").code
    cell.ends("running")
    assert started(cell.run_until_idle()) == ["pending"]


def test_a_task_whose_starts_failed_counts_in_the_demand_again_once_it_starts() -> None:
    cell = Cell(policy="fair_share", among="project")
    cell.node("n1", gpus=1)
    cell.submit("job", gpus=1)
    cell.submit("large", gpus=3)
    cell.cycle()
    set_apart(cell, "job")
    cell.run_until_idle()
    ranks = cell.state.projects["p"].ranks
    assert ranks["main"][0] == 0, "its demand without the task, which `large` does not count in"
    assert started(cell.cycle(after_s=4)) == ["job"]
    cell.run_until_idle()
    assert ranks["main"][0] == 1000
    assert_sound(cell.state)


# Images


@pytest.mark.parametrize("failure", [one for one in StartFailure if one.checked_twice])
def test_an_image_or_commit_that_two_nodes_cannot_have_ends_the_task(failure: StartFailure) -> None:
    cell = Cell()
    for name in ("n1", "n2", "n3"):
        cell.node(name, gpus=1)
    cell.submit("train")
    cell.cycle()
    requeued = fails_to_start(cell, "train", failure=failure)
    assert (requeued.code, requeued.failed_starts) == (failure.value, 1)
    cell.cycle(after_s=waited_s(cell, requeued))
    assert cell.task("train").run is not None
    assert not set(cell.task("train").run.nodes) & set(requeued.failed_nodes)  # type: ignore[union-attr]
    cell.never_starts("train", failure=failure)
    assert only(cell.cycle(), dec.TaskEndedV1).code == failure.value


def test_an_image_that_the_only_node_cannot_have_is_tried_twice() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("train")
    cell.cycle()
    requeued = fails_to_start(cell, "train", failure=StartFailure.IMAGE_MISSING)
    cell.cycle(after_s=waited_s(cell, requeued))
    cell.never_starts("train", failure=StartFailure.IMAGE_MISSING)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "image_missing"


def test_an_image_that_two_nodes_of_a_gang_cannot_have_ends_the_task_at_once() -> None:
    cell = Cell()
    for name in ("n1", "n2"):
        cell.node(name, gpus=1)
    cell.submit("train", gpus=1, replicas=2)
    cell.cycle()
    cell.never_starts("train", replica=0, failure=StartFailure.IMAGE_UNREACHABLE)
    cell.never_starts("train", replica=1, failure=StartFailure.IMAGE_MISSING)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "image_missing"


def test_an_image_whose_registry_is_unreachable_is_a_failed_start_like_others() -> None:
    cell = Cell()
    cell.node("n1", gpus=1)
    cell.submit("train")
    cell.cycle()
    for number in range(1, MAX_FAILED_STARTS):
        requeued = fails_to_start(cell, "train", failure=StartFailure.IMAGE_UNREACHABLE)
        assert (requeued.code, requeued.failed_starts) == ("image_unreachable", number)
        cell.cycle(after_s=waited_s(cell, requeued))
    cell.never_starts("train", failure=StartFailure.IMAGE_UNREACHABLE)
    assert only(cell.cycle(), dec.TaskEndedV1).code == "start_failed"
