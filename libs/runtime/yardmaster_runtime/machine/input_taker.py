"""Takes the inputs of a cycle: reads them first, then checks and applies them in order."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from yardmaster_eventlog.reader import Cursor
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.inputs import (
    MachineInput,
    RefusedRecord,
    TakenRange,
    check_claim,
    refused_ranges,
)
from yardmaster_runtime.settings import CycleLimits

S = TypeVar("S")


class InputTaker(Generic[S]):
    """Takes the inputs of one leader's cycles."""

    def __init__(self, fold: Fold[S], limits: CycleLimits) -> None:
        self._fold = fold
        self._limits = limits
        #: Whole counted cycles of other machines that the next cycle takes.
        self._whole: dict[MachineInput, TakenRange] = {}

    async def read(self) -> None:
        """Read ahead claims and whole counted cycles of other machines."""
        most = self._limits.max_inputs
        for source in self.sources():
            if not isinstance(source, MachineInput):
                await source.fill(most, buffered_only=True)
                continue
            whole = self._whole.get(source)
            left = most if whole is None else most - len(whole.digests)
            filled = left > 0 and await source.cursor.fill(left, buffered_only=True)
            # The records read ahead may end within a cycle whose other records are buffered too.
            while filled:
                taken = source.take_counted(left)
                if taken is not None:
                    if whole is not None:
                        taken.first = whole.first
                        taken.digests[:0] = whole.digests
                        taken.accepted[:0] = whole.accepted
                    self._whole[source] = taken
                    break
                filled = await source.cursor.fill(1, buffered_only=True)

    def sources(self) -> list[Cursor | MachineInput]:
        """The inputs from which cycles take records."""
        return [*self._fold.inputs.values()]

    def call_for_cycle(self) -> bool:
        """Whether the whole cycles read from other machines call for a cycle.

        They do if one of their events requires a cycle, if they switch to newer rules, or if they
        have as many records as one cycle may take.
        """
        machine, rules = self._fold.machine, self._fold.reader.rules
        return any(
            len(taken.digests) >= self._limits.max_inputs
            or source.reader.rules > rules
            or any(machine.calls_for_cycle(envelope.data) for envelope in taken.accepted)
            for source, taken in self._whole.items()
        )

    def has_claims(self) -> bool:
        """Whether a claim was read and not taken."""
        return any(
            isinstance(source, Cursor) and len(source) for source in self._fold.inputs.values()
        )

    def newest_ms(self) -> int:
        """The latest append time (ms) of the claims that were read and not taken; 0 without any."""
        cursors = (source for source in self.sources() if isinstance(source, Cursor))
        return max((cursor.newest_ms() for cursor in cursors), default=0)

    def take(self) -> list[TakenRange]:
        """Apply what was read, input by input."""
        whole, self._whole = self._whole, {}
        for machine_input in whole:
            machine_input.committed()
        taken: list[TakenRange] = []
        ranges_left = self._limits.max_refused
        for source in self._fold.inputs.values():
            if isinstance(source, MachineInput):
                if source in whole:
                    taken.append(whole[source])
                    for envelope in whole[source].accepted:
                        self._fold.apply(envelope)
                continue
            claims = self._take_claims(source, ranges_left)
            ranges_left -= len(refused_ranges(claims.refused))
            if claims.digests:
                taken.append(claims)
        return taken

    def _take_claims(self, cursor: Cursor, ranges_left: int) -> TakenRange:
        """Check and apply claims, up to `max_inputs` records and `ranges_left` refused ranges."""
        fold = self._fold
        taken = TakenRange(cursor.partition, cursor.offset)
        key = fold.cell.encode()
        while len(cursor) and len(taken.digests) < self._limits.max_inputs:
            checked = check_claim(fold.machine, fold.state, fold.rules, key, cursor.peek())
            if isinstance(checked, RefusedRecord):
                if not _extends(taken.refused, checked):
                    if ranges_left == 0:
                        break
                    ranges_left -= 1
                taken.refused.append(checked)
            else:
                fold.apply(checked)
                taken.accepted.append(checked)
            taken.digests.append(digest_of(cursor.pop().record))
        return taken


def _extends(refused: Sequence[RefusedRecord], one: RefusedRecord) -> bool:
    """Whether `one` belongs to the last refused range."""
    if not refused:
        return False
    last = refused[-1]
    return last.code is one.code and last.stored.offset + 1 == one.stored.offset
