"""`spread`: even shares, few moves, and the latest assignment wins."""

from hypothesis import given
from hypothesis import strategies as st

from yardmaster_eventlog.membership import CellClaim, spread


def all_of(count: int) -> frozenset[int]:
    return frozenset(range(count))


def test_a_new_group_shares_evenly() -> None:
    given = spread({name: CellClaim(all_of(5)) for name in "abc"})
    assert sorted(map(len, given.values())) == [1, 2, 2]
    assert all(since == 1 for held in given.values() for since in held.values())


def test_holders_keep_partitions_and_a_new_member_gets_the_most_recently_assigned() -> None:
    given = spread({"a": CellClaim(all_of(2), {0: 4, 1: 2}, 4), "b": CellClaim(all_of(2))})
    assert given == {"a": {1: 2}, "b": {0: 5}}


def test_a_partition_without_holder_goes_to_the_member_with_the_fewest() -> None:
    given = spread({"a": CellClaim(all_of(3), {0: 1, 1: 1}, 2), "b": CellClaim(all_of(3), {}, 2)})
    assert given == {"a": {0: 1, 1: 1}, "b": {2: 3}}


def test_a_member_that_missed_a_takeover_does_not_get_its_partition_back() -> None:
    slept = CellClaim(all_of(1), {0: 1}, 1)
    took_over = CellClaim(all_of(1), {0: 2}, 2)
    assert spread({"a": slept, "b": took_over}) == {"a": {}, "b": {0: 2}}
    assert spread({"a": took_over, "b": slept}) == {"a": {0: 2}, "b": {}}


def test_a_withdrawn_partition_goes_to_another_member() -> None:
    given = spread(
        {"a": CellClaim(frozenset({1}), {0: 1}, 1), "b": CellClaim(all_of(2), {1: 1}, 1)}
    )
    assert given == {"a": {}, "b": {0: 2, 1: 1}} or given == {"a": {1: 2}, "b": {0: 2}}


def test_a_group_without_offers_or_members_shares_nothing() -> None:
    assert spread({}) == {}
    assert spread({"a": CellClaim()}) == {"a": {}}


claims = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(
        CellClaim,
        st.frozensets(st.integers(0, 6)),
        st.dictionaries(st.integers(0, 6), st.integers(1, 9)),
        st.integers(0, 9),
    ),
    max_size=6,
)


@given(claims)
def test_each_partition_goes_to_one_that_offers_it_and_a_second_round_moves_nothing(
    claims: dict[str, CellClaim],
) -> None:
    given = spread(claims)
    offered = {number for claim in claims.values() for number in claim.offers}
    held = [number for each in given.values() for number in each]
    assert sorted(held) == sorted(offered)
    assert all(set(each) <= claims[member].offers for member, each in given.items())
    rounds = max((claim.round for claim in claims.values()), default=0) + 1
    again = {
        member: CellClaim(claims[member].offers, each, rounds) for member, each in given.items()
    }
    assert spread(again) == given


@given(st.integers(1, 6), claims)
def test_when_all_members_offer_all_no_two_shares_differ_by_more_than_one(
    count: int, claims: dict[str, CellClaim]
) -> None:
    given = spread(
        {name: CellClaim(all_of(count), each.holds, each.round) for name, each in claims.items()}
    )
    sizes = [len(each) for each in given.values()]
    assert not sizes or max(sizes) - min(sizes) <= 1
