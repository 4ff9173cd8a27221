"""The policy `quota`: guaranteed quotas, over-quota, reclaim, preemption in a project, moves."""

from typing import Any

import pytest

from tests.unit.core.scheduling.reading import started
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.testing import ONE_RUN, Cell
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.decisions import (
    PreemptionRequestedV1,
    ReservationDroppedV1,
    SlotsReservedV1,
    TaskUnschedulableV1,
)
from yardmaster_schemas.reasons import PolicyStop, Wait, WaitCode
from yardmaster_schemas.resources import Resources

MAX_CYCLES = 40


class QuotaCell(Cell):
    """A cell whose agents do at once what they are asked to."""

    def __init__(self, nodes: dict[str, int], *, policy: str = "quota", **options: Any) -> None:
        super().__init__(policy=policy, **options)
        self.entitle_to("d", department=True)
        for name, gpus in nodes.items():
            self.node(name, gpus)

    def entitle_to(
        self,
        name: str,
        deserved: int | None = None,
        *,
        department: bool = False,
        of: str = "d",
        weight: int = 1,
        limit: int | None = None,
        **config: Any,
    ) -> None:
        """Give a queue GPUs in pool `main`; a department without any has no quota."""
        quotas = {}
        if deserved is not None:
            quotas["main"] = req.Quota(
                deserved_milli=deserved * 1000,
                limit_milli=limit and limit * 1000,
                over_quota_weight=weight,
                **{key: config.pop(key) for key in tuple(config) if key.endswith(("milli", "mib"))},
                over_quota=config.pop("over_quota", True),
            )
        named: dict[str, Any] = {"name": name, "revision": 1}
        if department:
            named["level"] = adm.Level.DEPARTMENT
            named["department"] = req.DepartmentConfig(quotas=quotas, **config)
        else:
            named["level"] = adm.Level.PROJECT
            named["project"] = req.ProjectConfig(department=of, quotas=quotas, **config)
        self.admission(adm.EntitlementsChangedV1(**named))

    def run(self) -> list[Any]:
        """Run cycles until nothing changes; return all decisions."""
        found: list[Any] = []
        for _ in range(MAX_CYCLES):
            decisions = self.cycle(after_s=1)
            found += decisions
            acted = False
            for task in list(self.state.tasks.values()):
                run = task.run
                if run is None or task.phase.final:
                    continue
                for replica, placement in enumerate(run.placements):
                    about = {
                        "task_id": task.id,
                        "attempt": run.number,
                        "replica": replica,
                        "node": placement.node,
                        "incarnation": placement.incarnation,
                    }
                    acted |= self._act(task, run, replica, about)
            if not decisions and not acted:
                return found
        raise AssertionError("the cell does not stop deciding")

    def _act(self, task: Any, run: Any, replica: int, about: dict[str, Any]) -> bool:
        if run.stop is not None and run.replicas[replica] < ReplicaState.RELEASED:
            self.claim(nev.TaskExitedV1(**about, exit_code=0, signal=None))
            self.claim(nev.SlotsReleasedV1(**about))
            return True
        if run.replicas[replica] == ReplicaState.ALLOCATED:
            self.claim(nev.TaskStartedV1(**about, run=ONE_RUN))
            return True
        return False

    def held(self, project: str) -> int:
        """Whole GPUs that a project's tasks hold."""
        return self.state.projects[project].used_milli.get("main", 0) // 1000

    def wait_of(self, name: str, pool: str = "main") -> WaitCode:
        """Why a job's first task is pending."""
        return self.reason_of(name, pool).code

    def reason_of(self, name: str, pool: str = "main") -> Wait:
        """Why a job's first task is pending, with the numbers."""
        group = self.task(name).group
        assert group is not None, f"{name} is not pending"
        return group.waits[pool][0]


def test_two_projects_with_much_to_do_get_what_they_deserve_and_the_rest_in_proportion() -> None:
    cell = QuotaCell({"n1": 4, "n2": 8})
    cell.entitle_to("a", 3)
    cell.entitle_to("b", 1)
    for n in range(12):
        cell.submit(f"a{n:02}x", project="a")
    cell.run()
    assert cell.held("a") == 12
    for n in range(12):
        cell.submit(f"b{n:02}x", project="b")
    cell.run()
    assert (cell.held("a"), cell.held("b")) == (9, 3)


def test_weights_divide_what_is_left() -> None:
    cell = QuotaCell({"n1": 12}, over_quota="weight")
    cell.entitle_to("a", 2, weight=1)
    cell.entitle_to("b", 2, weight=3)
    for n in range(12):
        cell.submit(f"a{n:02}x", project="a")
    cell.run()
    for n in range(12):
        cell.submit(f"b{n:02}x", project="b")
    cell.run()
    assert (cell.held("a"), cell.held("b")) == (4, 8)


def test_a_project_with_nothing_gets_what_it_deserves_at_the_cost_of_as_much() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 2)
    cell.entitle_to("b", 2)
    for n in range(8):
        cell.submit(f"a{n:02}x", project="a")
    cell.run()
    cell.submit("b0", project="b")
    cell.submit("b1", project="b")
    decisions = cell.run()
    assert cell.held("b") == 2
    assert cell.held("a") == 6
    stops = [each for each in decisions if isinstance(each, PreemptionRequestedV1)]
    assert len(stops) == 2
    assert {each.stop.policy for each in stops} == {"quota"}


def test_a_task_is_moved_so_that_one_on_whole_nodes_fits() -> None:
    cell = QuotaCell({"n1": 2, "n2": 2})
    cell.entitle_to("a", 4)
    cell.submit("x", gpus=2, project="a")
    cell.submit("y", gpus=1, project="a")
    cell.submit("z", gpus=1, project="a")
    cell.run()
    cell.cancel("x")
    cell.run()
    # y and z are on one node: put one of them elsewhere.
    cell.submit("w", gpus=1, project="a")
    cell.run()
    cell.cancel("z")
    cell.run()
    cell.submit("both", gpus=2, project="a")
    decisions = cell.run()
    assert cell.held("a") == 4
    moved = [each for each in decisions if isinstance(each, PreemptionRequestedV1)]
    assert [each.stop.rule for each in moved] == ["moved"]
    assert len([each for each in decisions if isinstance(each, SlotsReservedV1)]) == 2


def test_tasks_that_cannot_be_preempted_stay_within_what_is_deserved() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 2)
    for n in range(3):
        cell.submit(f"i{n}", project="a", preemptible=False)
    cell.submit("big", project="a", preemptible=False, gpus=3)
    cell.submit("t", project="a")
    cell.run()
    assert cell.held("a") == 3
    assert cell.wait_of("i2") is WaitCode.AT_DESERVED
    assert cell.wait_of("big") is WaitCode.EXCEEDS_DESERVED


def test_a_departments_quota_supersedes_those_of_its_projects() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("d1", 2, department=True)
    cell.entitle_to("d2", 2, department=True)
    cell.entitle_to("p1", 2, of="d1")
    cell.entitle_to("p2", 2, of="d1")
    cell.entitle_to("p3", 2, of="d2")
    for n in range(2):
        for project in ("p1", "p2"):
            cell.submit(f"{project}n{n}", project=project, department="d1")
    cell.run()
    assert (cell.held("p1"), cell.held("p2")) == (2, 2)
    for n in range(2):
        cell.submit(f"p3n{n}", project="p3", department="d2")
    cell.run()
    assert cell.held("p3") == 2
    assert cell.held("p1") + cell.held("p2") == 2


def test_a_bound_of_cpus_holds_also_above_a_lowered_limit_of_gpus() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 8, limit_cpu_milli=2000)
    cell.submit("trains", project="a", gpus=4)
    cell.run()
    cell.entitle_to("a", 2, limit=2, limit_cpu_milli=2000)
    for name in ("loads", "waits"):
        cell.submit(name, project="a", resources=Resources(cpu_milli=2000))
    cell.run()
    assert cell.task("loads").run is not None
    wait = cell.reason_of("waits")
    assert (wait.code, wait.about) == (WaitCode.AT_LIMIT, "a")
    assert wait.numbers == {
        "limit_cpu_milli": 2000,
        "used_cpu_milli": 2000,
        "asked_cpu_milli": 2000,
    }


def test_a_task_with_reserved_slots_starts_in_another_pool_only_if_it_may_there() -> None:
    cell = QuotaCell({})
    cell.pool("side", policy="quota")
    cell.admission(
        adm.EntitlementsChangedV1(
            level=adm.Level.PROJECT,
            name="a",
            revision=1,
            project=req.ProjectConfig(
                department="d", quotas={"side": req.Quota(deserved_milli=1000)}
            ),
        )
    )
    cell.entitle_to("b")
    cell.node("s1", 1, pool="side")
    cell.submit("lends", project="b", pools=("side",))
    cell.run()
    cell.submit("non_preemptible", project="a", pools=("side", "main"), preemptible=False)
    cell.cycle(after_s=1)
    reserved = cell.task("non_preemptible").reserved
    assert reserved is not None
    assert reserved.pool_name == "side"
    cell.node("n1", 1)
    cell.run()
    run = cell.task("non_preemptible").run
    assert run is not None
    assert run.pool_name == "side", "the project deserves nothing in main"


def test_a_task_beyond_its_projects_share_waits_with_the_numbers_of_the_share() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 1)
    cell.entitle_to("b", 3)
    cell.submit("non_preemptible", project="b", gpus=2, preemptible=False)
    cell.submit("runs", project="a", gpus=2)
    cell.submit("waits", project="a")
    cell.run()
    wait = cell.reason_of("waits")
    assert (wait.code, wait.about) == (WaitCode.INSUFFICIENT_FREE, "gpus")
    assert wait.numbers == {
        **{"asked_milli": 1000, "free_milli": 0, "short_milli": 1000},
        **{"fair_share_milli": 2000, "used_milli": 2000, "deserved_milli": 1000},
    }


def test_the_resource_of_which_the_share_is_reached_is_named() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 4, deserved_cpu_milli=0)
    cell.entitle_to("b", 0, deserved_cpu_milli=64_000)
    for name in ("b1x", "b2x", "b3x", "b4x"):
        resources = Resources(gpus=1, gpu_milli=1000, cpu_milli=16_000)
        cell.submit(name, project="b", resources=resources)
    cell.run()
    resources = Resources(gpus=1, gpu_milli=1000, cpu_milli=2000)
    cell.submit("waits", project="a", resources=resources)
    cell.run()
    numbers = cell.reason_of("waits").numbers
    assert {key: numbers[key] for key in numbers if "cpu" in key} == {
        **{"asked_cpu_milli": 2000, "fair_share_cpu_milli": 0},
        **{"used_cpu_milli": 0, "deserved_cpu_milli": 0},
    }
    assert "fair_share_milli" not in numbers


def test_a_reason_follows_the_share() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2)
    cell.entitle_to("b", 2)
    cell.submit("non_preemptible", project="b", gpus=2, preemptible=False)
    cell.submit("runs", project="a", gpus=2)
    cell.submit("waits", project="a")
    cell.run()
    # Both projects have the 2 GPUs that they deserve: a third one is beyond the share of `a`.
    assert cell.reason_of("waits").numbers["fair_share_milli"] == 2000
    cell.entitle_to("a", 3)
    cell.entitle_to("b", 1)
    cell.run()
    # Now it is within the share. `b` holds more than its share, but its task is not preemptible.
    numbers = cell.reason_of("waits").numbers
    assert (numbers["fair_share_milli"], numbers["others_above"]) == (3000, 0)
    cell.entitle_to("b", 2)
    cell.entitle_to("a", 2)
    decisions = cell.run()
    assert "others_above" not in cell.reason_of("waits").numbers
    assert len([each for each in decisions if isinstance(each, TaskUnschedulableV1)]) == 1


@pytest.mark.parametrize("order", ["document", "kai"])
def test_idle_gpus_do_not_go_first_to_a_queue_that_is_reclaimed_next(order: str) -> None:
    """A project of the highest rank without a share waits while others are within their share."""
    cell = QuotaCell({"n1": 2}, over_quota="weight", order=order)
    cell.entitle_to("x", 0, weight=0, rank=200)
    cell.entitle_to("y", 0)
    cell.submit("of x", project="x", tasks=4)
    cell.submit("of y", project="y", tasks=8)
    decisions = cell.run()
    assert cell.held("y") == 2
    for index in range(8):
        cell.ends("of y", index, done=True)
        decisions += cell.run()
    assert not any(isinstance(each, PreemptionRequestedV1) for each in decisions)
    assert cell.held("x") == 2


def test_a_node_that_is_cordoned_takes_the_reservation_of_a_task_that_moves_there() -> None:
    cell = QuotaCell({"n1": 2, "n2": 2})
    cell.entitle_to("a", 4)
    cell.submit("one", project="a")
    cell.run()
    cell.cordon("n1")
    cell.submit("two", project="a")
    cell.run()
    cell.uncordon("n1")
    cell.submit("both", gpus=2, project="a")
    decisions = cell.cycle()
    moved = next(each.task_id for each in decisions if isinstance(each, PreemptionRequestedV1))
    goes_to = cell.state.tasks[moved].reserved
    assert goes_to is not None
    cell.cordon(goes_to.placements[0].node)
    dropped = next(each for each in cell.cycle() if isinstance(each, ReservationDroppedV1))
    assert (dropped.task_id, dropped.code) == (moved, "node_unavailable")
    assert cell.phase(moved.partition("0000")[0]) == "stopping"
    assert cell.run_until_idle() == []
    assert_sound(cell.state)


def test_a_moved_victim_does_not_count_as_gone_in_the_numbers_of_the_others() -> None:
    cell = QuotaCell({"n1": 4, "n2": 1})
    cell.entitle_to("a", 4)
    cell.entitle_to("b", 2)
    for name, gpus in (("filler", 1), ("early", 2), ("late", 1)):
        cell.submit(name, project="b", gpus=gpus)
    cell.run()
    cell.cancel("filler")
    cell.run()
    cell.submit("wide", project="a", gpus=4)
    stops = {
        each.task_id: each.stop
        for each in cell.run()
        if isinstance(each, PreemptionRequestedV1) and isinstance(each.stop, PolicyStop)
    }
    moved, stopped = stops[cell.task("late").id], stops[cell.task("early").id]
    assert (moved.rule, stopped.rule) == ("moved", "over_fair_share")
    # `late` stays with `b`, so `b` holds 3 GPUs when it loses `early`.
    assert (stopped.numbers["used_milli"], stopped.numbers["deserved_milli"]) == (3000, 2000)


@pytest.mark.parametrize("bound", [{"limit": 2}, {"over_quota": False}])
def test_an_interactive_task_preempts_training_of_its_project_at_a_limit(bound: Any) -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2, **bound)
    cell.submit("trains", project="a", tasks=4)
    cell.run()
    cell.submit("notebook", project="a", preemptible=False)
    cell.cycle(after_s=1)
    reserved = cell.task("notebook").reserved
    assert reserved is not None
    # The project never holds more than its limit: the task waits although two GPUs are idle.
    cell.cycle(after_s=1)
    assert cell.task("notebook").run is None
    assert cell.held("a") == 2
    stops = [task.run.stop for task in cell.state.tasks.values() if task.run and task.run.stop]
    assert [stop.rule for stop in stops if isinstance(stop, PolicyStop)] == ["at_limit"]
    cell.run()
    assert cell.task("notebook").run is not None
    assert cell.held("a") == 2


def test_a_task_preempts_at_a_limit_no_more_than_the_limit_demands() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("a", 4, limit=4)
    cell.submit("small", project="a", gpus=1)
    cell.submit("large", project="a", gpus=3)
    cell.run()
    cell.submit("notebook", project="a", preemptible=False, gpus=3)
    cell.run()
    assert cell.task("small").run is not None
    assert cell.task("large").run is None
    assert cell.held("a") == 4
    cell.submit("also", project="a", preemptible=False, gpus=2)
    cell.run()
    assert cell.wait_of("also") is WaitCode.AT_LIMIT
    assert cell.task("small").run is not None


def test_a_task_at_a_limit_waits_until_a_victim_may_be_preempted() -> None:
    cell = QuotaCell({"n1": 4})
    cell.entitle_to("a", 2, limit=2)
    cell.submit("trains", project="a", gpus=2, min_runtime_s=600)
    cell.run()
    cell.submit("notebook", project="a", preemptible=False)
    cell.run()
    assert cell.wait_of("notebook") is WaitCode.VICTIMS_PROTECTED
    cell.cycle(after_s=600)
    cell.run()
    assert cell.task("notebook").run is not None


def test_a_task_preempts_nothing_at_a_limit_that_stopping_tasks_will_make_room_under() -> None:
    cell = QuotaCell({"n1": 6})
    cell.entitle_to("a", 0, limit=3)
    cell.entitle_to("c", 3)
    cell.submit("keeps", project="c", gpus=3, preemptible=False)
    cell.submit("ends", project="a", gpus=2)
    cell.submit("low", project="a", priority=60)
    cell.run()
    # With it, `a` has no share for another task.
    cell.submit("wide", project="c", gpus=6)
    cell.cancel("ends")
    cell.cycle()
    cell.submit("high", project="a", priority=40)
    cell.cycle()
    low = cell.task("low").run
    assert low is not None
    assert low.stop is None
    assert cell.wait_of("high") is WaitCode.AT_LIMIT


def test_stopping_tasks_of_other_projects_make_room_under_the_limit_of_a_department() -> None:
    cell = QuotaCell({"n1": 6})
    cell.entitle_to("d", 0, department=True, limit=3)
    cell.entitle_to("a", 0)
    cell.entitle_to("b", 0)
    cell.entitle_to("c", 3, of="e")
    cell.submit("keeps", project="c", department="e", gpus=3, preemptible=False)
    cell.submit("ends", project="b", gpus=2)
    cell.submit("low", project="a", priority=60)
    cell.run()
    # With it, `a` has no share for another task.
    cell.submit("wide", project="c", department="e", gpus=6)
    cell.cancel("ends")
    cell.cycle()
    cell.submit("high", project="a", priority=40)
    cell.cycle()
    low = cell.task("low").run
    assert low is not None
    assert low.stop is None
    assert cell.wait_of("high") is WaitCode.AT_LIMIT


def test_replicas_that_are_gone_do_not_count_as_gone_again_at_a_limit() -> None:
    cell = QuotaCell({"n1": 5})
    cell.entitle_to("d", 0, department=True, limit=5)
    cell.submit("gang", project="a", department="d", replicas=3, priority=60)
    cell.submit("keeps", project="b", department="d", gpus=2)
    cell.run()
    for replica in (1, 2):
        cell.ends("gang", replica=replica)
    cell.entitle_to("d", 0, department=True, limit=4)
    # Without the last replica of the gang, the department would hold 5 of 4.
    cell.submit("wide", project="a", department="d", gpus=3, priority=40)
    cell.cycle()
    assert cell.held("a") == 1
    gang = cell.task("gang").run
    assert gang is not None
    assert gang.stop is None
    assert cell.wait_of("wide") is WaitCode.AT_LIMIT


def test_a_gang_is_not_stopped_for_one_gpu_where_a_small_task_would_do() -> None:
    cell = QuotaCell({"n1": 8})
    cell.entitle_to("p", 4)
    cell.entitle_to("q", 0)
    cell.submit("small", project="q", tasks=2)
    cell.run()
    cell.submit("gang", project="q", gpus=3, replicas=2)
    cell.run()
    cell.submit("urgent", project="p")
    preempted = [event for event in cell.run() if isinstance(event, PreemptionRequestedV1)]
    assert [event.task_id for event in preempted] == [cell.task("small", 1).id]


def test_tasks_beyond_what_is_deserved_that_cannot_be_preempted_request_nothing() -> None:
    """Tasks that never start move no share from one project to another."""
    cell = QuotaCell({"n1": 12}, over_quota="weight")
    for project in ("a", "b", "c"):
        cell.entitle_to(project, 2)
    cell.submit("of a", project="a", tasks=22, preemptible=False)
    cell.run()
    for project in ("b", "c"):
        cell.submit(project, project=project, tasks=12)
        cell.run()
    assert [cell.held(project) for project in ("a", "b", "c")] == [2, 5, 5]


def test_tasks_for_cordoned_nodes_request_nothing() -> None:
    cell = QuotaCell({"n1": 8}, over_quota="weight")
    cell.node("n2", gpus=8, node_type="other")
    for project in ("a", "b", "c"):
        cell.entitle_to(project, 0)
    cell.cordon("n2")
    cell.submit("of a", project="a", tasks=8, node_types=("other",))
    for project in ("b", "c"):
        cell.submit(project, project=project, tasks=8)
        cell.run()
    assert cell.wait_of("of a") is WaitCode.NODES_UNAVAILABLE
    assert [cell.held(project) for project in ("b", "c")] == [4, 4]
    cell.uncordon("n2")
    cell.run()
    assert cell.held("a") >= 5


def test_a_task_beyond_the_limit_of_its_job_does_not_represent_its_project() -> None:
    """Else the project would come last, as one that exceeds its share."""
    cell = QuotaCell({"n1": 3, "n2": 1}, over_quota="weight")
    for project, deserved, weight in (("a", 2, 0), ("b", 0, 1), ("c", 1, 0)):
        cell.entitle_to(project, deserved, weight=weight)
    cell.submit("fixed", project="c", preemptible=False, avoid_nodes=("n2",))
    cell.run()
    cell.submit("borrows", project="b", avoid_nodes=("n2",))
    cell.submit("never", project="a", gpus=3, max_slots_milli=1000, priority=10)
    cell.submit("waits", project="a", gpus=2)
    assert started(cell.cycle()) == ["waits"]
