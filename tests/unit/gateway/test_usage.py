"""`GET /v1/usage`: metered GPU time of the projects that the caller may see."""

import asyncio

import pytest

from tests.support.gateway import GatewayCell
from yardmaster_projections.usage import UsageRow


async def ran(cell: GatewayCell) -> int:
    """Run a job of nlp to its end; return its use in gpu_milli x milliseconds."""
    job = await cell.submit()
    task = f"{job}.0"
    await cell.starts(task)
    await asyncio.sleep(0.05)  # the time that is metered: the clock of the cell is the machine's
    await cell.finishes(task)
    attempt = (await cell.call("GET", f"/v1/tasks/{task}/attempts"))["items"][0]
    assert attempt["replicas"][0]["released_at"] is not None
    return sum(row.gpu_milli_ms for row in cell.usage.rows(UsageRow).values())


async def test_usage_is_summed_by_project_user_or_pool(cell: GatewayCell) -> None:
    milli_ms = await ran(cell)
    assert milli_ms >= 50 * 1000
    for by, name in (("project", "nlp"), ("user", "nina"), ("pool", "default")):
        found = await cell.call("GET", f"/v1/usage?by={by}")
        (row,) = found["items"]
        assert (row["name"], row["gpu_milli_seconds"]) == (name, milli_ms // 1000)
        assert (found["by"], found["bucket"]) == (by, None)
        assert found["position"] == str(await cell.usage.position())


async def test_usage_is_grouped_by_hours_days_or_months(cell: GatewayCell) -> None:
    await ran(cell)
    starts = {}
    for bucket in ("hour", "day", "month"):
        found = await cell.call("GET", f"/v1/usage?bucket={bucket}")
        starts[bucket] = found["items"][0]["start_at"]
    assert starts["hour"].endswith(":00:00.000Z")
    assert starts["day"] == starts["hour"][:10] + "T00:00:00.000Z"
    assert starts["month"] == starts["hour"][:7] + "-01T00:00:00.000Z"


async def test_a_running_task_counts_up_to_now(cell: GatewayCell) -> None:
    job = await cell.submit()
    await cell.starts(f"{job}.0")
    await asyncio.sleep(0.02)  # metered time
    (first,) = (await cell.call("GET", "/v1/usage"))["items"]
    await asyncio.sleep(0.02)  # metered time
    (second,) = (await cell.call("GET", "/v1/usage"))["items"]
    assert 0 < first["gpu_milli_seconds"] < second["gpu_milli_seconds"]


async def test_a_caller_sees_the_usage_of_its_own_projects(cell: GatewayCell) -> None:
    await ran(cell)
    for token, seen in (("nlp", 1), ("research", 1), ("vision", 0), ("no_roles", 0)):
        found = await cell.call("GET", "/v1/usage?by=user", token=token)
        assert len(found["items"]) == seen, token


@pytest.mark.parametrize(
    "query",
    [
        "by=colour",
        "bucket=week",
        "from=yesterday",
        "to=2026-01-01T00:00:00",
        "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
        "from=2020-01-01T00:00:00Z&to=2026-01-01T00:00:00Z",
        "window=1h",
    ],
)
async def test_an_invalid_query_is_refused(cell: GatewayCell, query: str) -> None:
    problem = await cell.call("GET", f"/v1/usage?{query}", status=400)
    assert problem["code"] == "malformed"


async def test_usage_waits_for_the_position_of_its_caller(cell: GatewayCell) -> None:
    answer = await cell.call(
        "POST",
        "/v1/jobs",
        status=202,
        run=False,
        json={"project": "nlp", "run": {"command": ["true"]}},
    )
    path = f"/v1/usage?min_position={answer['position']}"
    behind = await cell.call("GET", path, status=503)
    assert behind["code"] == "view_behind"
    await cell.call("GET", path)
