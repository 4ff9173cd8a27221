"""The contract of the ledgers of a node agent, for the one in memory and the one in a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.ledgers import HEAD, assignment, replica
from yardmaster_node_agent.agent_state import (
    AgentState,
    Forgotten,
    Reached,
    ReplicaState,
)
from yardmaster_node_agent.ledger import FileLedger, Ledger, MemoryLedger


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ledger]:
    """Gives the ledger as its next owner finds it."""
    if request.param == "memory":
        ledger = MemoryLedger()
        return lambda: ledger
    return lambda: FileLedger(tmp_path / "node" / "ledger")


def test_a_new_ledger_holds_nothing(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    assert ledger.load() is None
    ledger.close()


def test_what_was_written_is_there_for_the_next_owner(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    assert ledger.begin(HEAD) == AgentState(HEAD)
    ledger.write([replica(0), replica(1)])
    ledger.write([Reached(offset=17)], durable=False)
    newer = replica(0)
    newer.state = ReplicaState.RELEASED
    ledger.write([newer])
    ledger.close()
    ledger = reopen()
    state = ledger.load()
    assert state == AgentState(
        HEAD, reached=17, replicas={newer.key: newer, replica(1).key: replica(1)}
    )
    ledger.close()


def test_later_changes_of_an_entry_do_not_reach_what_was_written(
    reopen: Callable[[], Ledger],
) -> None:
    ledger = reopen()
    ledger.load()
    ledger.begin(HEAD)
    changing = replica()
    ledger.write([changing])
    changing.done = True
    ledger.close()
    ledger = reopen()
    state = ledger.load()
    assert state is not None
    assert not state.replicas[changing.key].done
    ledger.close()


def test_a_new_ledger_takes_the_place_of_the_old_one(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    ledger.begin(HEAD)
    ledger.write([replica()])
    newer = replace(HEAD, incarnation="ba9876543210", epoch=2)
    ledger.begin(newer)
    ledger.write([Reached(offset=3)])
    ledger.close()
    ledger = reopen()
    assert ledger.load() == AgentState(newer, reached=3)
    ledger.close()


def test_what_was_forgotten_is_known_as_a_repeat(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    state = ledger.begin(HEAD)
    for entry in (replica(0), Forgotten(key=replica(0).key, through=7)):
        ledger.write([entry])
        state.apply(entry)
    ledger.close()
    ledger = reopen()
    assert ledger.load() == state
    assert state.repeated(assignment(0))
    assert state.repeated(assignment(5, decision=6))
    assert not state.repeated(assignment(5, decision=8))
    assert not state.repeated(assignment(5, decision=-1)), "the relay did not say which it is"
    ledger.close()
