"""The seconds of a pool's `fence: kill`, and that a node is lost only after them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import LogBuilder, allocated, placed, pool_configured
from tests.unit.core.admission.admission_cell import AdmissionCell, pool
from tests.unit.core.audit.cell_log import JOB, A, admit, cell_log, expect_one, silent
from tests.unit.core.audit.cell_log import lost as node_lost
from tests.unit.core.scheduling.reading import kinds, only, running
from yardmaster_core import fencing
from yardmaster_core.testing import Cell
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events.requests import Fence, PolicyRef, PoolConfig
from yardmaster_schemas.reasons import AdmissionCode

#: The agent's kill may be a second late (its runner's), and clocks differ by a hundredth.
LATE_S = 1.0
RATE = 0.995


@pytest.fixture
def log() -> LogBuilder:
    return cell_log()


def config(timeout_s: int, fence: Fence = Fence.KILL) -> PoolConfig:
    return PoolConfig(policy=PolicyRef(name="priority"), node_timeout_s=timeout_s, fence=fence)


@given(st.integers(fencing.LEAST_TIMEOUT_S, 86_400))
def test_a_node_is_lost_after_its_fence_at_any_clock_rates(timeout_s: int) -> None:
    fence_s = fencing.fence_of(config(timeout_s))
    assert fence_s is not None
    assert fence_s >= fencing.LEAST_FENCE_S
    assert (fence_s + LATE_S) / RATE + 1 < timeout_s * RATE, "less than a second remains to kill"
    assert fence_s <= fencing.fence_of(config(fencing.least_timeout_s(fence_s)))  # type: ignore[operator]
    assert fencing.least_timeout_s(fence_s) <= timeout_s


def test_fence_and_timeout_of_the_default_configuration() -> None:
    fences = [fencing.fence_of(config(s)) for s in (11, 15, 60, 3600)]
    assert fences == [5, 9, 54, 3559]
    assert fencing.fence_of(config(60, Fence.NONE)) is None


def test_a_pool_whose_timeout_leaves_no_time_to_kill_is_refused() -> None:
    quota = AdmissionCell()
    (refusal,) = quota.ask(pool("fast", node_timeout_s=10, fence=Fence.KILL))
    assert isinstance(refusal, adm.RequestRefusedV1)
    assert refusal.code is AdmissionCode.FENCE_IMPOSSIBLE
    assert refusal.numbers == {"node_timeout_s": 10, "least_s": 11}
    (accepted,) = quota.ask(pool("fast", node_timeout_s=11, fence=Fence.KILL))
    assert isinstance(accepted, adm.PoolConfiguredV1)
    (accepted,) = quota.ask(pool("faster", node_timeout_s=1))
    assert isinstance(accepted, adm.PoolConfiguredV1)


def fenced_cell(timeout_s: int) -> Cell:
    cell = Cell(node_timeout_s=timeout_s)
    configure(cell, timeout_s)
    cell.node("n1", gpus=2)
    cell.submit("job")
    running(cell, "job")
    return cell


def configure(cell: Cell, timeout_s: int, fence: Fence = Fence.KILL) -> None:
    pool = cell.state.pools.get("main")
    revision = 2 if pool is None else pool.revision + 1
    cell.admission(
        adm.PoolConfiguredV1(pool="main", revision=revision, config=config(timeout_s, fence))
    )


def test_attempts_carry_the_fence_of_their_pool() -> None:
    cell = fenced_cell(60)
    run = cell.task("job").run
    assert run is not None
    assert run.fence_s == 54
    configure(cell, 60, Fence.NONE)
    cell.submit("other")
    assert only(cell.cycle(), dec.SlotsAllocatedV1).fence_s is None


@pytest.mark.parametrize("fence", list(Fence))
def test_a_shortened_timeout_does_not_undercut_the_fence_of_running_tasks(fence: Fence) -> None:
    cell = fenced_cell(600)
    configure(cell, 60, fence)
    cell.cycle()
    heard_ms = cell.now_ms
    cell.now_ms += 590_000
    assert kinds(cell.cycle(silent={"n1": heard_ms})) == ["NodeSilenceObserved"]
    cell.now_ms += 10_000
    assert "NodeLost" in kinds(cell.cycle(silent={"n1": heard_ms}))


def test_without_a_fence_the_current_timeout_counts() -> None:
    cell = Cell(node_timeout_s=600)
    cell.node("n1", gpus=2)
    cell.submit("job")
    running(cell, "job")
    configure(cell, 60, Fence.NONE)
    cell.cycle()
    heard_ms = cell.now_ms
    cell.now_ms += 60_000
    assert "NodeLost" in kinds(cell.cycle(silent={"n1": heard_ms}))


# The audit


def test_the_audit_finds_a_node_that_was_lost_within_a_fence(log: LogBuilder) -> None:
    admit(log, JOB)
    fence: dict[str, Any] = {"fence": Fence.KILL, "node_timeout_s": 200}
    log.judged(pool("default", **fence), pool_configured(revision=2, **fence))
    log.scheduler.cycle(allocated(A, placed("n1", 0), fence_s=193))
    short: dict[str, Any] = {"node_timeout_s": 60}
    log.judged(pool("default", **short), pool_configured(revision=3, **short))
    log.scheduler.cycle(silent("n1"), node_lost("n1", (A, 0)), after_ms=70_000)
    expect_one(log, "S4", "may run there for 193 s")


@pytest.mark.parametrize("fence_s", [None, 60])
def test_the_audit_finds_an_attempt_without_its_pools_fence(
    log: LogBuilder, fence_s: int | None
) -> None:
    admit(log, JOB)
    fence: dict[str, Any] = {"fence": Fence.KILL, "node_timeout_s": 60}
    log.judged(pool("default", **fence), pool_configured(revision=2, **fence))
    log.scheduler.cycle(allocated(A, placed("n1", 0), fence_s=fence_s))
    expect_one(log, "S4", f"has fence_s {fence_s}")
