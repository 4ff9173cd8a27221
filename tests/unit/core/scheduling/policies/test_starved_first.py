"""The policy `starved_first`: the owner with the fewest GPUs first, and equal parts."""

from typing import Any

import pytest

from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import all_of, only, started, stopped, waits
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.policies.starved_first.equal_parts import equal_level
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Layout
from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources

PROJECTS = {"owners": "project"}


class OwnersCell(QuotaCell):
    """A cell whose agents do at once what they are asked to."""

    def __init__(self, nodes: dict[str, int], **options: Any) -> None:
        Cell.__init__(self, policy="starved_first", **options)
        for name, gpus in nodes.items():
            self.node(name, gpus)

    def cycle(self, **options: Any) -> list[Event]:
        """Run a cycle, and check all indexes."""
        decided = super().cycle(**options)
        assert_sound(self.state)
        return decided

    def gpus_of(self, *owners: str) -> list[float]:
        """The GPUs that tasks of each user or project hold."""
        held = dict.fromkeys(owners, 0.0)
        for task in self.state.tasks.values():
            owner = task.job.user or task.job.project.name
            if task.run is not None and owner in held:
                held[owner] += task.job.shape.total_gpu_milli / 1000
        return list(held.values())

    def submit_all(self, user: str, jobs: int, **spec: Any) -> list[str]:
        """Submit jobs of one GPU each; return their names."""
        names = [f"{user}{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(jobs)]
        for name in names:
            self.submit(name, user=user, **spec)
        return names


# The pictures of the post


def test_bob_holds_4_gpus_and_alice_asks_for_2_each_has_2() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit_all("bob", 4)
    cell.run()
    assert cell.gpus_of("bob") == [4]
    cell.submit_all("alice", 2)
    decided = cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]
    assert stopped(decided) == ["bobad", "bobac"]


def test_the_same_if_bobs_tasks_have_the_highest_priority_and_50_more_are_pending() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit_all("bob", 54, priority=1)
    cell.run()
    cell.submit_all("alice", 2, priority=99)
    decided = cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]
    assert len(stopped(decided)) == 2


def test_the_same_for_one_task_of_2_gpus_on_2_nodes() -> None:
    cell = OwnersCell({"n1": 2, "n2": 2})
    cell.submit_all("bob", 54, priority=1)
    cell.run()
    cell.submit("gang", user="alice", replicas=2, priority=99)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]


# Order


def test_the_owner_with_the_fewest_gpus_comes_first_after_each_start() -> None:
    cell = OwnersCell({"n1": 6})
    cell.submit_all("bob", 6, priority=1)
    cell.submit_all("alice", 6, priority=99)
    cell.submit_all("carol", 1)
    assert started(cell.cycle()) == ["bobaa", "aliceaa", "carolaa", "bobab", "aliceab", "bobac"]


def test_an_owners_tasks_come_by_priority_then_by_submission() -> None:
    cell = OwnersCell({"n1": 2})
    for name, priority in (("late", 50), ("high", 10), ("mid", 50)):
        cell.submit(name, user="alice", priority=priority)
    assert started(cell.cycle()) == ["high", "late"]


def test_a_task_that_fits_nowhere_lets_the_next_one_of_its_owner_and_of_others_start() -> None:
    cell = OwnersCell({"n1": 2})
    cell.submit("large", user="alice", gpus=8, priority=1)
    cell.submit("small", user="alice")
    cell.submit("other", user="bob")
    assert started(cell.cycle()) == ["small", "other"]


def test_a_user_is_one_owner_in_all_projects() -> None:
    cell = OwnersCell({"n1": 4})
    for n, project in enumerate("pqrs"):
        cell.submit(f"bob{project}", user="bob", project=project, gpus=1 + n // 9)
    cell.run()
    cell.submit_all("alice", 2, project="p")
    cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]


def test_projects_are_the_owners_with_that_option() -> None:
    cell = OwnersCell({"n1": 4}, **PROJECTS)
    for n, user in enumerate("wxyz"):
        cell.submit(f"p{user}", user=user, project="p", priority=1 + n)
    cell.run()
    cell.submit("one", project="q", user="w")
    cell.submit("two", project="q", user="w")
    preemptions = all_of(cell.run(), dec.PreemptionRequestedV1)
    held = {name: project.used_milli["main"] for name, project in cell.state.projects.items()}
    assert held == {"p": 2000, "q": 2000}
    assert [each.stop.about for each in preemptions] == ["p", "p"]


def test_a_job_without_a_user_belongs_to_its_project() -> None:
    cell = OwnersCell({"n1": 4})
    for name in ("one", "two", "three", "four"):
        cell.submit(name, project="p")
    cell.run()
    cell.submit_all("alice", 2, project="p")
    cell.run()
    assert cell.gpus_of("alice", "p") == [2, 2]


# Equal parts


@pytest.mark.parametrize(
    ("total", "owners", "level"),
    [
        (4, [(0, 54), (0, 2)], 2),
        (8, [(0, 9), (0, 9), (0, 9)], 2),  # and 2 of 3 parts of one
        (8, [(0, 1), (0, 9), (0, 9)], 3),
        (8, [(6, 9), (0, 9), (0, 9)], 1),
        (8, [(0, 1), (0, 2)], 8),
        (2, [(3, 4), (0, 4)], 0),
        (0, [(0, 4)], 0),
        (5, [], 5),
    ],
)
def test_what_an_owner_does_not_need_or_cannot_lose_is_divided_among_the_others(
    total: int, owners: list[tuple[int, int]], level: int
) -> None:
    assert equal_level(total, owners) == level


def test_what_a_small_owner_does_not_need_goes_to_the_others() -> None:
    cell = OwnersCell({"n1": 8})
    cell.submit_all("bob", 20)
    cell.run()
    cell.submit_all("carol", 1)
    cell.submit_all("alice", 20)
    cell.run()
    assert sorted(cell.gpus_of("alice", "bob")) == [3, 4]
    assert cell.gpus_of("carol") == [1]


def test_equal_owners_stop_preempting_where_equal_parts_are_parts_of_gpus() -> None:
    cell = OwnersCell({"n1": 8})
    cell.submit_all("bob", 20)
    cell.run()
    cell.submit_all("carol", 20)
    cell.submit_all("alice", 20)
    cell.run()
    assert sorted(cell.gpus_of("alice", "bob", "carol")) == [2, 3, 3]
    assert cell.cycle(after_s=60) == []


def test_more_tasks_or_a_higher_priority_gain_nothing() -> None:
    cell = OwnersCell({"n1": 4, "n2": 4})
    cell.submit_all("alice", 8, priority=99)
    cell.run()
    bobs = cell.submit_all("bob", 40)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [4, 4]
    for name in bobs:
        cell.set_priority(name, 1)
    for n in range(20):
        cell.submit(f"more{chr(97 + n)}", user="bob", priority=1)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [4, 4]


def test_a_victim_returns_to_its_owners_queue_and_starts_again() -> None:
    cell = OwnersCell({"n1": 2})
    cell.submit_all("bob", 2)
    cell.run()
    cell.submit_all("alice", 1)
    cell.submit("newer", user="bob")
    cell.run()
    assert cell.gpus_of("alice", "bob") == [1, 1]
    victim, newer = cell.task("bobab"), cell.task("newer")
    assert victim.group is not None
    assert victim < newer, "it keeps its submission"
    cell.ends("aliceaa")
    cell.run()
    assert victim.run is not None
    assert newer.run is None


def test_tasks_that_cannot_be_preempted_keep_what_they_hold() -> None:
    cell = OwnersCell({"n1": 8}, non_preemptible_permille=1000)
    cell.submit("non_preemptible", user="bob", gpus=6, preemptible=False)
    cell.submit_all("carol", 2)
    cell.run()
    cell.submit_all("alice", 5)
    cell.run()
    assert cell.gpus_of("alice", "bob", "carol") == [1, 6, 1]


def test_an_owner_does_not_take_a_pool_with_tasks_that_cannot_be_preempted() -> None:
    cell = OwnersCell({"n1": 8})
    bobs = cell.submit_all("bob", 12, preemptible=False)
    cell.run()
    wait = waits(cell, bobs[4])
    assert cell.gpus_of("bob") == [4]
    assert (wait.code, wait.about) == (WaitCode.AT_DESERVED, None)
    assert wait.numbers == {"deserved_milli": 4000, "used_milli": 4000, "asked_milli": 1000}
    cell.submit_all("alice", 12, preemptible=False)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [4, 4]


def test_the_next_one_starts_when_one_of_these_tasks_ends() -> None:
    cell = OwnersCell({"n1": 8})
    bobs = cell.submit_all("bob", 6, preemptible=False)
    cell.run()
    cell.ends(bobs[0], done=True)
    assert started(cell.run()) == [bobs[4]]


def test_they_start_on_the_nodes_that_join() -> None:
    cell = OwnersCell({"n1": 2})
    bobs = cell.submit_all("bob", 3, preemptible=False)
    cell.submit("large", user="bob", gpus=2, preemptible=False)
    cell.run()
    assert waits(cell, "large").code is WaitCode.EXCEEDS_DESERVED
    cell.node("n2", 4)
    assert started(cell.run()) == bobs[1:]
    assert waits(cell, "large").code is WaitCode.AT_DESERVED


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_next_one_starts_also_if_all_is_counted_from_nothing_meanwhile(
    cancelled: bool,
) -> None:
    cell = OwnersCell({"n1": 8})
    cell.submit("large", user="alice", gpus=8)
    bobs = cell.submit_all("bob", 6, preemptible=False)
    cell.run()
    cell.ends(bobs[0], done=True)
    if cancelled:
        # The cycle begins with a group that has no task any more.
        cell.cancel("large")
    # The limits of another project change.
    cell.entitle("other", limit_milli=4000)
    assert started(cell.run()) == [bobs[4]]


def test_what_an_owner_may_not_hold_leaves_its_other_tasks_alone() -> None:
    cell = OwnersCell({"n1": 4}, **PROJECTS)
    for name in ("a", "b", "c"):
        cell.submit(f"{name}notebook", project="p", preemptible=False)
    cell.submit("sweep", project="p", tasks=4)
    cell.run()
    wait = waits(cell, "cnotebook")
    assert (wait.code, wait.about) == (WaitCode.AT_DESERVED, "p")
    assert cell.gpus_of("p") == [4]


def test_a_pool_of_one_gpu_takes_one_of_them() -> None:
    cell = OwnersCell({"n1": 1})
    cell.submit("notebook", user="bob", preemptible=False)
    assert started(cell.run()) == ["notebook"]


def test_tasks_with_a_minimum_run_time_leave_after_that_time() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit_all("bob", 8, min_runtime_s=3600)
    cell.run()
    cell.submit_all("alice", 4)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [0, 4]
    cell.cycle(after_s=3601)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]


def test_a_task_that_cannot_be_preempted_preempts_as_others() -> None:
    cell = OwnersCell({"n1": 2})
    cell.submit_all("bob", 2)
    cell.run()
    cell.submit("non_preemptible", user="alice", preemptible=False)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [1, 1]


def test_a_gang_larger_than_what_two_owners_may_exchange_waits() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit_all("bob", 8)
    cell.run()
    cell.submit("gang", user="alice", gpus=3)
    assert stopped(cell.run()) == []
    assert waits(cell, "gang").code is WaitCode.INSUFFICIENT_FREE


def test_owners_with_tasks_of_different_sizes_do_not_preempt_each_other_in_turn() -> None:
    """Else Alice's gang would start next to the task for which Bob's was preempted."""
    cell = OwnersCell({"n1": 2, "n2": 4, "n3": 3})
    cell.submit("non_preemptible", user="carol", gpus=3, preemptible=False)
    cell.submit("gang", user="alice", gpus=3)
    cell.submit_all("alice", 3)
    cell.run()
    cell.submit("large", user="bob", gpus=4)
    cell.run()
    assert cell.gpus_of("alice", "bob", "carol") == [2, 4, 3]
    assert waits(cell, "gang").code is WaitCode.INSUFFICIENT_FREE


def test_a_task_preempts_nothing_that_comes_back_once_others_of_its_owner_start() -> None:
    """Else Bob's task would preempt Alice's first one when she holds more with the other two."""
    cell = OwnersCell({})
    cell.node("n1", 3, node_type="a")
    cell.node("n2", 2, node_type="b")
    cell.submit("large", user="bob", gpus=3)
    cell.run()
    cell.submit("first", user="alice", gpus=2, priority=10, node_types=("a",))
    cell.submit("other", user="alice", tasks=2)
    assert stopped(cell.run()) == []
    assert cell.gpus_of("alice", "bob") == [2, 3]


def test_a_task_preempts_before_lower_priorities_of_its_owner_take_idle_slots() -> None:
    cell = OwnersCell({"n1": 8})
    cell.submit_all("bob", 6)
    cell.run()
    cell.submit("first", user="alice", gpus=4, priority=10)
    cell.submit("other", user="alice", tasks=10)
    assert len(stopped(cell.run())) == 2
    assert cell.slots_of("first")
    assert cell.gpus_of("alice", "bob") == [4, 4]


def test_no_owner_preempts_beyond_its_equal_part_before_one_whose_tasks_stop() -> None:
    """Else Bob, who holds nothing then, would take back the slots of `first`."""
    cell = OwnersCell({"n1": 4})
    halves = Resources(gpus=1, gpu_milli=500)
    cell.submit("carol", user="carol", resources=halves, replicas=3)
    cell.submit("bob", user="bob", resources=halves, replicas=3)
    cell.submit("large", user="carol")
    cell.run()
    cell.submit("first", user="alice", resources=Resources(gpus=1, gpu_milli=300), replicas=4)
    cell.submit("second", user="alice", resources=halves)
    cell.submit("third", user="alice", replicas=3)
    assert stopped(cell.cycle()) == ["bob"]
    assert "first" not in stopped(cell.run())


def test_a_large_task_is_preempted_for_an_owner_with_nothing_and_for_no_other() -> None:
    cell = OwnersCell({"n1": 6, "n2": 1})
    cell.submit("large", user="bob", gpus=6)
    cell.submit_all("alice", 2)
    assert stopped(cell.run()) == []
    assert cell.gpus_of("alice", "bob") == [1, 6]
    cell.submit("one", user="carol")
    assert stopped(cell.run()) == ["large"]


def test_no_task_is_preempted_only_so_that_others_can_be_moved_to_its_slots() -> None:
    """Alice may lose one of the small tasks, not both; the gang fits without both, wherever these
    go.
    """
    cell = OwnersCell({"n2": 3, "n3": 2}, unequal_gangs=True)
    cell.submit("large", user="alice", gpus=3)
    cell.submit("other", project="q", gpus=2)
    cell.run()
    halves = Resources(gpus=2, gpu_milli=500)
    cell.node("n4", 3)
    cell.submit("small", user="alice", tasks=4, resources=halves)
    cell.run()
    assert [cell.slots_of("small", n) for n in range(3)] == [[("n4", (0, 1))]] * 2 + [[]]
    cell.node("n1", 1)
    cell.disable("n2", 2)
    cell.submit("gang", user="carol", gpus=4, layout=Layout.WHOLE_NODES)
    assert "large" not in stopped(cell.cycle())


def test_an_owner_at_a_limit_does_not_take_from_the_parts_of_the_others() -> None:
    cell = OwnersCell({"n1": 8})
    cell.entitle("limited", limit_milli=1000)
    cell.submit_all("carol", 9, project="limited")
    cell.submit_all("bob", 20)
    cell.run()
    assert cell.gpus_of("bob", "carol") == [7, 1]
    cell.submit_all("alice", 20)
    cell.run()
    assert sorted(cell.gpus_of("alice", "bob")) == [3, 4]
    cell.entitle("limited")
    cell.run()
    assert sorted(cell.gpus_of("alice", "bob", "carol")) == [2, 3, 3]


def test_of_tasks_at_one_limit_that_of_the_owner_with_the_fewest_gpus_comes_first() -> None:
    cell = OwnersCell({"n1": 4})
    cell.entitle("limited", limit_milli=1000)
    cell.submit_all("alice", 2)
    cell.submit("runs", user="dan", project="limited")
    cell.submit("bobs", user="bob")
    cell.run()
    cell.submit("alices", user="alice", project="limited", priority=1)
    cell.submit("carols", user="carol", project="limited")
    cell.submit("another", user="bob")
    cell.run()
    assert [waits(cell, name).code for name in ("alices", "carols")] == [WaitCode.AT_LIMIT] * 2
    cell.ends("runs", done=True)
    assert started(cell.run()) == ["carols"]


def test_tasks_that_could_never_fit_take_nothing_from_the_others() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit("huge", user="carol", gpus=64)
    cell.submit_all("bob", 8)
    cell.run()
    cell.submit_all("alice", 8)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [2, 2]


def test_tasks_without_gpus_count_for_nothing_and_preempt_nothing() -> None:
    cell = OwnersCell({"n1": 2})
    cell.submit_all("bob", 2, gpus=1)
    cell.run()
    cell.submit("cpus", user="alice", gpus=0)
    assert stopped(cell.run()) == []
    cell.submit("one", user="alice")
    cell.run()
    assert cell.gpus_of("alice", "bob") == [1, 1]


def test_a_minimum_run_time_protects_until_it_is_over() -> None:
    cell = OwnersCell({"n1": 2})
    cell.submit_all("bob", 2, min_runtime_s=600)
    cell.run()
    cell.submit_all("alice", 1)
    assert stopped(cell.run()) == []
    wait = waits(cell, "aliceaa")
    assert wait.code is WaitCode.VICTIMS_PROTECTED
    assert wait.numbers["victims"] == 2
    cell.cycle(after_s=600)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [1, 1]


def test_starts_and_stops_carry_the_numbers_that_decided() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit_all("bob", 5)
    starts = all_of(cell.cycle(), dec.SlotsAllocatedV1)
    assert [each.start.rule for each in starts] == ["within_equal_part"] * 4
    cell.run()
    cell.submit_all("alice", 1)
    decided = cell.run()
    stop = only(decided, dec.PreemptionRequestedV1).stop
    assert (stop.rule, stop.about) == ("above_equal_part", None)
    assert stop.numbers == {
        **{"fair_share_milli": 3000, "used_milli": 4000, "held_milli": 1000},
        **{"for_fair_share_milli": 1000, "for_used_milli": 0, "asked_milli": 1000},
    }
    start = only(decided, dec.SlotsAllocatedV1).start
    assert start is not None
    assert start.numbers == {"fair_share_milli": 1000, "used_milli": 0}


# The life of a pool


def test_a_restored_cell_goes_on_in_the_same_way() -> None:
    cell, copy = OwnersCell({"n1": 4}), OwnersCell({"n1": 4})
    decided: list[list[Event]] = []
    for each in (cell, copy):
        each.submit_all("bob", 9)
        decided.append(each.cycle())
        each.submit_all("alice", 9)
        for _ in range(3):
            if each is copy:
                each.restart()
            decided[-1] += each.cycle()
    assert decided[0] == decided[1]
    assert len(stopped(decided[0])) == 2


def test_a_pool_switches_to_this_policy_and_back_and_loses_nothing() -> None:
    cell = OwnersCell({"n1": 4})
    cell.pool("main", policy="priority")
    cell.submit_all("bob", 6, priority=1)
    cell.run()
    cell.submit_all("alice", 4, priority=50)
    cell.run()
    assert cell.gpus_of("alice", "bob") == [0, 4]
    cell.pool("main", policy="starved_first")
    assert len(stopped(cell.run())) == 2
    assert cell.gpus_of("alice", "bob") == [2, 2]
    cell.pool("main", policy="priority")
    cell.run()
    assert cell.gpus_of("alice", "bob") == [0, 4]
    assert len(cell.state.tasks) == 10


def test_an_owner_that_would_hold_nothing_keeps_its_tasks_if_it_could_take_slots_back() -> None:
    cell = OwnersCell({"n1": 4})
    cell.submit("three", user="bob", gpus=3)
    cell.submit("part", user="bob", resources=Resources(gpus=1, gpu_milli=700))
    cell.run()
    gang = Resources(gpus=1, gpu_milli=700)
    cell.submit("gang", user="alice", resources=gang, replicas=4)
    assert not stopped(cell.run())
    assert cell.gpus_of("bob", "alice") == [3.7, 0]


def test_a_gang_is_not_stopped_for_one_gpu_where_a_small_task_would_do() -> None:
    cell = OwnersCell({"n1": 8})
    cell.submit("small", user="bob", tasks=2)
    cell.run()
    cell.submit("gang", user="bob", gpus=3, replicas=2)
    cell.run()
    cell.submit("one", user="alice")
    assert stopped(cell.run()) == ["small.1"]


def test_a_victim_is_found_behind_smaller_ones_that_do_not_help() -> None:
    cell = OwnersCell({"n1": 4, "n2": 2})
    here: dict[str, Any] = {"avoid_nodes": ("n2",)}
    large, small = (Resources(gpus=1, gpu_milli=milli) for milli in (700, 300))
    cell.submit("large", user="ann", tasks=3, resources=large, **here)
    cell.run()
    # One on each of the GPUs of `large`, which a fourth task of it does not fit on without them.
    cell.submit("small", user="bob", tasks=3, resources=small, **here)
    cell.run()
    cell.submit("one", user="bob", **here)
    cell.submit("two", user="bob", gpus=2)
    cell.run()
    assert cell.gpus_of("ann", "bob") == pytest.approx([2.1, 3.9])
    cell.submit("fourth", user="ann", resources=large, **here)
    assert stopped(cell.run()) == ["one"]
