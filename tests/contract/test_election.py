"""The promises of every election to its candidate.

The groups below a GroupElection have a suite of their own, `test_membership.py`; the rules of one
adapter alone are in tests/unit/runtime/test_election.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from yardmaster_eventlog.membership import MemoryGroup
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine.election import (
    Election,
    GroupElection,
    ManualElection,
    SoleCandidate,
)

PAUSE_S = 6.0


@dataclass
class Contest:
    """An election under test; after `elect`, its only candidate should lead."""

    election: Election
    elect: Callable[[], object]


def sole() -> Contest:
    return Contest(SoleCandidate(), lambda: None)


def manual() -> Contest:
    election = ManualElection()
    return Contest(election, election.elect)


def group() -> Contest:
    member = MemoryGroup().member()
    return Contest(GroupElection(member, 0, ManualClock(), pause_s=PAUSE_S), lambda: None)


@pytest.fixture(params=[sole, manual, group], ids=lambda make: str(make.__name__))
def contest(request: pytest.FixtureRequest) -> Contest:
    contest: Contest = request.param()
    return contest


async def run_others() -> None:
    """Run all other tasks until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` during the block."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        await run_others()
        yield task
        task.cancel()


async def test_the_only_candidate_wins(contest: Contest) -> None:
    async with running(contest.election.won()) as won:
        contest.elect()
        await run_others()
        assert won.done()


async def test_a_winner_may_ask_again_and_still_wins(contest: Contest) -> None:
    contest.elect()
    for _ in range(3):
        await contest.election.won()


async def test_a_winner_has_not_lost(contest: Contest) -> None:
    contest.elect()
    await contest.election.won()
    async with running(contest.election.lost()) as lost:
        assert not lost.done()


async def test_a_cancelled_wait_changes_nothing(contest: Contest) -> None:
    async with running(contest.election.won()):
        pass
    contest.elect()
    await contest.election.won()
    async with running(contest.election.lost()):
        pass
    await contest.election.won()


async def test_a_fenced_candidate_does_not_win_without_a_new_decision(contest: Contest) -> None:
    contest.elect()
    await contest.election.won()
    contest.election.on_fenced()
    async with running(contest.election.won()) as won:
        assert not won.done()


async def test_a_candidate_without_rivals_wins_again_after_a_restore(contest: Contest) -> None:
    contest.elect()
    await contest.election.won()
    contest.election.on_restore()
    async with running(contest.election.won()) as won:
        assert won.done()


async def test_a_candidate_may_withdraw_at_any_time_and_more_than_once(contest: Contest) -> None:
    contest.election.withdraw()
    contest.elect()
    await run_others()
    contest.election.withdraw()
    contest.election.withdraw()
