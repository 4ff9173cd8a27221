"""What would be free were some tasks gone: tried on the pool's own index of the future, and taken
back.
"""

from collections.abc import Iterable

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
        shape = task.job.shape
        tried: list[Task] = []
        with self._draft.trial():
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
        for victim in reversed(tried[:-1]):
            places = self._place(shape)
            assert places is not None
            used = {room.ordinal for room, _ in places}
            self._lend(victim, back=True)
            if used.isdisjoint(self._ordinals(victim)):
                continue
            if self._place(shape) is None:
                self._lend(victim)
                needed.append(victim)
        return needed[::-1]

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
