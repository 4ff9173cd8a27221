"""`yard set priority|weight|max-slots` on running jobs: what changes and what stays."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.yard_cli import Dev, running_dev, until

pytestmark = pytest.mark.xdist_group("cli")

ACTIVE = ("starting", "running", "stopping")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("changes"), slots=4) as dev:
        yield dev


@pytest.fixture(autouse=True)
def _empty(dev: Dev) -> Iterator[None]:
    yield
    dev.yard("cancel", "-A", "--phase", "active", "--now", "--yes", code=None)
    until(lambda: not dev.yard("ls", "-A", "--phase", "active", "-o", "name").out, "it is empty")


def listed(dev: Dev, job: str) -> list[dict[str, Any]]:
    """The tasks of a job."""
    items = dev.yard("ls", "-A", "-o", "json").json["items"]
    return [task for task in items if task["job_id"] == job]


def gpus_in(tasks: list[dict[str, Any]], *phases: str) -> int:
    """The number of GPUs of the tasks in these phases."""
    return sum(int(task["gpu_milli"]) for task in tasks if task["phase"] in phases) // 1000


def holds(dev: Dev, job: str) -> int:
    """The number of GPUs that the tasks of a job hold."""
    return gpus_in(listed(dev, job), *ACTIVE)


def stops(dev: Dev, job: str) -> list[dict[str, Any]]:
    """The stops of all attempts of a job's tasks."""
    attempts = [
        attempt
        for task in listed(dev, job)
        for attempt in dev.yard("show", task["task_id"], "-o", "json").json["attempts"]
    ]
    return [attempt["stop"] for attempt in attempts if attempt["stop"]]


def submit(dev: Dev, *flags: str) -> str:
    return dev.submit("--grace", "5s", *flags, "--", "sleep", "600")


def until_runs(dev: Dev, job: str, gpus: int) -> None:
    def there() -> bool:
        tasks = listed(dev, job)
        return gpus_in(tasks, *ACTIVE) == gpus == gpus_in(tasks, "running")

    until(there, f"{job} runs on {gpus} GPUs")


def until_waits(dev: Dev, job: str, code: str) -> None:
    until(
        lambda: code in {(task["wait"] or {}).get("code") for task in listed(dev, job)},
        f"{job} waits: {code}",
    )


def a_cycle_passes(dev: Dev) -> None:
    """Run another job to its end, so that a cycle has processed the change."""
    dev.yard("submit", "--gpus", "0", "--wait", "--timeout", "45s", "--", "true")


def test_a_running_task_with_a_lowered_priority_is_preempted_for_a_pending_task(dev: Dev) -> None:
    runs = submit(dev, "--gpus", "4", "--priority", "40")
    until_runs(dev, runs, 4)
    waits = submit(dev, "--gpus", "4", "--priority", "50")
    until_waits(dev, waits, "insufficient_free")
    dev.yard("set", "priority", runs, "60")
    until_runs(dev, waits, 4)
    (stop,) = stops(dev, runs)
    assert (stop["code"], stop["rule"], stop["for_task"]) == (
        *("priority", "better_priority"),
        f"{waits}.0",
    )
    assert (stop["numbers"]["priority"], stop["numbers"]["for_priority"]) == (60, 50)
    assert stops(dev, waits) == []


def test_a_pending_task_with_a_raised_priority_preempts_a_running_task(dev: Dev) -> None:
    runs = submit(dev, "--gpus", "4", "--priority", "40")
    until_runs(dev, runs, 4)
    waits = submit(dev, "--gpus", "4", "--priority", "50")
    until_waits(dev, waits, "insufficient_free")
    dev.yard("set", "priority", waits, "30")
    until_runs(dev, waits, 4)
    assert [stop["for_task"] for stop in stops(dev, runs)] == [f"{waits}.0"]


def test_a_raised_priority_protects_a_running_task(dev: Dev) -> None:
    runs = submit(dev, "--gpus", "4", "--priority", "60")
    until_runs(dev, runs, 4)
    dev.yard("set", "priority", runs, "40")
    waits = submit(dev, "--gpus", "4", "--priority", "50")
    until_waits(dev, waits, "insufficient_free")
    a_cycle_passes(dev)
    assert stops(dev, runs) == []
    assert holds(dev, runs) == 4


def test_no_change_stops_a_running_task_that_is_not_preemptible(dev: Dev) -> None:
    notebook = submit(dev, "--gpus", "4", "--priority", "40", "--kind", "interactive")
    until_runs(dev, notebook, 4)
    waits = submit(dev, "--gpus", "4", "--priority", "50")
    until_waits(dev, waits, "insufficient_free")
    for key, value in (("priority", "99"), ("weight", "7"), ("max-slots", "1")):
        dev.yard("set", key, notebook, value)
    a_cycle_passes(dev)
    shown = dev.task(f"{notebook}.0")
    assert (shown["priority"], shown["weight"], shown["attempt"]) == (99, 7, 1)
    assert holds(dev, notebook) == 4
    dev.yard("pools", "set", "default", "policy=fair_share")
    try:
        dev.yard("set", "weight", waits, "90")
        a_cycle_passes(dev)
        assert holds(dev, notebook) == 4
        assert stops(dev, notebook) == []
        assert dev.task(f"{waits}.0")["phase"] == "pending"
    finally:
        dev.yard("pools", "set", "default", "policy=priority")


def test_a_lowered_max_slots_stops_no_task_under_priority_and_prevents_starts(dev: Dev) -> None:
    job = submit(dev, "--gpus", "1", "--tasks", "6")
    until_runs(dev, job, 4)
    dev.yard("set", "max-slots", job, "2")
    dev.yard("cancel", f"{job}.0")
    until_runs(dev, job, 3)
    until_waits(dev, job, "at_max_slots")
    assert stops(dev, job)[1:] == [], "only the cancelled task was stopped"
    dev.yard("set", "max-slots", job, "none")
    until_runs(dev, job, 4)


def test_weights_and_max_slots_change_the_running_tasks_under_fair_share(dev: Dev) -> None:
    dev.yard("pools", "set", "default", "policy=fair_share")
    try:
        first = submit(dev, "--gpus", "1", "--tasks", "4")
        until_runs(dev, first, 4)
        second = submit(dev, "--gpus", "1", "--tasks", "4")
        until_runs(dev, second, 2)
        assert holds(dev, first) == 2
        assert {(stop["code"], stop["for_task"]) for stop in stops(dev, first)} == {
            ("fair_share", f"{second}.{index}") for index in range(2)
        }
        dev.yard("set", "weight", first, "3")
        until_runs(dev, first, 3)
        assert holds(dev, second) == 1
        # The other job gets the GPUs that max-slots frees until the limit is removed.
        dev.yard("set", "max-slots", first, "1")
        until_runs(dev, second, 3)
        assert holds(dev, first) == 1
        dev.yard("set", "max-slots", first, "none")
        until_runs(dev, first, 3)
        assert holds(dev, second) == 1
    finally:
        dev.yard("pools", "set", "default", "policy=priority")
