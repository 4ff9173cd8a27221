"""A cell under faults and two reference cells without faults: all must decide the same.

`FaultyPlayer` sends every honest input to all three. The cell under test is restarted from
snapshots, receives inputs again, applies each of its own decisions twice and receives hostile
claims. The twin has none of these faults, nor has the third cell, which decides in place and
applies nothing. After every cycle `FaultyPlayer` compares their decisions and digests, the dumps of
the twin and the third cell, and the indexes of the cell under test with values derived from its
facts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.histories.player import OPEN, HistoryPlayer
from tests.unit.core.scheduling.soundness import assert_sound
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_core.testing import ONE_RUN, Cell, EventApplied, fold
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.sources import agent_source

#: The first record id of hostile claims; honest ids stay below.
HOSTILE_SEQ = 10**9


class FaultyCell(Cell):
    """The cell under faults."""

    def on_decision(self, decision: Event) -> None:
        """Apply the decision again: a repeat changes nothing."""
        before = self.machine.digest(self.state)
        self.state = self.machine.apply(self.state, decision, "")
        after = self.machine.digest(self.state)
        assert after == before, f"a repeat changed the state: {decision}"


class InPlaceCell(Cell):
    """The cell that decides in place instead of on a draft."""

    def decide_and_apply(self, limit: int, observed: Sequence[Decision]) -> CycleResult:
        self.state, decisions, complete = self.machine.decide_in_place(
            self.state, limit=limit, observed=observed
        )
        return CycleResult(tuple(decisions), self.machine.digest(self.state), complete)


class FaultyPlayer(HistoryPlayer):
    """Cells with the same honest history."""

    def __init__(self) -> None:
        super().__init__(FaultyCell())
        self.twin = Cell()
        self.in_place = InPlaceCell()
        self.hostile: Counter[str] = Counter()
        self.sent_claims: list[tuple[Any, str]] = []

    # Inputs

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        for cell in (self.in_place, self.twin, self.cell):
            getattr(cell, method)(*args, **kwargs)

    def claim(self, event: Any) -> None:
        super().claim(event)
        self.sent_claims.append(self.cell._inputs[-1])

    def repeat(self, *, number: int, what: str) -> None:
        """Send an input to the cell once more: the last one, or an old claim."""
        inputs = self.cell._inputs
        if what == "last":
            inputs += inputs[-1:]
        elif self.sent_claims:
            inputs.append(self.sent_claims[number % len(self.sent_claims)])

    def lie(self, *, number: int, what: str) -> None:
        """Send hostile claims about a replica to the cell under test only."""
        for task, about in self.one_of(number, *OPEN):
            source = agent_source("n9" if what == "author" else about["node"], about["incarnation"])
            if what == "new":
                self._join_with_task("n8", task)
                return
            if what == "attempt":
                about["attempt"] += 1
            elif what == "task":
                about["task_id"] = "nobody000000.0"
            elif what == "place":
                others = [n for n in self.state.nodes.values() if n.name != about["node"]]
                if not others:
                    return
                other = others[number % len(others)]
                about |= {"node": other.name, "incarnation": other.incarnation or "f" * 12}
                source = agent_source(other.name, about["incarnation"])
                if any(p.node == other.name for p in task.run.placements):
                    return
            elif what == "incarnation":
                about["incarnation"] = "f" * 12
                source = agent_source(about["node"], about["incarnation"])
            self._lie(nev.SlotsReleasedV1(**about, never_started=number % 2 == 0), source)
            self._lie(nev.TaskExitedV1(**about, exit_code=number), source)
            self._lie(nev.TaskStartedV1(**about, run=ONE_RUN), source)
            self._lie(nev.CheckpointDoneV1(**about, uri="s3://x", step=number), source)
            left = nev.NodeDrainedV1(node=about["node"], incarnation="f" * 12)
            self._lie(left, source)

    def _lie(self, event: Any, source: str) -> None:
        self.hostile[source] += 1
        seq = HOSTILE_SEQ + sum(self.hostile.values())
        self.cell._inputs.append((event, f"{source}/1/{seq}"))

    def _join_with_task(self, name: str, task: Task) -> None:
        """An unknown node claims that it runs a task."""
        ref = nev.ReplicaRef(task_id=task.id, attempt=task.attempt, replica=0)
        self.cell.node(name, running=(ref,))
        event, _ = self.cell._inputs.pop()
        self.cell.seq -= 1
        self._lie(event, agent_source(name, "0" * 12))

    def restart(self) -> None:
        before = self.state.digest()
        super().restart()
        assert self.state.digest() == before, "a snapshot differs from its state"

    # Cycles

    def decide(self, after_s: int, limit: int, silent: dict[str, int]) -> list[Event]:
        """Run a cycle of each cell; compare the results."""
        start = len(self.cell.steps)
        decided = super().decide(after_s, limit, silent)
        expected = self.twin.cycle(after_s=after_s, limit=limit, silent=silent)
        ours, theirs = (
            [e for e in decided if e not in expected],
            [e for e in expected if e not in decided],
        )
        assert decided == expected, f"with faults: {ours}; without: {theirs}"
        assert self.cell.state.digest() == self.twin.state.digest()
        kept = self.in_place.cycle(after_s=after_s, limit=limit, silent=silent)
        assert kept == expected, "the cell that decides in place decides differently"
        ours, theirs = (cell.machine.dump(cell.state) for cell in (self.in_place, self.twin))
        assert ours == theirs, "the state decided in place differs from the applied state"
        for step in self.cell.steps[start:]:
            if isinstance(step, EventApplied) and step.record_id:
                seq = int(step.record_id.rpartition("/")[2])
                assert seq < HOSTILE_SEQ, f"a hostile claim was believed: {step.event}"
        return decided

    def check(self, decided: Sequence[Event]) -> None:
        super().check(decided)
        for cell in (self.cell, self.in_place):
            assert_sound(cell.state)

    def end(self) -> None:
        super().end()
        folded = fold(self.twin.steps)
        assert folded.digest() == self.state.digest(), "a standby has another state"
