"""Tasks of a recorded log that still ran at its end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.simulated import job, node, ran
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.writer import SqliteWriter
from yardmaster_schemas.events.decisions import PreemptionRequestedV1, TaskEndedV1
from yardmaster_schemas.events.requests import PolicyRef, ProjectConfig
from yardmaster_schemas.run_as import RunAs
from yardmaster_simulation.driver import CELL
from yardmaster_simulation.log_sink import TOPICS
from yardmaster_simulation.recorded import read_log
from yardmaster_simulation.workload import DEFAULT, Listed, SimJob, Workload, pool
from yardmaster_simulation.world import START_MS, World


class TruncatedSink:
    """A log that takes nothing after `after_s` seconds."""

    def __init__(self, sink: SqliteWriter, after_s: int) -> None:
        self._sink = sink
        self._end_ms = START_MS + 1000 * after_s

    def append(self, partition: Partition, records: Sequence[Record], now_ms: int) -> int:
        return self._sink.append(partition, records, now_ms) if now_ms <= self._end_ms else 0


def at_once(submit_s: int) -> SimJob:
    """A job that ends as it starts, so that a cycle learns at once of all that started with it."""
    return job(submit_s, 0, gpus=0)


def runs_of(path: Path) -> list[tuple[int | None, ...]]:
    """How long the tasks of each job run, jobs like `at_once` apart."""
    return [each.runs_ms for each in read_log(path, CELL).jobs if each.spec.resources.gpus]


def test_a_task_that_still_ran_runs_for_as_long_as_it_had_worked(tmp_path: Path) -> None:
    path = tmp_path / "main.db"
    first = [job(0, 100), job(0, None, gpus=2), at_once(0)]
    then = [job(30, None, gpus=2), job(30, None, None, gpus=3), at_once(30)]
    ran([*first, *then], path=path)  # after 100 s nothing happens any more
    assert runs_of(path) == [(100_000,), (100_000,), (70_000,), (70_000, 0)]


def test_a_job_keeps_its_user_which_decides_under_starved_first(tmp_path: Path) -> None:
    path = tmp_path / "main.db"
    bobs = [replace(job(0, 900), user="bob") for _ in range(8)]
    ran([*bobs, replace(job(60, 60, 60), user="alice"), at_once(120)], path=path)
    recorded = read_log(path, CELL)
    assert [each.user for each in recorded.jobs] == [*["bob"] * 8, "alice", "simulation"]
    run = ran(recorded.jobs, policy="starved_first")
    rules = [event.stop.rule for _, event in run.of(PreemptionRequestedV1)]
    assert rules == ["above_equal_part"] * 2


def test_its_estimate_counts_if_that_is_more(tmp_path: Path) -> None:
    path = tmp_path / "main.db"
    estimated = [job(0, None, runtime_estimate_s=seconds) for seconds in (60, 900)]
    ran([job(0, 100), *estimated, at_once(0)], path=path)
    assert runs_of(path) == [(100_000,), (100_000,), (900_000,)]


def test_a_stopping_task_worked_until_the_stop_request(tmp_path: Path) -> None:
    path = tmp_path / "main.db"
    low, high = (job(at, 100, gpus=8, priority=of) for at, of in ((0, 50), (40, 10)))
    jobs = [low, job(0, 60, priority=10), at_once(0), high]
    workload = Workload(name="test", nodes=(node("node-0"), node("node-1", 1)), jobs=jobs)
    sink = SqliteWriter(path, TOPICS)
    policy = PolicyRef(name="priority", options={"preemption": True})
    World(
        workload, {DEFAULT: replace(pool(), policy=policy)}, TruncatedSink(sink, 60), Listed(jobs)
    ).run()
    sink.close()
    assert runs_of(path) == [(40_000,), (60_000,), (0,)]


def test_a_workload_leaves_out_the_user_that_a_job_names(tmp_path: Path) -> None:
    path, user = tmp_path / "main.db", RunAs(uid=1001, gid=100)
    allowed = ProjectConfig(department=DEFAULT, users=(str(user),))
    ran([job(0, 100, run_as=user)], path=path, projects={DEFAULT: allowed})
    (recorded,) = read_log(path, CELL).jobs
    assert recorded.spec.run_as is None, "a simulated project allows no users by default"
    assert len(ran([recorded]).of(TaskEndedV1)) == 1
