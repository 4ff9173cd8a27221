"""What would be free were some tasks gone: tried on the pool's own index of the future, and taken
back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from yardmaster.core.scheduling.draft import Draft
from yardmaster.core.scheduling.entities import Pool, ReplicaState, Task
from yardmaster.core.scheduling.indexes import Room
from yardmaster.core.scheduling.placement import Place, Strategy, helps, place
from yardmaster.core.scheduling.shapes import Shape
from yardmaster.core.scheduling.state import Undo

What = tuple[Room, tuple[int, ...], int, int, int]


class Freeing:
    """A pool's future, for one cycle."""

    def __init__(self, draft: Draft, pool: Pool, choose: Strategy) -> None:
        self._draft = draft
        self._future = pool.future
        self._choose = choose

    def fewest(self, task: Task, victims: Iterable[Task]) -> list[Task]:
        """The fewest of `victims`, tried in their order, with whom gone the task fits."""
        changes = self._future.changes
        with self._draft.trial():
            needed = self._try(task.job.shape, victims)
        # All is as it was.
        self._future.changes = changes
        return needed

    def for_all(
        self,
        tasks: Iterable[Task],
        victims: Sequence[Task],
        allowed: Callable[[Sequence[Task]], bool],
    ) -> list[Task]:
        """Of `victims` those with whom gone the tasks fit, up to the first that cannot be helped.

        All of a set, what went before included, must be `allowed` together. They are tried in their
        order, then node by node.
        """
        changes = self._future.changes
        journal = self._draft.state.journal
        assert journal is not None
        chosen: list[Task] = []
        with self._draft.trial():
            for task in tasks:
                shape = task.job.shape
                places = self._place(shape)
                if places is None:
                    rest = [victim for victim in victims if victim not in chosen]
                    for some in (rest, *self._by_node(rest)):
                        mark = len(journal)
                        needed = self._try(shape, some)
                        if needed and allowed([*chosen, *needed]):
                            chosen += needed
                            places = self._place(shape)
                            break
                        self._draft.state.undo(mark)
                if places is None:
                    break
                self.keep(shape, places)
        self._future.changes = changes
        return chosen

    def _by_node(self, victims: Iterable[Task]) -> Iterator[list[Task]]:
        found: dict[int, list[Task]] = {}
        for victim in victims:
            for ordinal in dict.fromkeys(self._ordinals(victim)):
                found.setdefault(ordinal, []).append(victim)
        yield from found.values()

    def _try(self, shape: Shape, victims: Iterable[Task]) -> list[Task]:
        tried: list[Task] = []
        for victim in victims:
            self._lend(victim)
            tried.append(victim)
            if self._room_on(victim, shape) and self._place(shape) is not None:
                return self._hand_back(shape, tried)
        return []

    def keep(self, shape: Shape, places: Iterable[Place]) -> None:
        """Take places for a task out of the future, for the rest of the cycle."""
        for room, slots in places:
            self._take((room, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib))

    def _place(self, shape: Shape) -> list[Place] | None:
        return place(self._future, shape, self._choose)

    def _room_on(self, victim: Task, shape: Shape) -> bool:
        rooms = self._future.rooms
        return any(helps(rooms[ordinal], shape) for ordinal in self._ordinals(victim))

    def _hand_back(self, shape: Shape, tried: list[Task]) -> list[Task]:
        """Spare whom it helps nothing to stop, the most valuable first."""
        needed = [tried[-1]]
        rooms = self._future.rooms
        used: set[int] = set()
        for victim in reversed(tried[:-1]):
            if not used:
                used = self._used(shape)
            ordinals = self._ordinals(victim)
            self._lend(victim, back=True)
            if used.isdisjoint(ordinals):
                # Only a room that still has a place could now be the better choice.
                if any(rooms[ordinal].holds(shape) for ordinal in ordinals):
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
        return {room.ordinal for room, _ in self._place(shape) or ()}

    def _ordinals(self, victim: Task) -> list[int]:
        run = victim.run
        assert run is not None
        nodes = self._draft.state.nodes
        found = (nodes[placement.node].ordinal for placement in run.placements)
        return [ordinal for ordinal in found if ordinal in self._future.rooms]

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
        journal = self._draft.state.journal
        assert journal is not None
        journal.append(undo)
