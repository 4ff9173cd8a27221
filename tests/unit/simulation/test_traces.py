"""Trace files: what they may look like, and what is said of those that cannot be read."""

import gzip
from pathlib import Path

import pytest

from yardmaster.simulation.errors import BadWorkload
from yardmaster.simulation.traces import Columns, csv_jobs, openb, philly, read_jobs, read_nodes

TRACES = Path(__file__).parents[2] / "data" / "traces"
COLUMNS = Columns(names={"submit": "at", "run": "took", "gpus": "gpus"})


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_jobs_come_in_the_order_of_their_submission_from_the_first_on(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,took,gpus", "130,60,1", "100,90.5,2", "130,1,3")
    jobs = read_jobs(path, COLUMNS)
    assert [(job.submit_ms, job.runs_ms, job.spec.resources.gpus) for job in jobs] == [
        (0, (90_500,), 2),
        (30_000, (60_000,), 1),
        (30_000, (1_000,), 3),
    ]


def test_times_may_be_dates_and_files_compressed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("at,took,gpus\n2026-01-01 00:00:00,60,1\n2026-01-01T01:00:00+01:00,60,1\n")
        file.write("2026-01-01T00:00:10Z,60,1\n")
    assert [job.submit_ms for job in read_jobs(path, COLUMNS)] == [0, 0, 10_000]


def test_more_gpus_than_a_node_has_are_a_gang_of_equal_replicas(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,took,gpus", "0,1,8", "1,1,12", "2,1,32", "3,1,11")
    jobs = read_jobs(path, COLUMNS)
    assert [(job.spec.replicas_min, job.spec.resources.gpus) for job in jobs] == [
        (1, 8),
        (2, 6),
        (4, 8),
        (11, 1),
    ]


def test_only_rows_with_a_value_and_within_a_time_are_kept(tmp_path: Path) -> None:
    rows = ("at,took,team", "10,1,a", "20,2,b", "30,3,a", "40,4,a")
    path = written(tmp_path / "jobs.csv", *rows)
    columns = Columns(
        names={"submit": "at", "run": "took", "project": "team"},
        where={"team": "a"},
        since="10",
        until="30",
    )
    assert [job.runs_ms for job in read_jobs(path, columns)] == [(1_000,), (3_000,)]


def test_every_project_that_is_named_is_there(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,took,team", "10,1,Vision", "20,2,speech")
    names = {"submit": "at", "run": "took", "project": "team"}
    workload = csv_jobs(path, Columns(names=names))
    assert sorted(workload.projects) == ["speech", "vision"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("at,took",), "no column gpus; it has at, took"),
        (("at,took,gpus",), "no job in it"),
        (("at,took,gpus", "x,1,1"), "line 2"),
        (("at,took,gpus", "1,one,1"), "line 2"),
        (("at,took,gpus", "1,-5,1"), "runs for -5000 ms"),
        (("at,took,gpus", "1,5,1", "2,5"), "line 3 is cut short"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, lines: tuple[str, ...], found: str
) -> None:
    path = written(tmp_path / "jobs.csv", *lines)
    with pytest.raises(BadWorkload, match=found):
        read_jobs(path, COLUMNS)


def test_a_damaged_file_or_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(b"at,took,gpus\n" + b"1,1,1\n" * 500)[:-20])
    with pytest.raises(BadWorkload):
        read_jobs(path, COLUMNS)
    with pytest.raises(BadWorkload, match="no field speed"):
        read_jobs(path, Columns(names={"submit": "at", "speed": "took"}))
    with pytest.raises(BadWorkload, match="no column for submit"):
        read_jobs(path, Columns(names={"run": "took"}))


def test_philly_has_its_jobs() -> None:
    workload = philly(TRACES / "philly_jobs.csv.gz")
    assert len(workload.jobs) == 82_247
    assert len(workload.nodes) == 309
    assert len(workload.projects) == 15


def test_openb_has_its_nodes_and_pods_until_the_gpus_are_130_percent() -> None:
    files = (TRACES / f"openb_{name}.csv.gz" for name in ("pod_list_default", "node_list_all_node"))
    pods, nodes = files
    workload = openb(pods, nodes, seed=1)
    assert len(read_nodes(nodes)) == 1_523
    assert len(workload.nodes) == 1_213
    assert sum(node.gpus for node in workload.nodes) == 6_212
    milli = [job.spec.resources.gpu_total_milli for job in workload.jobs]
    assert sum(milli) >= 1.3 * 6_212_000 > sum(milli[:-1])
    assert [job.spec for job in openb(pods, nodes, seed=2).jobs] != [
        job.spec for job in workload.jobs
    ]
