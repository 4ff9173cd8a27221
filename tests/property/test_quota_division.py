"""The division of a resource among queues, for any quotas, limits, weights and ranks."""

from hypothesis import example, given
from hypothesis import strategies as st

from yardmaster_core.scheduling.policies.quota.division import Division, QueueDemand, divide

UNIT = 10
AMOUNT = st.integers(0, 200)


@st.composite
def queues(draw: st.DrawFn) -> list[QueueDemand]:
    return [
        QueueDemand(
            name=f"q{number}",
            rank=draw(st.integers(0, 2)),
            deserved=draw(st.none() | AMOUNT),
            demand=draw(AMOUNT),
            weight=draw(st.integers(0, 3)),
            age=draw(st.integers(0, 2)),
        )
        for number in range(draw(st.integers(0, 6)))
    ]


def due(queue: QueueDemand, total: int) -> int:
    """The part that a queue gets before anything is divided by rank and weight."""
    return min(total if queue.deserved is None else queue.deserved, queue.demand)


def found(total: int, asked: list[QueueDemand]) -> Division:
    return divide(total, asked, UNIT)


@given(AMOUNT, queues())
def test_every_queue_gets_what_it_deserves_and_none_gets_more_than_it_requests(
    total: int, asked: list[QueueDemand]
) -> None:
    shares = found(total, asked).shares
    for queue in asked:
        assert due(queue, total) <= shares[queue.name] <= max(queue.demand, due(queue, total))


@given(AMOUNT, queues())
def test_nothing_is_divided_twice_or_lost(total: int, asked: list[QueueDemand]) -> None:
    division = found(total, asked)
    deserved = sum(due(queue, total) for queue in asked)
    assert sum(division.shares.values()) + division.left == max(total, deserved)


@given(AMOUNT, queues())
def test_something_is_left_only_when_every_queue_with_a_weight_has_what_it_requests(
    total: int, asked: list[QueueDemand]
) -> None:
    division = found(total, asked)
    unmet = [q for q in asked if q.weight and q.demand > division.shares[q.name]]
    assert not (division.left and unmet)


@given(AMOUNT, queues())
def test_a_queue_without_a_weight_gets_what_it_deserves_and_nothing_else(
    total: int, asked: list[QueueDemand]
) -> None:
    shares = found(total, asked).shares
    for queue in asked:
        if not queue.weight:
            assert shares[queue.name] == due(queue, total)


@given(AMOUNT, queues())
def test_a_lower_rank_gets_a_part_of_the_rest_only_when_the_higher_ranks_are_satisfied(
    total: int, asked: list[QueueDemand]
) -> None:
    shares = found(total, asked).shares
    unmet = [q.rank for q in asked if q.weight and q.demand > shares[q.name]]
    for queue in asked:
        if unmet and queue.rank < max(unmet):
            # Rounding leaves less than a unit for each queue of the higher rank.
            assert shares[queue.name] - due(queue, total) <= UNIT * len(unmet)


@given(AMOUNT, queues())
@example(2, [])
def test_the_order_of_the_queues_does_not_matter(total: int, asked: list[QueueDemand]) -> None:
    division = found(total, asked)
    assert found(total, asked[::-1]) == division


def test_the_last_units_go_to_the_largest_remainder_then_to_the_oldest_then_by_name() -> None:
    def queue(name: str, weight: int = 1, age: int = 0) -> QueueDemand:
        return QueueDemand(name=name, rank=0, deserved=0, demand=100, weight=weight, age=age)

    def shares(total: int, *asked: QueueDemand) -> dict[str, int]:
        return dict(divide(total, asked, UNIT).shares)

    assert shares(10, queue("a"), queue("b", weight=2)) == {"a": 0, "b": 10}
    assert shares(10, queue("a", age=1), queue("b")) == {"a": 0, "b": 10}
    assert shares(10, queue("b"), queue("a")) == {"a": 10, "b": 0}
