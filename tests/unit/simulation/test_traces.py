"""Trace files: the accepted formats, and the errors for unreadable files."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from yardmaster_schemas.resources import Resources
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.traces import (
    Columns,
    Equal,
    csv_jobs,
    openb,
    philly,
    read_jobs,
    read_nodes,
)

TRACES = Path(__file__).parents[2] / "data" / "traces"
COLUMNS = Columns(names={"submit": "at", "run": "took", "gpus": "gpus"})


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_jobs_are_sorted_by_submission_and_times_count_from_the_first(tmp_path: Path) -> None:
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


def test_rows_are_filtered_by_value_and_time(tmp_path: Path) -> None:
    rows = ("at,took,team", "10,1,a", "20,2,b", "30,3,a", "40,4,a")
    path = written(tmp_path / "jobs.csv", *rows)
    columns = Columns(
        names={"submit": "at", "run": "took", "project": "team"},
        where={"team": "a"},
        since="10",
        until="30",
    )
    assert [job.runs_ms for job in read_jobs(path, columns)] == [(1_000,), (3_000,)]


def test_every_named_project_is_configured(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,took,team", "10,1,Vision", "20,2,speech")
    names = {"submit": "at", "run": "took", "project": "team"}
    workload = csv_jobs(path, Columns(names=names))
    assert sorted(workload.projects) == ["speech", "vision"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("at,took",), "no column gpus; it has at, took"),
        (("at,took,gpus",), "the file has no job"),
        (("at,took,gpus", "x,1,1"), "line 2"),
        (("at,took,gpus", "1,one,1"), "line 2"),
        (("at,took,gpus", "1,-5,1"), "runs for -5000 ms"),
        (("at,took,gpus", "1,5,1", "2,5"), "line 3 is cut short"),
        (("at,took,gpus", "nan,1,1"), "line 2, column at: 'nan'; wanted: seconds, or a date"),
        (("at,took,gpus", "1e99999999,1,1"), "line 2, column at"),
        (("at,took,gpus", "1,one,1"), "line 2, column took: 'one'; wanted: seconds"),
        (("at,took,gpus", "1,,1"), "line 2, column took: ''; wanted: seconds"),
        (("at,took,gpus", "1,inf,1"), "line 2, column took: 'inf'; wanted: seconds"),
        (("at,took,gpus", "1,1e10,1"), "line 2, column took: '1e10'; runtime_estimate_s: "),
        (("at,took,gpus", "1,1,-4"), "line 2, column gpus: '-4'; gpus: Input should be greater"),
        (
            ("at,took,gpus", "1,1,0.5"),
            "'0.5'; wanted: a whole number of GPUs .*column for gpu_milli",
        ),
        (("at,took,gpus", "1,1,40000"), "line 2, column gpus: '40000'; replicas_min: "),
        (("at,took,gpus", "1,1,1000000007"), "line 2, column gpus: '1000000007'; replicas_min: "),
        (("at,took,gpus", "0,1,1", "4e9,1,1"), "column at: from 0 to 4E\\+9 s are more than 100"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, lines: tuple[str, ...], found: str
) -> None:
    path = written(tmp_path / "jobs.csv", *lines)
    with pytest.raises(BadWorkload, match=found):
        read_jobs(path, COLUMNS)


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("project", "Team A", "column x: 'Team A'; wanted: a name of letters"),
        ("gpu_milli", "half", "column x: 'half'; wanted: a whole number of thousandths of a GPU"),
        ("gpu_milli", "0", "column x: '0'; resources: .*both zero or both positive"),
        ("gpu_milli", "1500", "column x: '1500'; gpu_milli: "),
        ("cpu", "-1", "column x: '-1'; cpu_milli: "),
        ("memory_gib", "much", "column x: 'much'; wanted: a number of GiB"),
        ("memory_mib", "-1", "column x: '-1'; memory_mib: "),
        ("end", "later", "column x: 'later'; wanted: seconds, or a date"),
        ("preemptible", "perhaps", "column x: 'perhaps'; wanted: true or false"),
    ],
)
def test_an_invalid_request_is_refused_with_its_column(
    tmp_path: Path, field: str, value: str, found: str
) -> None:
    path = written(tmp_path / "jobs.csv", "at,gpus,x", f"0,1,{value}")
    columns = Columns(names={"submit": "at", "gpus": "gpus", field: "x"})
    with pytest.raises(BadWorkload, match=f"jobs.csv: line 2, {found}"):
        read_jobs(path, columns)


def test_an_empty_field_has_the_default_value(tmp_path: Path) -> None:
    fields = ("project", "gpus", "gpu_milli", "cpu", "memory_gib", "preemptible")
    path = written(tmp_path / "jobs.csv", f"submit,{','.join(fields)}", "0,,1,,,,", "0,,,,,,no")
    one, other = read_jobs(path, Columns(names={name: name for name in ("submit", *fields)}))
    assert (one.project, one.spec.preemptible) == ("default", True)
    assert one.spec.resources == Resources(gpus=1, gpu_milli=1000)
    assert (other.spec.resources, other.spec.preemptible) == (Resources(), False)


def test_a_jobs_resources_are_divided_among_its_replicas(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,gpus,cpu,gib", "0,8,16,32")
    names = {"submit": "at", "gpus": "gpus", "cpu": "cpu", "memory_gib": "gib"}
    (job,) = csv_jobs(path, Columns(names=names), equal=Equal(2, 4)).jobs
    assert (job.spec.replicas_min, job.spec.replicas_max) == (2, 2)
    assert job.spec.resources == Resources(
        gpus=4, gpu_milli=1000, cpu_milli=8_000, memory_mib=16 * 1024
    )


def test_an_invalid_time_is_named_in_the_error(tmp_path: Path) -> None:
    path = written(tmp_path / "jobs.csv", "at,took,gpus", "0,1,1")
    with pytest.raises(BadWorkload, match="'soon'; wanted: seconds, or a date and time"):
        read_jobs(path, replace(COLUMNS, since="soon"))


def test_a_damaged_file_or_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    whole = gzip.compress(b"at,took,gpus\n" + b"1,1,1\n" * 500)
    for damaged in (whole[:-20], whole[:10] + b"\xff" * 20):
        path.write_bytes(damaged)
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


NODES = ("sn,cpu_milli,memory_mib,gpu,model", "n1,64000,262144,2,T4")
PODS = ("num_gpu,gpu_milli,cpu_milli,memory_mib", "1,500,4000,1024", "0,0,1000,1024")


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        (("0,0,1000,1024",), "pods.csv: no pod requests GPUs"),
        ((), "pods.csv: no pod requests GPUs"),
        (
            ("x,0,1000,1024",),
            "pods.csv: line 2, column num_gpu: 'x'; wanted: a whole number of GPUs",
        ),
        (("1,0,1000,1024",), "pods.csv: line 2, column gpu_milli: '0'; resources: "),
        (("1,2000,1000,1024",), "pods.csv: line 2, column gpu_milli: '2000'; gpu_milli: "),
        (("-1,1000,1000,1024",), "pods.csv: line 2, column num_gpu: '-1'; gpus: "),
        (("1,1000,inf,1024",), "pods.csv: line 2, column cpu_milli: 'inf'; "),
    ],
)
def test_invalid_pods_are_refused(tmp_path: Path, pods: tuple[str, ...], found: str) -> None:
    files = written(tmp_path / "pods.csv", PODS[0], *pods), written(tmp_path / "nodes.csv", *NODES)
    with pytest.raises(BadWorkload, match=found):
        openb(*files, seed=0)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        (("n2,1000,1024,0,",), "nodes.csv: no node has GPUs"),
        (
            ("n2,1000,1024,one,",),
            "nodes.csv: line 2, column gpu: 'one'; wanted: a whole number of GPUs",
        ),
        (("n2,1000,1024,-1,",), "nodes.csv: line 2, column gpu: '-1'; gpus: "),
        (("n 2,1000,1024,1,",), "nodes.csv: line 2, column sn: 'n 2'; node: "),
        (("n2,1000,1024,1,Tesla T4",), "nodes.csv: line 2, column model: 'Tesla T4'; node_type: "),
        (("n2,1000,1024,1,",) * 2, "nodes.csv: node n2 occurs 2 times"),
    ],
)
def test_invalid_nodes_are_refused(tmp_path: Path, nodes: tuple[str, ...], found: str) -> None:
    files = written(tmp_path / "pods.csv", *PODS), written(tmp_path / "nodes.csv", NODES[0], *nodes)
    with pytest.raises(BadWorkload, match=found):
        openb(*files, seed=0)
