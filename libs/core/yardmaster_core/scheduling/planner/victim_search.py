"""What would be free were some tasks gone: tried on the pool's own index of the future, and taken
back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from yardmaster_core.scheduling.planner.draft import Draft
from yardmaster_core.scheduling.planner.placement import Place, Strategy, helps, place
from yardmaster_core.scheduling.planner.policy import PreemptionLimit
from yardmaster_core.scheduling.state.cluster import Undo
from yardmaster_core.scheduling.state.entities import Pool, ReplicaState, Task
from yardmaster_core.scheduling.state.indexes import CapacityIndex, NodeCapacity
from yardmaster_core.scheduling.state.shapes import WHOLE, Fit, Shape

What = tuple[NodeCapacity, tuple[int, ...], int, int, int]
#: On one node: which of the victims, the task, and the gpu_milli that it holds there.
Lent = tuple[int, Task, int]


class VictimSearch:
    """A pool's future, for one cycle."""

    def __init__(self, draft: Draft, pool: Pool, choose: Strategy) -> None:
        self._draft = draft
        self._future = pool.future
        self._choose = choose

    def enough(self, task: Task, victims: Iterable[Task], *, spare: bool = True) -> list[Task]:
        """Those of `victims`, tried in their order, with whom gone the task fits; `spare`: but for
        those whose going does not help.
        """
        changes = self._future.changes
        with self._draft.trial():
            needed = self._try(task.job.shape, victims, spare=spare)
        # All is as it was.
        self._future.changes = changes
        return needed

    def for_all(
        self, tasks: Iterable[Task], victims: Sequence[Task], allowance: PreemptionLimit
    ) -> set[Task]:
        """Of `victims` those with whom gone the tasks fit, up to the first that cannot be helped.

        Of the nodes on which a task, or a part of it, would fit the one comes first for which the
        fewest of `victims`, in their order, have to be gone through. Costs a step for each victim
        and size that is asked for, then what is tried.
        """
        changes = self._future.changes
        sources = Sources(self._future, self._by_node(victims), allowance)
        with self._draft.trial():
            for task in tasks:
                shape = task.job.shape
                places = self._place(shape)
                while places is None:
                    mark = len(self._draft.tried)
                    needed = self._try(shape, sources.of(shape))
                    if not needed:
                        break
                    if allowance.allows(needed):
                        sources.use(shape, needed)
                        places = self._place(shape)
                        break
                    self._draft.take_back(mark)
                    sources.pass_over(shape)
                if places is None:
                    break
                self.keep(shape, places)
        self._future.changes = changes
        return sources.used

    def _by_node(self, victims: Iterable[Task]) -> dict[int, list[Lent]]:
        nodes, capacities = self._draft.state.nodes, self._future.capacities
        found: dict[int, list[Lent]] = {}
        for at, victim in enumerate(victims):
            run = victim.run
            assert run is not None
            for replica, placement in enumerate(run.placements):
                if run.replicas[replica] >= ReplicaState.RELEASED:
                    continue
                ordinal = nodes[placement.node].ordinal
                if ordinal in capacities:
                    milli = placement.gpu_milli * len(placement.slots)
                    found.setdefault(ordinal, []).append((at, victim, milli))
        return found

    def _try(self, shape: Shape, victims: Iterable[Task], *, spare: bool = True) -> list[Task]:
        tried: list[Task] = []
        for victim in victims:
            self._lend(victim)
            tried.append(victim)
            if self._capacity_on(victim, shape) and self._place(shape) is not None:
                return self._hand_back(shape, tried) if spare else tried
        return []

    def keep(self, shape: Shape, places: Iterable[Place]) -> None:
        """Take places for a task out of the future, for the rest of the cycle."""
        for capacity, slots in places:
            self._take((capacity, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib))

    def _place(self, shape: Shape) -> list[Place] | None:
        return place(self._future, shape, self._choose)

    def _capacity_on(self, victim: Task, shape: Shape) -> bool:
        capacities = self._future.capacities
        return any(helps(capacities[ordinal], shape) for ordinal in self._ordinals(victim))

    def _hand_back(self, shape: Shape, tried: list[Task]) -> list[Task]:
        """Spare whom it helps nothing to stop, the most valuable first."""
        needed = [tried[-1]]
        capacities = self._future.capacities
        used: set[int] = set()
        for victim in reversed(tried[:-1]):
            if not used:
                used = self._used(shape)
            ordinals = self._ordinals(victim)
            self._lend(victim, back=True)
            if used.isdisjoint(ordinals):
                # Only a room that still has a place could now be the better choice.
                if any(capacities[ordinal].holds(shape) for ordinal in ordinals):
                    used = set()
                continue
            after = self._used(shape)
            if after:
                used = after
            else:
                self._lend(victim)
                needed.append(victim)
        return needed[::-1]

    def _used(self, shape: Shape) -> set[int]:
        """The rooms where the task would be placed."""
        return {capacity.ordinal for capacity, _ in self._place(shape) or ()}

    def _ordinals(self, victim: Task) -> list[int]:
        run = victim.run
        assert run is not None
        nodes = self._draft.state.nodes
        found = (nodes[placement.node].ordinal for placement in run.placements)
        return [ordinal for ordinal in found if ordinal in self._future.capacities]

    def _lend(self, victim: Task, *, back: bool = False) -> None:
        run = victim.run
        assert run is not None
        for replica, placement in enumerate(run.placements):
            if run.replicas[replica] >= ReplicaState.RELEASED:
                continue
            what = (
                *(self._draft.state.nodes[placement.node].future, placement.slots),
                *(placement.gpu_milli, placement.cpu_milli, placement.memory_mib),
            )
            if back:
                self._take(what)
            else:
                self._give(what)

    def _take(self, what: What) -> None:
        self._future.take(*what)
        self._note((self._future.give, what))

    def _give(self, what: What) -> None:
        self._future.give(*what)
        self._note((self._future.take, what))

    def _note(self, undo: Undo) -> None:
        self._draft.tried.append(undo)


class Sources:
    """Where the room that several tasks ask for can come from: victims, node by node.

    A node's place in the line of those who ask for the same is how far one has to go through the
    victims until a part of the task fits there. What others use of a node only moves it back, so a
    place is looked at again when its turn comes.
    """

    def __init__(
        self, future: CapacityIndex, nodes: Mapping[int, list[Lent]], allowance: PreemptionLimit
    ) -> None:
        self._future = future
        self._nodes = nodes
        self._allowance = allowance
        self._lines: dict[Fit, list[tuple[int, int]]] = {}
        #: The nodes of which victims were handed out last.
        self._met: list[tuple[int, int]] = []
        #: Victims that are to be stopped.
        self.used: set[Task] = set()

    def of(self, shape: Shape) -> Iterator[Task]:
        """The victims of one node after another, until nobody asks for more."""
        line = self._line(shape)
        self._met = []
        given: set[Task] = set()
        while line:
            at, ordinal = heappop(line)
            now = self._needed(shape, ordinal)
            if now is None:
                continue
            if now > at:
                heappush(line, (now, ordinal))
                continue
            self._met.append((at, ordinal))
            for number, victim, _ in self._nodes[ordinal]:
                if number <= at and victim not in given and self._counts(victim):
                    given.add(victim)
                    yield victim

    def use(self, shape: Shape, victims: Iterable[Task]) -> None:
        """Those are to be stopped."""
        self.used.update(victims)
        self._return(shape, self._met)

    def pass_over(self, shape: Shape) -> None:
        """The first node that was met is of no use to who asks for that."""
        self._return(shape, self._met[1:])

    def _return(self, shape: Shape, met: list[tuple[int, int]]) -> None:
        for place_in_line in met:
            heappush(self._lines[shape.fit], place_in_line)

    def _line(self, shape: Shape) -> list[tuple[int, int]]:
        line = self._lines.get(shape.fit)
        if line is None:
            fitting = self._future.available & self._future.matching(shape)
            nodes = [ordinal for ordinal in self._nodes if fitting >> ordinal & 1]
            found = ((self._needed(shape, ordinal), ordinal) for ordinal in nodes)
            line = [(at, ordinal) for at, ordinal in found if at is not None]
            heapify(line)
            self._lines[shape.fit] = line
        return line

    def _needed(self, shape: Shape, ordinal: int) -> int | None:
        """Up to which victim all of a node's have to go until it has enough GPUs for a part of the
        task; -1: it has, None: all are not enough.
        """
        capacity = self._future.capacities[ordinal]
        if helps(capacity, shape):
            return -1
        gpus = min(shape.gpus, capacity.size) if shape.whole_nodes else shape.gpus
        free = capacity.whole * WHOLE if shape.gpu_milli == WHOLE else capacity.gpu_milli
        missing = gpus * shape.gpu_milli - free
        last = None
        for number, victim, milli in self._nodes[ordinal]:
            if self._counts(victim):
                last = number
                missing -= milli
                if 0 >= missing > -milli:
                    return number
        # What it lacks is no GPU: its victims may hold that.
        return last if missing <= 0 else None

    def _counts(self, victim: Task) -> bool:
        return victim not in self.used and self._allowance.may(victim)
