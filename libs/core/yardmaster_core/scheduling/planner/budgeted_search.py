"""Search for victims node by node, where a budget limits what each claimant may lose.

Victims are added one after another, in the policy's order, to the nodes on which they run. As soon
as a node would hold a part of the task without its victims, they are taken, if the budget permits
it. The search ends when the task fits; victims that turned out unnecessary keep running. So the
node comes first that needs the shortest prefix of the victims.

Adding a victim costs a step per replica; a try costs a step per victim of the node.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Final

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import PlacementStrategy, helps
from yardmaster_core.scheduling.planner.policy import BudgetRules, PreemptionBudget
from yardmaster_core.scheduling.planner.searched_nodes import bits
from yardmaster_core.scheduling.planner.victim_search import HeldReplicas, VictimSearch
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.shapes import Fit, Shape
from yardmaster_core.scheduling.state.tasks import Task

#: With at most this many nodes to search, victims are found by node instead of by owner.
MAX_NODES: Final = 64


@dataclass(slots=True)
class NodeVictims:
    """The victims of one node that the budget permits together, and the gpu_milli that they hold
    there.
    """

    budget: PreemptionBudget
    victims: list[Task] = field(default_factory=list)
    milli: int = 0


class BudgetedSearch(VictimSearch):
    """Searches victims in one pool, on its future capacity, during one cycle."""

    def __init__(
        self,
        draft: Draft,
        pool: Pool,
        strategy: PlacementStrategy,
        placed_shape: Callable[[Task], Shape],
    ) -> None:
        super().__init__(draft, pool, strategy, placed_shape)
        self._pool = pool
        #: Fit -> the change count of the future capacity at which no victims helped.
        self._failed_at: dict[Fit, int] = {}

    def within(
        self,
        task: Task,
        victims: Callable[[], Iterable[Task]],
        new_rules: Callable[[], BudgetRules],
        left_out: Callable[[Task], bool],
    ) -> list[Task]:
        """Return victims whose removal lets the task fit, and that the budget permits together;
        empty: none were found.

        `left_out`: whether a victim must not be preempted in this cycle, but perhaps in the next.
        Nodes on which an equal task found no victims before are searched again only if something
        changed there. For a task that may need several nodes, all are searched if anything changed.
        """
        shape, changes = self._placed_shape(task), self._future.changes
        if self._failed_at.get(shape.fit) == changes:
            return []
        rules = new_rules()
        every_node = reduce(or_, self._future.of_size.values(), 0)
        nodes = every_node & ~self._searched(shape.fit, rules)
        if not nodes:
            self._failed_at[shape.fit] = changes
            return []
        if not self._fits_on_one_node(shape):
            nodes = every_node
        if nodes.bit_count() <= MAX_NODES:
            victims = partial(rules.among, self._tasks_on(nodes))
        unclear: set[int] = set()
        with self._draft.trial():
            found = self._search(shape, self._allowed(victims(), left_out, unclear), rules, nodes)
        # The trial is rolled back, so the index is unchanged.
        self._future.changes = changes
        if not found:
            self._failed_at[shape.fit] = changes
            if not rules.is_protected():
                rules.searched.note(shape.fit, every_node & ~bits(unclear), rules.limits)
        return found

    def _searched(self, fit: Fit, rules: BudgetRules) -> int:
        """Return the nodes on which nothing changed since a search for an equal task failed."""
        searched, owners = rules.searched.failed(fit, rules.limits)
        if searched and owners:
            victims = (victim for owner in owners for victim in rules.victims_of(owner))
            searched &= ~bits({each for victim in victims for each in self._ordinals(victim)})
        return searched

    def _fits_on_one_node(self, shape: Shape) -> bool:
        """Whether a task needs one node, whichever it gets."""
        if not shape.whole_nodes:
            return shape.replicas == 1
        matching = self._future.matching(shape)
        sizes = self._future.of_size.items()
        return not any(nodes & matching for size, nodes in sizes if size < shape.gpus)

    def _tasks_on(self, nodes: int) -> dict[Task, None]:
        found: dict[Task, None] = {}
        while nodes:
            lowest = nodes & -nodes
            node = self._pool.nodes[lowest.bit_length() - 1]
            found.update(dict.fromkeys(node.open.values()))
            nodes ^= lowest
        return found

    def _allowed(
        self, victims: Iterable[Task], left_out: Callable[[Task], bool], unclear: set[int]
    ) -> Iterator[Task]:
        """Yield the victims that are not left out; the nodes of the others are unclear."""
        for victim in victims:
            if left_out(victim):
                unclear.update(self._ordinals(victim))
            else:
                yield victim

    def _search(
        self, shape: Shape, victims: Iterable[Task], rules: BudgetRules, nodes: int
    ) -> list[Task]:
        """Search the victims on `nodes`."""
        future = self._future
        allowed = nodes & future.available & future.matching(shape)
        least = 0 if shape.whole_nodes else shape.replica_gpu_milli
        # Replicas that must be alone on their nodes are not counted.
        held = None if shape.whole_nodes else HeldReplicas(future, shape)
        by_node: dict[int, NodeVictims] = {}
        taken: list[Task] = []
        spent = rules.new_budget()
        for victim in victims:
            for ordinal, milli in self._held_on(victim):
                if not allowed >> ordinal & 1:
                    continue
                node = by_node.get(ordinal)
                if node is None:
                    node = by_node[ordinal] = NodeVictims(rules.new_budget())
                if victim not in node.victims:
                    if not node.budget.spend((victim,)):
                        continue
                    node.victims.append(victim)
                node.milli += milli
                if future.capacities[ordinal].gpu_milli + node.milli < least:
                    continue
                some = [each for each in node.victims if each not in taken]
                if self._take_victims(shape, ordinal, some, held, spent):
                    taken += some
                    node.milli = 0
                    if self._fits(shape, held):
                        return self._without_unneeded(shape, taken, held)
        return []

    def _held_on(self, victim: Task) -> list[tuple[int, int]]:
        """Return the nodes of a victim that may hold other tasks, with the gpu_milli on each."""
        run = victim.run
        assert run is not None
        nodes = self._draft.state.nodes
        found = [
            (nodes[held.node].ordinal, held.gpu_milli * len(held.slots))
            for replica, held in enumerate(run.placements)
            if run.replicas[replica] < ReplicaState.RELEASED
        ]
        return [(ordinal, milli) for ordinal, milli in found if ordinal in self._future.capacities]

    def _take_victims(
        self,
        shape: Shape,
        ordinal: int,
        victims: Sequence[Task],
        held: HeldReplicas | None,
        spent: PreemptionBudget,
    ) -> bool:
        """Remove the victims of a node if it then holds more of the task, and the budget permits
        it; return whether they are removed.
        """
        if not victims:
            return False
        before = held.total if held is not None else 0
        mark = len(self._draft.undo_log)
        for victim in victims:
            self._remove(victim)
        ordinals = [each for victim in victims for each in self._ordinals(victim)]
        if held is None:
            more = helps(self._future.capacities[ordinal], shape)
        else:
            held.update(ordinals)
            more = held.total > before
        if more and spent.spend(victims):
            return True
        self._draft.roll_back(mark)
        if held is not None:
            held.update(ordinals)
        return False

    def _fits(self, shape: Shape, held: HeldReplicas | None) -> bool:
        if held is not None:
            return held.total >= shape.replicas
        return self._find_placement(shape) is not None

    def _without_unneeded(
        self, shape: Shape, taken: Sequence[Task], held: HeldReplicas | None
    ) -> list[Task]:
        """Return the victims that the task needs; the last ones are put back first."""
        needed = []
        for victim in reversed(taken):
            ordinals = self._ordinals(victim)
            self._remove(victim, undo=True)
            if held is not None:
                held.update(ordinals)
            if not self._fits(shape, held):
                self._remove(victim)
                if held is not None:
                    held.update(ordinals)
                needed.append(victim)
        return needed[::-1]
