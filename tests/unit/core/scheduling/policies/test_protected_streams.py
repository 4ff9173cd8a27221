"""`quota` and `starved_first`: tasks with a minimum run time, one after another, do not keep a task
pending that waits for their end.
"""

from typing import Any

import pytest

from tests.histories.properties import CheckedPlayer
from tests.histories.static_problems import StaticCell
from tests.unit.core.scheduling.policies.test_quota import QuotaCell
from tests.unit.core.scheduling.reading import started, stopped
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_schemas.events.requests import Quota
from yardmaster_schemas.reasons import WaitCode
from yardmaster_schemas.resources import Resources

MIN_RUNTIME_S = 60


def cell_of(policy: str, **of_queue: Any) -> StaticCell:
    cell = StaticCell(policy=policy)
    cell.node("n1", gpus=4)
    if policy == "quota":
        for project, deserved, more in (("p", 4000, {}), ("q", 0, of_queue)):
            quotas = {"main": Quota(deserved_milli=deserved)}
            cell.entitle(project, quotas=quotas, **more)
    return cell


def play(cell: StaticCell, gang: int, **stream: Any) -> int:
    """Submit one task of a stream every 20 s, each of which runs for 80 s, and a gang; return after
    how many seconds the gang runs.
    """
    begun: dict[str, int] = {}
    for number in range(60):
        name = f"s{number:03d}"
        cell.submit(name, project="q", user="bob", gpus=1, **stream)
        if number == 4:
            cell.submit("gang", project="p", user="alice", gpus=gang)
        for other in begun:
            task = cell.state.tasks.get(f"{other.ljust(12, '0')}.0")
            run = None if task is None else task.run
            if run is not None and run.running_ms and cell.now_ms - run.running_ms >= 80_000:
                cell.ends(other, done=True)
        begun[name] = number
        cell.step(20)
        if number >= 4 and cell.phase("gang") == "running":
            return (number - 4) * 20
    raise AssertionError("the gang does not run")


@pytest.mark.parametrize(("policy", "gang"), [("quota", 4), ("starved_first", 2)])
def test_a_stream_of_tasks_with_a_minimum_run_time_does_not_pass_a_gang(
    policy: str, gang: int
) -> None:
    assert play(cell_of(policy), gang, min_runtime_s=MIN_RUNTIME_S) <= 2 * MIN_RUNTIME_S


def test_nor_does_a_stream_of_a_project_with_a_minimum_run_time() -> None:
    cell = cell_of("quota", reclaim_min_runtime_s=MIN_RUNTIME_S)
    assert play(cell, 4) <= 2 * MIN_RUNTIME_S


def test_a_task_within_what_its_project_deserves_passes() -> None:
    cell = cell_of("quota")
    cell.entitle("r", quotas={"main": Quota(deserved_milli=1000)})
    cell.submit("q", project="q", gpus=1, tasks=3, min_runtime_s=600)
    cell.step()
    cell.submit("gang", project="p", gpus=3)
    cell.submit("beyond", project="q", gpus=1, min_runtime_s=600)
    cell.submit("within", project="r", gpus=1, min_runtime_s=600)
    cell.step()
    cell.step()
    assert cell.wait_code("gang") == "victims_protected"
    assert cell.wait_code("beyond") == "behind_task"
    assert cell.phase("within") == "running"


def test_a_task_that_would_not_fit_without_protected_tasks_either_keeps_none_behind_it() -> None:
    cell = cell_of("quota")
    cell.entitle("r", quotas={"main": Quota(deserved_milli=1000)})
    cell.submit("fixed", project="r", gpus=1, preemptible=False)
    cell.submit("low", project="p", gpus=2, priority=60, min_runtime_s=600)
    cell.step()
    cell.submit("gang", project="p", gpus=2, replicas=2, priority=10)
    cell.step()
    assert cell.wait_code("gang") == "insufficient_free"
    cell.submit("beyond", project="q", gpus=1, min_runtime_s=600)
    cell.step()
    assert cell.task("beyond").run is not None


def test_a_task_that_waits_for_protected_victims_starts_before_those_that_wait_behind_it() -> None:
    player = CheckedPlayer()
    cell = player.cell
    cell.pool("main", policy="quota")
    cell.entitle("p", quotas={"main": Quota(deserved_milli=2000, deserved_cpu_milli=2000)})
    cell.entitle("q", quotas={"main": Quota(deserved_milli=0)})
    player.join(name="n1", gpus=2)
    player.submit(name="busy", project="q", spec={"tasks": 2, "min_runtime_s": 600})
    player.start(number=None)
    spec = {"gpus": 2, "min_runtime_s": 600}
    player.submit(name="ahead", project="p", spec=spec)
    wide = Resources(gpus=2, gpu_milli=1000, cpu_milli=3000)
    first = {"resources": wide, "min_runtime_s": 600, "priority": 1}
    player.submit(name="first", project="p", spec=first)
    assert cell.wait_code("first") == WaitCode.BEHIND_TASK
    player.finish(number=3, after_s=0)
    assert started(player.cycle()) == ["ahead"]


def test_the_first_one_that_waits_for_protected_victims_waits_behind_one_that_is_guaranteed() -> (
    None
):
    """Both wait for the end of minimum run times, and the first one would be protected too."""
    cell = cell_of("quota")
    cell.submit("busy", project="q", gpus=1, tasks=4, priority=60, min_runtime_s=600)
    cell.step()
    cell.submit("first", project="q", gpus=1, priority=1, min_runtime_s=600)
    cell.step()
    assert cell.wait_code("first") == WaitCode.VICTIMS_PROTECTED
    cell.submit("guaranteed", project="p", gpus=4)
    cell.step()
    cell.ends("busy", 0, done=True)
    cell.step()
    assert cell.wait_code("guaranteed") == WaitCode.VICTIMS_PROTECTED
    assert cell.wait_code("first") == WaitCode.BEHIND_TASK


def test_under_starved_first_it_waits_behind_one_within_an_equal_part() -> None:
    cell = cell_of("starved_first")
    cell.submit("busy", user="cy", gpus=1, tasks=4, min_runtime_s=600)
    cell.step()
    cell.submit("first", user="bob", gpus=2, min_runtime_s=600)
    cell.step()
    assert cell.wait_code("first") == WaitCode.VICTIMS_PROTECTED
    cell.submit("within", user="alice", gpus=1)
    cell.step()
    assert cell.wait_code("within") == WaitCode.VICTIMS_PROTECTED
    for index in (0, 1):
        cell.ends("busy", index, done=True)
    cell.step()
    assert cell.task("within").run is not None


def test_a_later_task_of_a_project_does_not_pass_one_behind_a_task_that_preempts_now() -> None:
    """In the cycle in which the victims of `ahead` are no longer protected, `kept` waits behind it
    only until it has preempted them; `later` cannot be preempted, so it waits behind none.
    """
    cell = QuotaCell({"n0": 2, "n1": 2, "n2": 1}, order="kai", actions=["allocate", "reclaim"])
    for project, deserved in (("s", 2), ("q", 2), ("v", 0)):
        cell.entitle_to(project, deserved)
    cell.submit("held", project="q", gpus=2, min_runtime_s=600)
    cell.run()
    cell.submit("victim", project="v", gpus=2, min_runtime_s=MIN_RUNTIME_S)
    cell.run()
    cell.submit("ahead", project="s", gpus=2)
    cell.run()
    cell.submit("kept", project="q", gpus=1, priority=40, min_runtime_s=MIN_RUNTIME_S)
    cell.run()
    assert cell.wait_code("ahead") == WaitCode.VICTIMS_PROTECTED
    assert cell.wait_code("kept") == WaitCode.BEHIND_TASK
    cell.submit("later", project="q", gpus=1, priority=60, preemptible=False)
    decided = cell.cycle(after_s=MIN_RUNTIME_S)
    assert stopped(decided) == ["victim"]
    assert started(decided) == ["kept"]
    assert_sound(cell.state)


def test_a_task_does_not_wait_behind_one_of_its_project_that_it_would_preempt_at_once() -> None:
    """Else `low` would start once it fits, and stop in the next cycle."""
    cell = QuotaCell({"n0": 3, "n1": 3})
    for project, deserved in (("p", 2), ("q", 3), ("v", 0)):
        cell.entitle_to(project, deserved)
    cell.submit("busy", project="q", gpus=3, preemptible=False)
    cell.submit("victim", project="v", gpus=3, min_runtime_s=600)
    cell.run()
    cell.submit("low", project="p", gpus=3, priority=60)
    cell.run()
    cell.submit("high", project="p", gpus=3, priority=40, min_runtime_s=MIN_RUNTIME_S)
    cell.run()
    assert cell.wait_code("low") == cell.wait_code("high") == WaitCode.VICTIMS_PROTECTED
    cell.ends("busy")
    decided = cell.run()
    assert (started(decided), stopped(decided)) == (["high"], [])
    assert_sound(cell.state)
