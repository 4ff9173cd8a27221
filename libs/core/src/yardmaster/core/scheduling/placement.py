"""Where a task is placed: strategies that order rooms, and the placing of whole gangs.

A strategy is a function from an index and a shape to the rooms that hold one replica, best first.
Every pool may use every strategy, whatever its policy.

Replicas of a gang are equal, so filling one room after another finds a place for all of them
whenever there is one: what a room can hold does not depend on the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from yardmaster.core.errors import UnknownPlacement
from yardmaster.core.scheduling.indexes import STEP, FreeIndex, Room
from yardmaster.core.scheduling.shapes import WHOLE, Shape

Chooser = Callable[[FreeIndex, Shape], Iterator[Room]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to choose rooms. `sticky`: the room just chosen is the choice for an equal task while
    it holds one.
    """

    name: str
    rooms: Chooser
    sticky: bool = False


#: One replica's place: the room and its slots.
Place = tuple[Room, tuple[int, ...]]


def _rooms(index: FreeIndex, shape: Shape, mask: int) -> Iterator[Room]:
    rooms = index.rooms
    while mask:
        lowest = mask & -mask
        room = rooms[lowest.bit_length() - 1]
        if room.holds(shape):
            yield room
        mask ^= lowest


def _by_free(index: FreeIndex, shape: Shape, mask: int, counts: Iterable[int]) -> Iterator[Room]:
    for count in counts:
        found = index.whole[count] & mask
        if found:
            yield from _rooms(index, shape, found)


def best_fit(index: FreeIndex, shape: Shape) -> Iterator[Room]:
    """Rooms with the fewest free GPUs first, so that whole nodes stay free for those who need them.

    A share of a GPU goes to the fullest shared slot that has room, then to the fullest node.
    """
    mask = index.candidates(shape)
    if not mask:
        return
    if 0 < shape.gpu_milli < WHOLE and shape.gpus == 1:
        top = len(index.shared) - 1
        for level in range(shape.gpu_milli // STEP, top + 1):
            found = index.shared[level] & mask
            if level < top:
                found &= ~index.shared[level + 1]
            yield from _rooms(index, shape, found)
    least = shape.gpus if shape.gpu_milli == WHOLE else 0
    yield from _by_free(index, shape, mask, range(least, len(index.whole)))


def worst_fit(index: FreeIndex, shape: Shape) -> Iterator[Room]:
    """Rooms with the most free GPUs first, so that load spreads."""
    mask = index.candidates(shape)
    if not mask:
        return
    least = shape.gpus if shape.gpu_milli == WHOLE else 0
    yield from _by_free(index, shape, mask, range(len(index.whole) - 1, least - 1, -1))


PLACEMENTS: Final[Mapping[str, Strategy]] = {
    s.name: s
    for s in (Strategy("best_fit", best_fit, sticky=True), Strategy("worst_fit", worst_fit))
}


def strategy(name: str) -> Strategy:
    """The placement strategy of that name.

    Raises:
        UnknownPlacement.
    """
    try:
        return PLACEMENTS[name]
    except KeyError:
        raise UnknownPlacement(name=name, known=", ".join(PLACEMENTS)) from None


def place(
    index: FreeIndex, shape: Shape, choose: Strategy, also: FreeIndex | None = None
) -> list[Place] | None:
    """A place for every replica, or None; the indexes are left as they were.

    With `also`, each room must have the space in that index too (what is free now, and not
    promised).
    """
    if shape.replicas == 1:
        for room in choose.rooms(index, shape):
            if also is None or also.rooms[room.ordinal].holds(shape):
                return [(room, room.pick(shape))]
        return None
    if shape.total_gpu_milli > index.free_milli:
        return None
    places: list[Place] = []
    used: list[tuple[FreeIndex, Room, tuple[int, ...]]] = []
    while len(places) < shape.replicas:
        chosen = _first(choose.rooms(index, shape), shape, also)
        if chosen is None:
            break
        views = [(index, chosen)]
        if also is not None:
            views.append((also, also.rooms[chosen.ordinal]))
        while len(places) < shape.replicas and all(one.holds(shape) for _, one in views):
            places.append((chosen, chosen.pick(shape)))
            for view, one in views:
                slots = one.pick(shape)
                view.take(one, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib)
                used.append((view, one, slots))
    for view, one, slots in reversed(used):
        view.give(one, slots, shape.gpu_milli, shape.cpu_milli, shape.memory_mib)
    return places if len(places) == shape.replicas else None


def _first(rooms: Iterator[Room], shape: Shape, also: FreeIndex | None) -> Room | None:
    for room in rooms:
        if also is None or also.rooms[room.ordinal].holds(shape):
            return room
    return None


def places_in(rooms: Iterable[Room], shape: Shape) -> int:
    """How many replicas of `shape` those rooms hold together, each on its own; stops at all of
    them.
    """
    total = 0
    for room in rooms:
        total += _fold(room, shape)
        if total >= shape.replicas:
            break
    return total


def _shared_fold(shares: list[int], gpus: int) -> int:
    # Each replica takes one share of `gpus` different slots, so of no slot more than there are
    # replicas.
    most = sum(shares) // gpus
    while sum(min(count, most) for count in shares) < most * gpus:
        most -= 1
    return most


def _fold(room: Room, shape: Shape) -> int:
    most = shape.replicas
    if shape.gpus:
        milli = shape.gpu_milli
        if milli == WHOLE:
            most = min(most, room.whole // shape.gpus)
        else:
            most = min(most, _shared_fold([free // milli for free in room.slots], shape.gpus))
    if shape.cpu_milli:
        most = min(most, room.cpu_milli // shape.cpu_milli)
    if shape.memory_mib:
        most = min(most, room.memory_mib // shape.memory_mib)
    return most
