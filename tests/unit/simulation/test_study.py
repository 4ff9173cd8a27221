"""Runs in processes of their own: what is said when one fails, what is left of the others."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulated import job, node
from yardmaster_eventlog.errors import NotOurLog
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.sources import Philly, Waves
from yardmaster_simulation.study import Case, Study
from yardmaster_simulation.workload import Arrivals, Listed, Workload


@dataclass(frozen=True)
class Long:
    """Many seconds of work in many short cycles; no test waits for the end of it."""

    def workload(self, seed: int) -> tuple[Workload, Arrivals]:
        jobs = [job(10 * number, 5) for number in range(10_000)]
        return Workload(name="long", nodes=(node("node-0"),), jobs=jobs), Listed(jobs)


def case(name: str, seed: int = 0) -> Case:
    return Case(name=name, labels={"run": name}, seed=seed)


def test_a_run_that_fails_in_another_process_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.db").write_text("mine")
    short = Waves(scale=1, preemptible=False)
    with pytest.raises(NotOurLog, match="a simulated log needs a path of its own"):
        Study(source=short, cases=(case("a"), case("b")), out=tmp_path, workers=2).run()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine", "mine"]


def test_a_workload_that_another_process_cannot_read_is_named(tmp_path: Path) -> None:
    nowhere = Philly(tmp_path / "jobs.csv", None)
    cases = (case("a", seed=1), case("b", seed=2))
    with pytest.raises(BadWorkload, match=r"jobs\.csv: "):
        Study(source=nowhere, cases=cases, workers=2).run()


def test_a_run_that_fails_stops_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("mine")
    with pytest.raises(NotOurLog):
        Study(source=Long(), cases=(case("a"), case("b")), out=tmp_path, workers=2).run()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_an_interruption_stops_what_runs_and_what_waits(tmp_path: Path) -> None:
    cases = [case(f"run-{number}") for number in range(5)]

    def interrupt(part: float) -> None:
        if part > 1 / 6:  # the workload is prepared, and a run has begun
            raise KeyboardInterrupt

    study = Study(source=Long(), cases=cases, out=tmp_path, workers=2, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert list(tmp_path.iterdir()) == []
