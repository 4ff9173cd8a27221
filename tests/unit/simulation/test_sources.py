"""Workloads on other nodes than their own, and with other changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated import job, node, ran
from yardmaster_simulation.errors import BadWorkload
from yardmaster_simulation.sources import (
    Changed,
    Movable,
    Openb,
    Philly,
    Recorded,
    TrialAndError,
    Waves,
)
from yardmaster_simulation.study import Case, Study
from yardmaster_simulation.synthetic import DEMAND_SETS, Mix
from yardmaster_simulation.traces import Columns, Equal, csv_jobs
from yardmaster_simulation.workload import (
    DEFAULT,
    Amounts,
    NodeFaults,
    SimNode,
    Workload,
    plus,
    pool,
)

TRACES = Path(__file__).parents[2] / "data" / "traces"
PHILLY = Philly(TRACES / "philly_jobs.csv.gz", None)
OPENB = Openb(TRACES / "openb_pod_list_default.csv.gz", TRACES / "openb_node_list_all_node.csv.gz")


def on(source: Movable, number: int, gpus: int) -> Workload:
    """A workload on equal nodes."""
    return Changed(source, equal=Equal(number, gpus)).workload(0)[0]


@pytest.mark.parametrize("name", DEMAND_SETS)
def test_the_load_is_relative_to_the_given_nodes(name: str) -> None:
    source = TrialAndError(Mix(demands=name, jobs=500, load_permille=1500))
    workload, arrivals = Changed(source, equal=Equal(10, 8)).workload(0)

    def load(requested: Amounts) -> float:
        parts = [of / there for of, there in zip(requested, workload.capacity, strict=True)]
        return parts[2] if DEMAND_SETS[name].load_on == "gpu" else sum(parts) / 3

    requested: Amounts = (0, 0, 0)
    before = requested
    for each in arrivals.due(0, requested):
        before, requested = requested, plus(requested, each.amounts)
    assert load(before) < 1.5 <= load(requested)


@pytest.mark.parametrize(
    ("source", "cpus", "memory_gib"),
    [
        (TrialAndError(Mix(jobs=1)), 32, 256),
        (Waves(1, preemptible=True), 32, 1024),
        (PHILLY, 96, 1024),
        (OPENB, 128, 1024),
    ],
)
def test_equal_nodes_have_the_cpu_and_memory_of_the_largest_own_node(
    source: Movable, cpus: int, memory_gib: int
) -> None:
    assert on(source, 11, 4).nodes == tuple(
        SimNode(
            name=f"node-{number:02d}", gpus=4, cpu_milli=cpus * 1000, memory_mib=memory_gib * 1024
        )
        for number in range(11)
    )


def test_gangs_of_a_trace_are_divided_by_the_gpus_of_a_node(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("at,gpus\n0,12\n")
    columns = Columns(names={"submit": "at", "gpus": "gpus"})
    cut = {
        gpus: csv_jobs(path, columns, equal=Equal(2, gpus)).jobs[0].spec.replicas_min
        for gpus in (4, 8, 16)
    }
    assert cut == {4: 3, 8: 2, 16: 1}
    assert max(each.spec.resources.gpus for each in on(PHILLY, 300, 4).jobs) == 4


def test_the_requested_gpus_are_130_percent_of_the_given_nodes() -> None:
    milli = [each.spec.resources.gpu_total_milli for each in on(OPENB, 100, 8).jobs]
    assert sum(milli) >= 1.3 * 800_000 > sum(milli[:-1])


def recorded(path: Path, nodes: Sequence[SimNode], pools: Sequence[str]) -> Recorded:
    """A log of one job, in the first of the pools."""
    work = job(0, 60, gpus=4)
    work = replace(work, spec=replace(work.spec, pools=(pools[0],)))
    ran([work], nodes, path=path, pools={name: pool() for name in pools})
    return Recorded(path, "main")


def in_pool(name: str, of: str) -> SimNode:
    """A node of a pool."""
    return replace(node(name), pool=of, node_type="big")


def test_equal_nodes_join_the_pool_of_a_log_and_have_its_node_type(tmp_path: Path) -> None:
    source = recorded(tmp_path / "main.db", [in_pool("a", "batch")], ("batch", DEFAULT))
    changed = Changed(source, equal=Equal(2, 4))
    assert {(each.pool, each.node_type) for each in changed.workload(0)[0].nodes} == {
        ("batch", "big")
    }
    (result,) = Study(source=changed, cases=[Case(name="run", labels={})]).run()
    assert result.left == 0


def test_jobs_of_a_trace_get_the_kinds_and_the_load_of_the_options() -> None:
    changed = Changed(PHILLY, te_permille=300, load_permille=1500)
    workload, arrivals = changed.workload(7)
    jobs = workload.jobs
    assert arrivals.left == len(jobs)
    urgent = sum(job.spec.preemptible is False for job in jobs)
    assert 0.28 < urgent / len(jobs) < 0.32
    assert [job.spec for job in jobs] != [job.spec for job in changed.workload(8)[0].jobs]
    requested = sum(job.task_amounts[2] * (job.runs_ms[0] or 0) for job in jobs)
    assert requested / (workload.capacity[2] * jobs[-1].submit_ms) == pytest.approx(1.5, rel=1e-3)


def test_equal_nodes_are_refused_for_a_log_with_several_pools(tmp_path: Path) -> None:
    nodes = [in_pool("a", "batch"), in_pool("b", "dev")]
    source = recorded(tmp_path / "main.db", nodes, ("batch", "dev"))
    assert len(Changed(source).workload(0)[0].nodes) == 2
    with pytest.raises(BadWorkload, match="batch, dev; --nodes needs a log with one pool"):
        on(source, 2, 4)


def test_a_recorded_node_of_an_unconfigured_pool_is_left_out(tmp_path: Path) -> None:
    nodes = [in_pool("a", "batch"), in_pool("b", "forgotten")]
    source = recorded(tmp_path / "main.db", nodes, ("batch",))
    faults = NodeFaults(mean_up_ms=20_000, mean_down_ms=1_000)
    changed = Changed(source, faults=faults, behavior={"checkpoint_every_ms": 1_000})
    assert [each.name for each in changed.workload(0)[0].nodes] == ["a"]
    (result,) = Study(source=changed, cases=[Case(name="run", labels={})]).run()
    assert result.left == 0
    lost = recorded(tmp_path / "lost.db", [in_pool("b", "forgotten")], ("batch",))
    with pytest.raises(BadWorkload, match="no node of a configured pool"):
        lost.workload(0)


def test_a_workload_error_is_reported_from_another_process_too(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(b"damaged")
    cases = [Case(name=f"run-{seed}", labels={}, seed=seed) for seed in range(2)]
    study = Study(source=Changed(Philly(path, None)), cases=cases, workers=2)
    with pytest.raises(BadWorkload, match="Not a gzipped file"):
        study.run()
