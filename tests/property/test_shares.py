"""Properties of every division of a pool, for any demands."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.shares_by_demands import VARIANTS, demand_proportional, max_min
from tests.support.shares_reference import VARIANTS as REFERENCE
from tests.support.shares_reference import Division
from yardmaster_core.scheduling.policies.fair_share.demand_runs import (
    Demand,
    DemandKind,
    DemandRun,
    oldest_within,
)

divisions = st.sampled_from(list(VARIANTS.values()))
weights = st.integers(1, 6)


@st.composite
def demands(
    draw: st.DrawFn, *, grain: int = 1000, gangs: bool = False, fixed: bool = True
) -> Demand:
    """A demand with tasks of one size; some of them run and cannot be preempted."""
    least = draw(st.integers(1, 8)) * grain if gangs else grain
    demand = draw(st.integers(0, 12)) * least
    held = draw(st.integers(0, 3)) * grain if fixed else 0
    return Demand(draw(weights), demand + held, held, least if demand else 0)


@st.composite
def sized_demands(draw: st.DrawFn, *, fixed: bool = True) -> Demand:
    """A demand with tasks of a part of a GPU or of several GPUs; some of them may run."""
    size = draw(st.sampled_from([250, 300, 500, 1000, 2000, 4000]))
    tasks = draw(st.integers(0, 12))
    stays = draw(st.integers(0, 3)) * 1000 if fixed else 0
    held = stays + draw(st.integers(0, tasks)) * size
    least = size * draw(st.integers(1, min(2, tasks))) if tasks else 0
    return Demand(draw(weights), tasks * size + stays, stays, least, size if tasks else 0, held)


capacities = st.integers(0, 60).map(lambda gpus: gpus * 1000)
any_demands = st.lists(demands(), max_size=8)
free_demands = st.lists(demands(fixed=False), max_size=8)
gang_demands = st.lists(demands(gangs=True), max_size=8)


def fixed_of(asked: Sequence[Demand]) -> int:
    return sum(demand.fixed for demand in asked)


@given(divide=divisions, capacity=capacities, asked=gang_demands)
def test_each_share_is_between_the_fixed_part_and_the_demand(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    for demand, offer in zip(asked, divide(capacity, asked), strict=True):
        assert demand.fixed <= offer <= demand.milli


@given(divide=divisions, capacity=capacities, asked=any_demands)
def test_shares_sum_to_the_pool_or_to_the_whole_demand(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    whole = min(capacity, sum(demand.milli for demand in asked))
    assert sum(divide(capacity, asked)) == max(whole, fixed_of(asked))


@given(divide=divisions, capacity=capacities, asked=gang_demands)
def test_shares_never_sum_to_more_than_the_pool(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    assert sum(divide(capacity, asked)) <= max(capacity, fixed_of(asked))


@given(divide=divisions, capacity=capacities, asked=gang_demands)
def test_no_claimant_could_use_the_capacity_that_stays_unoffered(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    offers = divide(capacity, asked)
    left = capacity - sum(offers)
    for demand, offer in zip(asked, offers, strict=True):
        if offer - demand.fixed >= demand.smallest_task:  # capacity for one more task
            assert left <= 0 or offer == demand.milli


@given(capacity=capacities, asked=gang_demands)
def test_a_share_above_the_fixed_part_is_enough_to_start_a_task(
    capacity: int, asked: list[Demand]
) -> None:
    offers = demand_proportional(capacity, asked)
    if sum(offers) < min(capacity, sum(demand.milli for demand in asked)):
        return
    for demand, offer in zip(asked, offers, strict=True):
        stuck = demand.fixed < offer < demand.milli and offer - demand.fixed < demand.smallest_task
        assert not stuck


@given(capacity=capacities, asked=gang_demands)
def test_by_max_min_an_offer_smaller_than_a_task_is_cut_to_the_fixed_part(
    capacity: int, asked: list[Demand]
) -> None:
    """The fixed part counts as part of the offer, as in Determined: 4 that are fixed and 1 more
    are enough for a task of 2.
    """
    offers = max_min(capacity, asked)
    if sum(offers) < min(capacity, sum(demand.milli for demand in asked)):
        return
    for demand, offer in zip(asked, offers, strict=True):
        stuck = demand.fixed < offer < demand.milli and offer < demand.smallest_task
        assert not stuck


@given(capacity=capacities, asked=free_demands)
def test_max_min_follows_weights_to_within_one_slot_per_claimant(
    capacity: int, asked: list[Demand]
) -> None:
    """An unsatisfied claimant has as much per weight as any other, except for one effect: in the
    round that satisfies a claimant, the claimants after it have already received larger parts.
    """
    offers = max_min(capacity, asked)
    slack = 1000 * (1 + len(asked))
    for demand, offer in zip(asked, offers, strict=True):
        for other, theirs in zip(asked, offers, strict=True):
            if offer < demand.milli:
                behind = theirs * demand.weight - offer * other.weight
                assert behind <= slack * (demand.weight + other.weight)


@given(capacity=capacities, asked=free_demands)
def test_demand_proportional_is_within_one_slot_of_the_exact_share(
    capacity: int, asked: list[Demand]
) -> None:
    offers = demand_proportional(capacity, asked)
    pairs = [
        (demand, offer)
        for demand, offer in zip(asked, offers, strict=True)
        if 0 < offer < demand.milli
    ]
    for demand, offer in pairs:
        for other, theirs in pairs:
            # offer / (demand x weight) is the same for all unsatisfied demands.
            ours = offer * other.milli * other.weight
            exact = theirs * demand.milli * demand.weight
            slack = 1000 * (demand.milli * demand.weight + other.milli * other.weight)
            assert abs(ours - exact) <= slack


def exact_parts(capacity: int, asked: Sequence[Demand]) -> list[Fraction]:
    """By demand times weight, without rounding; a met demand leaves the rest to the others."""
    parts = [Fraction(0) for _ in asked]
    left = Fraction(capacity)
    hungry = [i for i, demand in enumerate(asked) if demand.milli]
    while hungry:
        pull = sum(asked[i].milli * asked[i].weight for i in hungry)
        full = [i for i in hungry if left * asked[i].weight >= pull]
        for i in full or hungry:
            part = left * asked[i].milli * asked[i].weight / pull
            parts[i] = Fraction(asked[i].milli) if full else part
        left -= sum(asked[i].milli for i in full)
        hungry = [i for i in hungry if full and i not in full]
    return parts


@given(capacity=capacities, asked=st.lists(sized_demands(fixed=False), max_size=8))
def test_demand_proportional_gives_each_demand_its_exact_share_to_within_a_task(
    capacity: int, asked: list[Demand]
) -> None:
    """The capacity that others cannot use is added: less than two of the largest tasks."""
    # All task sizes are multiples of `size`; the smallest task may be larger.
    largest = max((max(demand.multiple_of, demand.smallest_task) for demand in asked), default=0)
    offers = demand_proportional(capacity, asked)
    for demand, offer, exact in zip(asked, offers, exact_parts(capacity, asked), strict=True):
        assert not demand.multiple_of or exact - offer < max(
            demand.multiple_of, demand.smallest_task
        )
        assert offer - exact < 2 * max(largest, 1000)


@given(divide=divisions, capacity=capacities, asked=st.lists(demands(grain=250), max_size=6))
def test_whole_slots_stay_whole_and_fractions_are_multiples_of_the_requested_grain(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    assert all(offer % 250 == 0 for offer in divide(capacity, asked))
    whole = [Demand(c.weight, c.milli * 4, c.fixed * 4, c.smallest_task * 4) for c in asked]
    assert all(offer % 1000 == 0 for offer in divide(capacity, whole))


@given(divide=divisions, capacity=capacities, asked=st.lists(sized_demands(), max_size=8))
def test_shares_stay_within_the_capacity_and_the_demands(
    divide: Division, capacity: int, asked: list[Demand]
) -> None:
    offers = divide(capacity, asked)
    assert sum(offers) <= max(capacity, fixed_of(asked))
    for demand, offer in zip(asked, offers, strict=True):
        assert demand.fixed <= offer <= demand.milli


@given(capacity=capacities, asked=st.lists(sized_demands(), max_size=8))
def test_shares_above_the_fixed_part_are_whole_tasks(capacity: int, asked: list[Demand]) -> None:
    for demand, offer in zip(asked, demand_proportional(capacity, asked), strict=True):
        assert not demand.multiple_of or (offer - demand.fixed) % demand.multiple_of == 0


@given(
    variant=st.sampled_from(list(VARIANTS)),
    capacity=capacities,
    asked=st.lists(st.one_of(sized_demands(), demands(gangs=True)), max_size=8),
    held=st.lists(st.integers(0, 9), min_size=8, max_size=8),
)
def test_what_each_claimant_holds_changes_no_share(
    variant: str, capacity: int, asked: list[Demand], held: list[int]
) -> None:
    """So starts and stops change no share, and a pool without other events becomes idle."""
    holding = [replace(c, held=each * 500) for c, each in zip(asked, held, strict=False)]
    assert VARIANTS[variant](capacity, holding) == VARIANTS[variant](capacity, asked)


@st.composite
def few_kinds(draw: st.DrawFn) -> list[Demand]:
    """Many demands of a few kinds, in any order of age."""
    kinds = draw(st.lists(st.one_of(sized_demands(), demands(gangs=True)), min_size=1, max_size=5))
    count = draw(st.sampled_from([6, 30, 90]))
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=count))


@settings(max_examples=300, deadline=None)
@given(
    variant=st.sampled_from(list(VARIANTS)),
    asked=few_kinds(),
    part=st.integers(0, 12),
    rest=st.sampled_from([0, 0, 500, 1000, 7000]),
)
def test_a_division_by_kinds_equals_a_division_demand_by_demand(
    variant: str, asked: list[Demand], part: int, rest: int
) -> None:
    if variant == "demand_proportional":
        # A claimant asks for a task above what is fixed, or for nothing.
        asked = [c for c in asked if c.milli == c.fixed or c.milli >= c.fixed + c.smallest_task]
    capacity = sum(demand.milli for demand in asked) * part // 10_000 * 1000 + rest
    assert VARIANTS[variant](capacity, asked) == REFERENCE[variant](capacity, asked)


@settings(max_examples=300, deadline=None)
@given(
    whose=st.lists(st.integers(0, 4), max_size=120),
    sizes=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    most=st.integers(-1, 200),
)
def test_the_oldest_of_several_kinds_equal_those_of_a_search_of_all_demands(
    whose: list[int], sizes: list[int], most: int
) -> None:
    kinds = [DemandKind(Demand(1, 1000), []) for _ in range(5)]
    for age, one in enumerate(whose):
        kinds[one].ages.append((age, 0))
    runs = [DemandRun(kind, kind.demand, 0, len(kind.ages)) for kind in kinds]
    taken = [0] * 5
    for one in whose:
        most_left = most - sum(size * count for size, count in zip(sizes, taken, strict=True))
        if sizes[one] > most_left:
            break
        taken[one] += 1
    assert oldest_within(runs, sizes, most) == taken
