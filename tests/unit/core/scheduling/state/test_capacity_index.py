"""The capacity index compared with a scan of all nodes."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from yardmaster_core.scheduling.planner.placement import PLACEMENTS, best_fit, worst_fit
from yardmaster_core.scheduling.state.capacity_index import CapacityIndex
from yardmaster_core.scheduling.state.node_capacity import NodeCapacity
from yardmaster_core.scheduling.state.shapes import WHOLE, Shape, shape_of
from yardmaster_core.testing import admitted_spec
from yardmaster_schemas.resources import Resources

TYPES = ("any", "sxm")
resources = st.one_of(
    st.builds(
        Resources,
        gpus=st.integers(1, 4),
        gpu_milli=st.sampled_from([200, 500, 950, 1000, 1000]),
        cpu_milli=st.integers(0, 9),
        memory_mib=st.integers(0, 9),
    ),
    st.builds(Resources, cpu_milli=st.integers(0, 9), memory_mib=st.integers(0, 9)),
)
shapes = st.builds(
    lambda wanted, types: shape(wanted, node_types=types),
    resources,
    st.sampled_from([(), ("sxm",), ("sxm", "any"), ("none",)]),
)
nodes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 12), st.sampled_from(TYPES)),
    min_size=1,
    max_size=6,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), shapes, st.integers(0, 5)),
        st.tuples(st.just("release"), st.none(), st.integers(0, 20)),
        st.tuples(st.sampled_from(["open", "close"]), st.none(), st.integers(0, 5)),
        st.tuples(st.just("move"), st.none(), st.integers(0, 5)),
    ),
    max_size=25,
)


def shape(wanted: Resources, *, replicas: int = 1, **spec: Any) -> Shape:
    """The shape of a task."""
    fields = {"replicas_min": replicas, "replicas_max": replicas, "resources": wanted, **spec}
    return shape_of("job", "p", admitted_spec(**fields))


class Model:
    """Capacities without an index, searched by scans."""

    def __init__(self, offers: list[tuple[int, int, int, str]]) -> None:
        self.index = CapacityIndex()
        self.types = [offer[3] for offer in offers]
        self.open = [True] * len(offers)
        self.taken: list[tuple[NodeCapacity, Any]] = []
        for ordinal, (gpus, cpu, memory, node_type) in enumerate(offers):
            capacity = NodeCapacity(ordinal, gpus, cpu, memory)
            self.index.add(capacity, node_type)
            self.index.open_node(capacity)

    @property
    def capacities(self) -> list[NodeCapacity]:
        return [self.index.capacities[o] for o in sorted(self.index.capacities)]

    def fitting(self, wanted: Shape) -> list[NodeCapacity]:
        """Open nodes on which one replica fits, by checking every slot."""
        return [
            capacity
            for capacity, node_type, open_ in zip(
                self.capacities, self.types, self.open, strict=True
            )
            if open_
            and (not wanted.node_types or node_type in wanted.node_types)
            and sum(1 for free in capacity.slots if free >= wanted.gpu_milli > 0) >= wanted.gpus
            and capacity.cpu_milli >= wanted.cpu_milli
            and capacity.memory_mib >= wanted.memory_mib
        ]

    def step(self, what: str, wanted: Shape | None, number: int) -> None:
        """Apply one change to the index and to the model."""
        ordinal = number % len(self.capacities)
        capacity = self.capacities[ordinal]
        if what == "take" and wanted is not None:
            if capacity in self.fitting(wanted):
                part = (
                    *(
                        capacity.pick(wanted),
                        wanted.gpu_milli,
                        wanted.cpu_milli,
                        wanted.memory_mib,
                    ),
                )
                self.index.take(capacity, *part)
                self.taken.append((capacity, part))
        elif what == "release":
            if self.taken:
                capacity, part = self.taken.pop(number % len(self.taken))
                self.index.release(capacity, *part)
        elif what == "move":
            if not any(held is capacity for held, _ in self.taken):
                self.index.remove(capacity, self.types[ordinal])
                self.index.add(capacity, self.types[ordinal])
                self.open[ordinal] = False
        elif what == "open":
            self.index.open_node(capacity)
            self.open[ordinal] = True
        else:
            self.index.close_node(capacity)
            self.open[ordinal] = False


@given(nodes, steps, shapes)
def test_the_index_finds_the_nodes_that_a_scan_finds(
    offers: list[Any], changes: list[Any], wanted: Shape
) -> None:
    model = Model(offers)
    for change in changes:
        model.step(*change)
        expected = {capacity.ordinal for capacity in model.fitting(wanted)}
        for name, strategy in PLACEMENTS.items():
            found = [capacity.ordinal for capacity in strategy.order(model.index, wanted, -1)]
            assert set(found) == expected, f"{name} after {change}"
        mask = model.index.candidates(wanted)
        assert all(mask >> o & 1 for o in expected), "candidates lack nodes on which it fits"


@given(nodes, steps, shapes)
def test_nodes_come_in_the_order_of_the_strategy(
    offers: list[Any], changes: list[Any], wanted: Shape
) -> None:
    model = Model(offers)
    for change in changes:
        model.step(*change)
    if wanted.gpu_milli == WHOLE:
        fewest_first = [r.whole for r in best_fit(model.index, wanted)]
        assert fewest_first == sorted(fewest_first)
    elif not wanted.gpus:
        used_first = [
            (r.idle, r.gpuless_left if r.idle else r.whole) for r in best_fit(model.index, wanted)
        ]
        assert used_first == sorted(used_first)
    else:
        fullest = next(iter(best_fit(model.index, wanted)), None)
        shared = [r for r in model.fitting(wanted) if r.shared >= wanted.gpu_milli]
        if wanted.gpus == 1 and shared:
            assert fullest is not None
            assert fullest.shared // 50 == min(r.shared // 50 for r in shared)
    emptiest_first = [
        r.gpuless_left / model.index.max_gpuless
        if r.idle and not wanted.gpus
        else r.whole / (r.size or 1)
        for r in worst_fit(model.index, wanted)
    ]
    assert emptiest_first == sorted(emptiest_first, reverse=True)


@given(nodes, steps)
def test_sums_and_counts_match_the_slots(offers: list[Any], changes: list[Any]) -> None:
    model = Model(offers)
    for change in changes:
        model.step(*change)
        free = sum(r.gpu_milli for r, o in zip(model.capacities, model.open, strict=True) if o)
        assert model.index.free_milli == free
        for capacity in model.capacities:
            assert capacity.whole == capacity.slots.count(WHOLE)
            assert capacity.shared == max((f for f in capacity.slots if f < WHOLE), default=0)
            assert all(0 <= f <= WHOLE for f in capacity.slots)


@given(nodes, steps)
def test_release_of_everything_restores_capacities(offers: list[Any], changes: list[Any]) -> None:
    model = Model(offers)
    for change in changes:
        model.step(*change)
    while model.taken:
        model.step("release", None, 0)
    for capacity, (gpus, cpu, memory, _) in zip(model.capacities, offers, strict=True):
        assert capacity.slots == [WHOLE] * gpus
        assert (capacity.whole, capacity.shared) == (gpus, 0)
        assert (capacity.cpu_milli, capacity.memory_mib) == (cpu, memory)


@given(nodes, steps, shapes)
def test_largest_is_the_free_capacity_of_the_emptiest_node(
    offers: list[Any], changes: list[Any], wanted: Shape
) -> None:
    model = Model(offers)
    for change in changes:
        model.step(*change)
    capacities = [
        capacity
        for capacity, node_type, open_ in zip(
            model.capacities, model.types, model.open, strict=True
        )
        if open_ and (not wanted.node_types or node_type in wanted.node_types)
    ]
    whole = max((capacity.whole for capacity in capacities), default=0) * WHOLE
    shared = max((capacity.shared // 50 * 50 for capacity in capacities), default=0)
    assert model.index.largest(wanted) == (whole or shared)


def test_a_slot_taken_twice_is_released_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        index = CapacityIndex()
        capacity = NodeCapacity(0, 2, 0, 0)
        index.add(capacity, "any")
        index.open_node(capacity)
        parts = [((0,), 500, 0, 0), ((0,), 1000, 0, 0)]
        for part in parts:
            index.take(capacity, *part)
        for i in order:
            index.release(capacity, *parts[i])
        index.flush()
        assert (capacity.slots, capacity.whole, capacity.shared) == ([1000, 1000], 2, 0)


disabling = st.lists(
    st.one_of(
        st.tuples(st.just("disable"), st.sets(st.integers(0, 2)), st.integers(0, 1)),
        st.tuples(st.sampled_from(["take", "release"]), st.just(set()), st.integers(0, 5)),
        st.tuples(st.just("look"), st.just(set()), st.just(0)),
    ),
    max_size=20,
)


@given(disabling)
@example([("disable", {1}, 1), ("look", set(), 0), ("take", set(), 1), ("disable", set(), 1)])
@example([("disable", {1}, 1), ("look", set(), 0), ("disable", set(), 1), ("take", set(), 1)])
def test_idle_nodes_do_not_depend_on_the_order_of_changes(
    changes: list[tuple[str, set[int], int]],
) -> None:
    index = CapacityIndex()
    capacities = [NodeCapacity(0, 3, 0, 0), NodeCapacity(1, 2, 0, 0)]
    for capacity in capacities:
        index.add(capacity, "any")
        index.open_node(capacity)
    held: list[tuple[NodeCapacity, int]] = []
    for what, slots, number in changes:
        capacity = capacities[number % 2]
        if what == "disable":
            index.disable(capacity, tuple(sorted(s for s in slots if s < len(capacity.slots))))
        elif what == "take" and capacity.whole:
            held.append((capacity, capacity.slots.index(WHOLE)))
            index.take(capacity, (held[-1][1],), WHOLE, 0, 0)
        elif what == "release" and held:
            owner, slot = held.pop(number % len(held))
            index.release(owner, (slot,), WHOLE, 0, 0)
        elif what == "look":
            index.flush()
    index.flush()
    for capacity in capacities:
        used = {slot for owner, slot in held if owner is capacity}
        enabled = set(range(len(capacity.slots))) - set(capacity.disabled)
        assert bool(index.idle >> capacity.ordinal & 1) == (bool(enabled) and not used)
        assert index.of_size[len(enabled)] >> capacity.ordinal & 1
        assert capacity.whole == len(enabled - used)
    free = sum(r.whole for r in capacities) * WHOLE
    assert index.free_milli == free
