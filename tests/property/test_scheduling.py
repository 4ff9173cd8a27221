"""Properties of the scheduler's state machine in random histories, with and without faults.

See `faulty_player` for the faults that the cell under test must tolerate, and
`tests/histories` for the histories and their properties; `make histories` plays more of them.
"""

import time
from collections.abc import Iterable
from dataclasses import fields
from threading import Event, Thread

import pytest

from tests.histories import shortest as shortest_history
from tests.histories.inputs import OPTIONS, Input, history
from tests.histories.player import HistoryPlayer
from tests.histories.shortest import broken_in, shortest
from tests.property.faulty_player import FaultyPlayer
from yardmaster_core.scheduling.policies import POLICIES

#: Histories are played in runs, so that each test names few seeds.
RUN = 10


@pytest.mark.parametrize("first", range(20, 50, RUN))
def test_a_cell_under_faults_decides_as_one_without(first: int) -> None:
    for seed in range(first, first + RUN):
        FaultyPlayer().play(history(seed))


def test_a_cell_with_quotas_under_faults_decides_as_one_without() -> None:
    for seed in range(RUN):
        FaultyPlayer().play(history(seed, "quota"))


def test_a_cell_with_users_under_faults_decides_as_one_without() -> None:
    for seed in range(RUN):
        FaultyPlayer().play(history(seed, "starved_first"))


def assert_has_all_properties(seed: int, policy: str | None = None) -> None:
    repeat = f"make histories HISTORIES_ARGS='--policy {policy or 'any'} --seeds {seed}'"
    assert broken_in(history(seed, policy)) is None, repeat


#: Histories that broke a property once, each by another defect.
ONCE_BROKEN = (1660, 1758, 1965, 3497, 3975, 5916, 7133, 7602, 8563, 8884)


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_a_history_that_broke_a_property_once_has_all_now(seed: int) -> None:
    assert_has_all_properties(seed)


@pytest.mark.parametrize("first", range(1000, 1060, RUN))
def test_histories_have_all_properties(first: int) -> None:
    for seed in range(first, first + RUN):
        assert_has_all_properties(seed)


#: The same for histories of the policy `quota`.
ONCE_BROKEN_QUOTA = (32, 43, 73, 244, 1192, 1493, 4008, 7314, 8385)


@pytest.mark.parametrize("seed", ONCE_BROKEN_QUOTA)
def test_a_history_of_quotas_that_broke_a_property_once_has_all_now(seed: int) -> None:
    assert_has_all_properties(seed, "quota")


@pytest.mark.parametrize("first", range(1000, 1060, RUN))
def test_histories_of_quotas_have_all_properties(first: int) -> None:
    for seed in range(first, first + RUN):
        assert_has_all_properties(seed, "quota")


@pytest.mark.parametrize("first", range(1000, 1040, RUN))
def test_histories_of_starved_first_have_all_properties(first: int) -> None:
    for seed in range(first, first + RUN):
        assert_has_all_properties(seed, "starved_first")


def test_a_seed_gives_the_same_history() -> None:
    assert history(7) == history(7)
    assert history(7) != history(8)


def test_every_option_of_every_policy_is_drawn() -> None:
    assert OPTIONS.keys() == {
        f.name for policy in POLICIES.values() for f in fields(policy.options)
    }


def test_the_shortest_history_breaks_the_same_property() -> None:
    impossible = Input("cycle", {"after_s": "x", "limit": 1})
    inputs = [*history(3)[:20], impossible, *history(4)[:20]]
    found = broken_in(inputs)
    assert found is not None
    assert shortest(inputs, found.where) == [impossible]
    assert broken_in(inputs[:20]) is None


class ComputingPlayer(HistoryPlayer):
    """A player that computes, without an end or until its thread used this CPU time."""

    until_s: float | None = None

    def play(self, inputs: Iterable[Input]) -> None:
        begun_s = time.thread_time()
        while self.until_s is None or time.thread_time() - begun_s < self.until_s:
            pass


def test_a_play_without_an_end_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_history, "ENDLESS_S", 0.1)
    found = broken_in([], ComputingPlayer)
    assert found is not None
    assert found.where == "endless"


def test_what_other_threads_compute_makes_no_play_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_history, "ENDLESS_S", 0.3)
    monkeypatch.setattr(ComputingPlayer, "until_s", 0.2)
    played = Event()

    def compute() -> None:
        while not played.is_set():
            pass

    other = Thread(target=compute)
    other.start()
    try:
        assert broken_in([], ComputingPlayer) is None
    finally:
        played.set()
        other.join()
