"""The order in which what waits for a pool is considered, from its tasks as they are shown."""

from typing import Any

from yardmaster_cli.listing.queue_order import OF_TASKS, by_priority, least_demand_first


def task(job: str, minute: int, **more: Any) -> dict[str, Any]:
    """A task of one GPU that was submitted at that minute."""
    plain = {"index": 0, "project": "p", "priority": 42, "gpu_milli": 1000, "wait": None}
    return {**plain, "job_id": job, "submitted_at": f"2026-01-01T00:{minute:02}:00Z", **more}


def names(tasks: list[dict[str, Any]], among: str = "job") -> list[str]:
    return [t["job_id"] for t in sorted(tasks, key=least_demand_first(tasks, among))]


def test_under_priority_the_best_comes_first_then_the_earliest() -> None:
    tasks = [task("late", 3, priority=1), task("b", 2), task("a", 2), task("early", 1)]
    assert [t["job_id"] for t in sorted(tasks, key=by_priority)] == ["late", "early", "a", "b"]


def test_under_strict_policies_the_earliest_comes_first_in_its_line() -> None:
    tasks = [
        task("young", 3, preemptible=False, priority=9),
        task("old", 1, preemptible=True, priority=1),
        task("mid", 2, preemptible=False, priority=50),
    ]
    found = {name: [t["job_id"] for t in sorted(tasks, key=OF_TASKS[name])] for name in OF_TASKS}
    assert found["fifo"] == ["old", "mid", "young"]
    assert found["fitgpp"] == found["lrtp"] == found["rand"] == ["mid", "young", "old"]


def test_under_fair_share_who_asks_for_least_comes_first_then_the_oldest() -> None:
    tasks = [task("wide", 1, gpu_milli=4000), task("young", 3), task("old", 2)]
    assert names(tasks) == ["old", "young", "wide"]


def test_held_slots_of_a_claimant_count_and_tasks_that_may_not_start_do_not() -> None:
    tasks = [
        *(task("array", 1, index=index) for index in range(3)),
        task("held", 1, index=3, wait={"code": "at_max_concurrent"}),
        task("held", 1, index=4, wait={"code": "paused"}),
        task("held", 1, index=5),
        task("pair", 2, gpu_milli=2000),
    ]
    assert names(tasks)[-4:] == ["pair", "array", "array", "array"]
    assert names(tasks)[:3] == ["held", "held", "held"]


def test_projects_can_be_the_claimants() -> None:
    tasks = [task("a", 1), task("b", 2), task("lone", 3, project="q")]
    assert names(tasks, "project") == ["lone", "a", "b"]


def test_tasks_without_gpus_have_no_shares_and_are_first_come_first_served() -> None:
    tasks = [task("gpu", 1), task("late", 5, gpu_milli=0), task("soon", 2, gpu_milli=0)]
    assert names(tasks) == ["soon", "late", "gpu"]
