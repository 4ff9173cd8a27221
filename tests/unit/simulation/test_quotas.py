"""Quotas in simulated runs: what projects deserve, get and hold over time, and their totals."""

from pathlib import Path

import pytest
from pyarrow import parquet

from tests.support.audit import audit_log
from tests.support.histories import history_of
from tests.support.simulated import Ran, job, node, ran
from yardmaster_core.testing import Cell
from yardmaster_schemas.events.admissions import EntitlementsChangedV1, Level
from yardmaster_schemas.events.requests import DepartmentConfig, ProjectConfig, Quota
from yardmaster_simulation.errors import BadOrganization
from yardmaster_simulation.figures import figures
from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import WINDOWS, ProjectTotals, project_totals
from yardmaster_simulation.report import report
from yardmaster_simulation.tables import SHARE_COLUMNS, share_table, write_tables
from yardmaster_simulation.workload import Organization, Workload, pool
from yardmaster_simulation.world import START_MS

#: The column of a project's share over time.
SHARE = 4
HOUR_S = 3600


def quota(deserved: int) -> dict[str, Quota]:
    return {"default": Quota(deserved_milli=deserved * 1000)}


def two_projects(policy: str = "quota") -> tuple[Ran, History]:
    """12 GPUs; `a` deserves 3 and requests 12 at 0 s, `b` deserves 1 and requests 12 at 100 s, all
    for 1,000 s with a grace period of 30 s. `a` is in a department below that of `b`.
    """
    jobs = [job(0, 1000, project="a") for _ in range(12)]
    jobs += [job(100, 1000, project="b") for _ in range(12)]
    run = ran(
        jobs,
        [node("node-0", 12)],
        policy=policy,
        departments={
            "above": DepartmentConfig(),
            "a-below": DepartmentConfig(parent="above"),
        },
        projects={
            "a": ProjectConfig(department="a-below", quotas=quota(3)),
            "b": ProjectConfig(department="above", quotas=quota(1)),
        },
    )
    history = History()
    for at_s, event in run.events:
        history.see(START_MS + int(at_s * 1000), event)
    return run, history


def rounded(of: ProjectTotals) -> tuple[str, int, int, int, dict[str, int]]:
    """Totals in GPU seconds: held, within what is deserved, pending."""
    hours = (of.gpu_hours, of.within_deserved_gpu_hours, of.pending_gpu_hours)
    held, within, pending = (round(each * HOUR_S) for each in hours)
    return of.name, held, within, pending, dict(of.preempted)


async def test_totals_of_projects_are_those_computed_by_hand() -> None:
    run, history = two_projects()
    # 3 of `a` are stopped at 100 s, release at 130 s, start again at 1,000 s with 900 s to run.
    # 3 of `b` start at 130 s, 6 at 1,000 s, 3 at 1,130 s.
    assert [rounded(each) for each in project_totals(history)] == [
        ("a", 9 * 1000 + 3 * 130 + 3 * 900, 3 * 1000 + 3 * 900, 3 * 870, {"over_fair_share": 3}),
        ("b", 12 * 1000, 2000, 12 * 30 + 9 * 870 + 3 * 130, {}),
    ]
    assert all(
        each.over_quota_gpu_hours == each.gpu_hours - each.within_deserved_gpu_hours
        for each in project_totals(history)
    )
    assert await audit_log(run.sink.log) == ()
    assert (await run.proved()).ok


def test_shares_over_time_are_those_that_the_policy_recorded() -> None:
    _, history = two_projects()
    # Recorded when the jobs have arrived, and again when their tasks have started.
    edges = [START_MS + at_s * 1000 for at_s in (60, 100, 1000, 1900)]
    means = {
        name: [
            total / (end - begin) / 1000
            for total, begin, end in zip(
                project.series.sums(SHARE, edges), edges[:-1], edges[1:], strict=True
            )
        ]
        for name, project in history.projects.items()
        if name in ("a", "b")
    }
    assert means == {"a": [12, 9, 3], "b": [0, 3, 9]}


def test_under_other_policies_quotas_are_compared_and_no_share_is_known() -> None:
    _, history = two_projects("fifo")
    of_a, of_b = project_totals(history)
    assert of_a.within_deserved_gpu_hours == pytest.approx(3000 / HOUR_S)
    assert of_b.within_deserved_gpu_hours == pytest.approx(1000 / HOUR_S)
    found = figures({"policy": "fifo"}, history)
    assert not found.divided
    assert not any(any(one.share) for one in found.projects)


def test_a_project_that_deserves_all_holds_all_within_it() -> None:
    cell = Cell()
    cell.admission(
        EntitlementsChangedV1(
            level=Level.PROJECT,
            name="p",
            revision=1,
            project=ProjectConfig(department="d", quotas={"main": Quota(deserved_unlimited=True)}),
        )
    )
    cell.submit("a", gpus=2)
    cell.node("n1", 4)
    cell.cycle()
    cell.node("n2", 8)
    cell.cycle(after_s=100)
    cell.cycle(after_s=100)
    history = history_of(cell)
    project = history.projects["p"]
    edges = [cell.now_ms - 200_000, cell.now_ms - 100_000, cell.now_ms]
    assert project.series.sums(2, edges) == [4000 * 100_000, 12_000 * 100_000]
    assert project.series.sums(3, edges) == project.series.sums(0, edges)


def test_the_table_of_shares_has_a_row_for_each_project_and_window(tmp_path: Path) -> None:
    _, history = two_projects()
    path = tmp_path / "shares.parquet"
    write_tables(path, [share_table({"policy": "quota", "seed": 0}, history)])
    rows = parquet.read_table(path).to_pylist()
    assert list(rows[0]) == ["policy", "seed", *(name for name, _, _ in SHARE_COLUMNS)]
    assert [row["project"] for row in rows] == ["a"] * WINDOWS + ["b"] * WINDOWS
    held_s = sum(row["held"] * row["window_ms"] for row in rows if row["project"] == "a") / 1000
    assert held_s == pytest.approx(9 * 1000 + 3 * 130 + 3 * 900)
    middle = rows[WINDOWS // 4]
    assert (middle["deserved"], middle["share"], middle["held"]) == (3, 9, 9)


def test_the_report_shows_totals_and_shares_of_projects() -> None:
    _, history = two_projects()
    page = report("x", [figures({"policy": "quota"}, history)])
    assert '<th scope="row">a</th><td>3.36</td><td>1.58</td>' in page
    assert "3 over_fair_share" in page
    assert '"share":[' in page


def test_an_organization_replaces_what_it_names() -> None:
    workload = Workload(
        name="w",
        nodes=(node("n"),),
        jobs=(),
        projects={"a": ProjectConfig(department="default"), "b": ProjectConfig(department="x")},
    )
    new = ProjectConfig(department="default", quotas=quota(1))
    found = workload.organized(
        Organization(pools={"default": pool("quota")}, projects={"b": new, "c": new})
    )
    assert found.pools["default"].policy.name == "quota"
    assert found.projects == {"a": workload.projects["a"], "b": new, "c": new}
    with pytest.raises(BadOrganization, match="pool_unknown big"):
        workload.organized(Organization(pools={"big": pool()}))


@pytest.mark.parametrize(
    ("project", "what"),
    [
        (ProjectConfig(department="nowhere"), "department_unknown nowhere"),
        (ProjectConfig(department="default", quotas={"big": Quota()}), "pool_unknown big"),
    ],
)
def test_what_quota_refuses_is_named(project: ProjectConfig, what: str) -> None:
    with pytest.raises(BadOrganization, match=what):
        ran([job(0, 10)], projects={"a": project})


def test_departments_that_are_parts_of_each_other_are_refused() -> None:
    departments = {"x": DepartmentConfig(parent="y"), "y": DepartmentConfig(parent="x")}
    with pytest.raises(BadOrganization, match="department_unknown"):
        ran([job(0, 10)], departments=departments)
