"""The pauses between retries."""

from yardmaster_schemas.backoff import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_reset_starts_again_at_the_shortest_pause() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.pause_s == 0.0
    assert backoff.next_s() == 0.5


def test_a_server_may_ask_for_a_pause_above_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert backoff.next_s(at_least_s=60.0) == 60.0
    assert backoff.next_s() == 3.0
