"""Grace periods of stops when a clock is wrong: they count by the host's monotonic clock."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.node_agent import AgentCell, sh
from yardmaster_runtime.clock import SystemClock

DAY_MS = 86_400_000
SAVES = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05 || :; done"
STAYS = "trap '' TERM; echo ready; while :; do sleep 0.05 || :; done"


class SteppedClock(SystemClock):
    """The system's clock, whose wall time an administrator sets."""

    host_ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.host_ahead_ms


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[AgentCell]:
    cell = await AgentCell(tmp_path / "n1", clock=SteppedClock()).open()
    yield cell
    await cell.assert_honest()
    await cell.log.close()


@pytest.mark.parametrize("ahead_ms", [-365 * DAY_MS, -DAY_MS, DAY_MS, 365 * DAY_MS])
async def test_the_grace_is_the_same_whatever_the_clock_of_the_scheduler_says(
    cell: AgentCell, ahead_ms: int
) -> None:
    async with cell.agent():
        saves, stays = (
            await cell.allocate(sh(SAVES)),
            await cell.allocate(sh(STAYS), slots=[(1,)]),
        )
        await cell.until_output(saves, "ready")
        await cell.until_output(stays, "ready")
        await cell.stop(saves, grace_s=600, scheduler_ahead_ms=ahead_ms)
        await cell.stop(stays, grace_s=1, scheduler_ahead_ms=ahead_ms)
        assert (await cell.exit_of(saves)).exit_code == 0, "its grace is not cut"
        assert (await cell.exit_of(stays)).signal == signal.SIGKILL, "its grace ends"
        await cell.ended(saves)
        await cell.ended(stays)


@pytest.mark.parametrize("step_ms", [-DAY_MS, DAY_MS])
async def test_a_step_of_the_host_clock_neither_cuts_a_grace_nor_extends_it(
    cell: AgentCell, tmp_path: Path, step_ms: int
) -> None:
    go = tmp_path / "go"
    waits = f"trap 'echo asked' TERM; echo ready; until [ -e {go} ]; do sleep 0.05 || :; done"
    async with cell.agent():
        task = await cell.allocate(sh(waits))
        stays = await cell.allocate(sh(STAYS), slots=[(1,)])
        await cell.until_output(task, "ready")
        await cell.until_output(stays, "ready")
        await cell.stop(task, grace_s=600)
        await cell.stop(stays, grace_s=2)
        await cell.until_output(task, "asked")
        assert isinstance(cell.clock, SteppedClock)
        cell.clock.host_ahead_ms = step_ms
    async with cell.agent():
        assert (await cell.exit_of(stays)).signal == signal.SIGKILL, "its grace ends"
        go.touch()
        assert (await cell.exit_of(task)).exit_code == 0, "its grace is not cut"
        await cell.ended(task)
        await cell.ended(stays)
