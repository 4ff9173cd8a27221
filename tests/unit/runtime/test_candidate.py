"""Restore, stand by, lead, and what a candidate survives or stops for."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell, answers, until
from tests.support.toy_machine import INCARNATION, ToyMachine, ToyState, job_id, progress
from yardmaster_core.errors import ChainBroken, ForeignRecord
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_eventlog.errors import LogTruncated
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.snapshots import Snapshot, SnapshotStore
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.errors import ReplayDiverged
from yardmaster_runtime.machine.candidate import Candidate
from yardmaster_runtime.machine.election import ManualElection, SoleCandidate
from yardmaster_runtime.machine.restore import restore
from yardmaster_runtime.machine.snapshotting import take
from yardmaster_runtime.settings import CycleLimits, RetryLimits, SnapshotLimits
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.admissions import CancelAcceptedV1
from yardmaster_schemas.events.decisions import NodeLostV1, NodeSilenceObservedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, SnapshotTakenV1, TermStartedV1


@pytest.fixture
async def cell() -> ToyCell:
    return await ToyCell().create()


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run work until the end of the block; it is killed there, as a process is."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


def cycle_of(candidate: Candidate[Any]) -> int:
    return candidate.leader.fold.reader.cycle if candidate.leader else -1


async def test_a_sole_candidate_leads_at_once_and_continues_after_a_restart(cell: ToyCell) -> None:
    async def live_once(cycle: int) -> None:
        candidate = cell.candidate()
        async with running(candidate.run()):
            await until(lambda: candidate.leader is not None)
            await cell.ask()
            await until(lambda: cycle_of(candidate) == cycle, cell.clock)

    for life in range(3):
        await live_once(life + 1)
    assert answers(await cell.fold()) == {job_id(n): 1 for n in range(3)}
    terms = [e for e in await cell.events("admissions") if isinstance(e, TermStartedV1)]
    assert [t.term for t in terms] == [1, 2, 3]
    assert len({t.incarnation for t in terms}) == 3


@pytest.mark.parametrize("kind", [FaultKind.LOST, FaultKind.LANDED, FaultKind.LATE])
@pytest.mark.parametrize("nth", range(1, 7))
async def test_after_an_unknown_outcome_a_new_term_continues_without_loss_or_repeat(
    cell: ToyCell, kind: FaultKind, nth: int
) -> None:
    plan = FaultPlan(
        cell.clock, [Fault(topic="admissions", nth=nth, kind=kind, after_operations=nth)]
    )
    metrics = cell.metrics()
    candidate = cell.candidate(log=FaultyLog(cell.log, plan), metrics=metrics)
    async with running(candidate.run()):
        for number in range(4):
            await cell.ask()
            await until(
                lambda n=number: (
                    candidate.leader is not None  # type: ignore[misc]
                    and len(answers(candidate.leader.fold)) == n + 1
                ),
                cell.clock,
            )
    await plan.write_late()
    assert answers(await cell.fold()) == {job_id(n): 1 for n in range(4)}
    assert metrics.outcomes_unknown._value.get() == len(plan.happened)


async def test_while_the_log_is_unavailable_the_candidate_waits_and_then_continues(
    cell: ToyCell,
) -> None:
    faults = [
        Fault(topic="admissions", nth=nth, kind=FaultKind.UNAVAILABLE) for nth in range(2, 30)
    ]
    plan = FaultPlan(cell.clock, faults)
    candidate = cell.candidate(
        log=FaultyLog(cell.log, plan), retry=RetryLimits(attempts=3, longest_pause_s=0.1)
    )
    async with running(candidate.run()):
        await cell.ask()
        await until(lambda: cycle_of(candidate) == 1, cell.clock)
    assert answers(await cell.fold()) == {job_id(0): 1}
    assert len(plan.happened) == len(faults)


async def test_a_fenced_sole_candidate_becomes_a_standby_and_reports_it(cell: ToyCell) -> None:
    first, second = cell.candidate(), cell.candidate()
    async with running(first.run()):
        await until(lambda: first.leader is not None)
        async with running(second.run()):
            await until(lambda: second.leader is not None)
            await until(lambda: first.leader is None, cell.clock)
            await cell.ask()
            await until(lambda: cycle_of(second) == 1, cell.clock)
    assert first.leader is None
    assert [line["code"] for line in cell.logged("leading_ended")] == ["fenced"]


async def test_a_standby_follows_the_log_and_takes_over_with_the_whole_state(cell: ToyCell) -> None:
    elections = [ManualElection(), ManualElection()]
    machines = [ToyMachine.scheduler(), ToyMachine.scheduler()]
    quota = cell.candidate()
    candidates = [
        cell.candidate(machine, election=election)
        for machine, election in zip(machines, elections, strict=True)
    ]
    async with running(quota.run(), *(c.run() for c in candidates)):
        elections[0].elect()
        await until(lambda: candidates[0].leader is not None)
        await cell.ask(3)
        await until(lambda: cycle_of(candidates[0]) == 1, cell.clock)
        elections[0].depose()
        elections[1].elect()
        await until(lambda: candidates[1].leader is not None, cell.clock)
        await cell.ask(2)
        await until(lambda: cycle_of(candidates[1]) == 2, cell.clock)
        assert candidates[0].leader is None
        assert machines[1].decides == 1, "what was decided before is folded, not decided again"
    fold = await cell.fold(ToyMachine.scheduler())
    assert answers(fold) == {job_id(n): 1 for n in range(5)}


@pytest.mark.parametrize(
    "record",
    [
        Record(b"main", b"junk"),
        Record(b"main", b"{}", (("ce_type", b"CancelAccepted"), ("yard_version", b"99"))),
        Record(b"main", b"{}", (("ce_type", b"Novelty"), ("yard_version", b"1"))),
    ],
)
async def test_an_undecodable_record_in_the_own_topic_stops_the_machine_with_a_named_error(
    cell: ToyCell, record: Record
) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.put("admissions", [record])
    with pytest.raises(ForeignRecord) as error:
        await cell.candidate().run()
    assert (error.value.fields["topic"], error.value.fields["offset"]) == ("admissions", 1)
    assert [line["code"] for line in cell.logged("machine_stopped")] == ["foreign_record"]
    with pytest.raises(ForeignRecord):
        await leader.step()


async def test_a_foreign_record_in_a_machines_topic_stops_its_readers(cell: ToyCell) -> None:
    await cell.leader().take_term()
    await cell.put("admissions", [progress(0, 5)])
    with pytest.raises(ForeignRecord):
        await cell.candidate().run()
    with pytest.raises(ForeignRecord):
        await cell.candidate(ToyMachine.scheduler()).run()


class Forgetful(ToyMachine):
    """A later version that means something else by the same events."""

    def digest(self, state: Any) -> str:
        return "0" * 64


async def test_a_machine_that_reaches_another_state_stops_with_a_named_error(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask()
    await leader.step()
    template = ToyMachine.quota()
    other = Forgetful(template.name, template.output, template.inputs)
    with pytest.raises(ReplayDiverged, match="digest"):
        await cell.candidate(other).run()


class Stubborn(ToyMachine):
    """Decides what cannot be written, until that was observed."""

    def decide(
        self, state: ToyState, *, limit: int, observed: Sequence[Decision] = ()
    ) -> CycleResult:
        if observed or not state.waiting:
            return super().decide(state, limit=limit, observed=observed)
        return CycleResult([Decision(CancelAcceptedV1(job_id="NOT A JOB"), "x")], "0" * 64)

    def unwritable(self, event: Event) -> Decision | None:
        assert isinstance(event, CancelAcceptedV1)
        return Decision(
            NodeSilenceObservedV1(node="n1", incarnation=INCARNATION, last_heard_at_ms=5), "n1"
        )


async def test_after_a_decision_that_cannot_be_written_the_next_cycle_records_that_fact(
    cell: ToyCell,
) -> None:
    template, metrics = ToyMachine.scheduler(), cell.metrics()
    machine = Stubborn(template.name, template.output, template.inputs)
    candidate = cell.candidate(machine, metrics=metrics)
    quota = cell.candidate()
    async with running(candidate.run(), quota.run()):
        await cell.ask()
        await until(lambda: cycle_of(candidate) == 1, cell.clock)
    events = await cell.events("decisions")
    assert [type(e) for e in events if not isinstance(e, TermStartedV1)][:2] == [
        NodeSilenceObservedV1,
        NodeLostV1,
    ]
    assert metrics.decisions_refused._value.get() == 1
    assert [line["code"] for line in cell.logged("leading_ended")] == ["decision_refused"]


async def test_after_a_cycle_that_is_too_large_the_next_term_uses_smaller_cycles(
    cell: ToyCell,
) -> None:
    class Tight:
        """Takes no commit of more than three inputs (as a topic with small batches would)."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cell.log, name)

        async def append(self, partition: Partition, batch: Any) -> int:
            from yardmaster_eventlog.codec import decode
            from yardmaster_eventlog.errors import BatchTooLarge

            event = decode(batch[-1]).data
            if isinstance(event, CycleCommittedV1) and event.inputs:
                size = event.inputs[0].next - event.inputs[0].first
                if size > 3:
                    raise BatchTooLarge(size=size, limit=3, topic=partition.topic)
            return int(await cell.log.append(partition, batch))

    await cell.ask(20)
    candidate = cell.candidate(log=Tight(), cycle=CycleLimits(max_inputs=16))
    async with running(candidate.run()):
        await until(
            lambda: candidate.leader is not None and len(answers(candidate.leader.fold)) == 20,
            cell.clock,
        )
    assert answers(await cell.fold()) == {job_id(n): 1 for n in range(20)}


# Snapshots


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.snapshot"))


async def restored(cell: ToyCell, store: SnapshotStore, machine: Any = None) -> Any:
    return await restore(
        cell.log,
        machine or ToyMachine.scheduler(),
        CELL,
        snapshots=store,
        clock=cell.clock,
        metrics=cell.metrics(),
    )


async def with_cycles(cell: ToyCell, store: SnapshotStore, count: int) -> Any:
    """A scheduler's fold after `count` cycles, with a snapshot of each."""
    quota, scheduler = cell.leader(), cell.leader(ToyMachine.scheduler())
    await quota.take_term()
    await scheduler.take_term()
    for _ in range(count):
        await cell.ask(2)
        await quota.step()
        await scheduler.step()
        await store.save(take(scheduler.fold))
    return scheduler.fold


async def test_a_restart_uses_the_newest_snapshot_and_the_tail(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    fold = await with_cycles(cell, store, 3)
    machine = ToyMachine.scheduler()
    again = await restored(cell, store, machine)
    assert again.dump() == fold.dump()
    (line,) = cell.logged("restored")
    assert (line["snapshot_cycle"], line["tail_cycles"]) == (3, 0)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
async def test_a_damaged_snapshot_falls_back_to_the_one_before(
    cell: ToyCell, tmp_path: Path, damage: str
) -> None:
    store = SnapshotStore(str(tmp_path))
    fold = await with_cycles(cell, store, 3)
    newest = files(tmp_path)[-1]
    content = bytearray(newest.read_bytes())
    if damage == "gone":
        newest.unlink()
    else:
        content[len(content) // 2] ^= 1
        damaged = {"flipped": bytes(content), "cut": bytes(content[:40]), "empty": b""}
        newest.write_bytes(damaged[damage])
    again = await restored(cell, store)
    assert again.dump() == fold.dump()
    assert cell.logged("restored")[0]["snapshot_cycle"] == 2
    assert len(cell.logged("snapshot_skipped")) == (0 if damage == "gone" else 1)


async def test_a_snapshot_store_that_hangs_does_not_hold_a_start_up(
    cell: ToyCell, tmp_path: Path
) -> None:
    fold = await with_cycles(cell, SnapshotStore(str(tmp_path)), 3)
    newest = files(tmp_path)[-1]
    newest.unlink()
    os.mkfifo(newest)
    try:
        again = await restored(cell, SnapshotStore(str(tmp_path), deadline_s=0.05))
    finally:
        os.close(os.open(newest, os.O_RDWR))
    assert again.dump() == fold.dump()
    assert "no answer within 0.05 s" in cell.logged("snapshots_unavailable")[0]["found"]
    assert cell.logged("restored")[0]["snapshot_cycle"] == 0


async def test_when_all_snapshots_fail_the_whole_log_is_folded(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    fold = await with_cycles(cell, store, 3)
    for path in files(tmp_path):
        path.write_bytes(b"nonsense")
    again = await restored(cell, store)
    assert again.dump() == fold.dump()
    assert cell.logged("restored")[0]["snapshot_cycle"] == 0


async def test_a_snapshot_of_another_log_is_skipped(cell: ToyCell, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    await with_cycles(cell, store, 2)
    other = await ToyCell(clock=cell.clock).create()
    other.chance.hex("incarnation", 12)
    fold = await with_cycles(other, SnapshotStore(str(tmp_path / "unused")), 2)
    again = await restored(other, store)
    assert again.dump() == fold.dump()
    assert "another log" in other.logged("snapshot_skipped")[0]["found"]


def forged(snapshot: Snapshot, what: str) -> Snapshot:
    """A snapshot as a writer with access to its folder can make it: consistent in itself."""
    dump = json.loads(snapshot.payload)
    reader = dump["reader"]
    match what:
        case "state":
            dump["state"]["answered"][job_id(0)] = 7
            machine = ToyMachine.scheduler()
            dump["digest"] = machine.digest(machine.load(CELL, dump["state"]))
        case "cycle":
            reader["cycle"] += 1
        case "claims":
            reader["inputs"] = [
                [topic, number, at - (topic == "node-events")]
                for topic, number, at in reader["inputs"]
            ]
    return replace(snapshot, state_digest=dump["digest"], payload=json.dumps(dump).encode())


@pytest.mark.parametrize(
    ("what", "tail", "code"),
    [
        ("state", 0, "snapshot_unreadable"),
        ("state", 1, "snapshot_unreadable"),
        ("cycle", 0, "snapshot_unreadable"),
        ("claims", 0, "snapshot_unreadable"),
        # The commit says nothing of claims: only the cycle after it shows the fault.
        ("claims of before", 1, "chain_broken"),
    ],
)
async def test_a_forged_snapshot_is_skipped_for_the_one_before(
    cell: ToyCell, tmp_path: Path, what: str, tail: int, code: str
) -> None:
    store = SnapshotStore(str(tmp_path))
    quota, scheduler = cell.leader(), cell.leader(ToyMachine.scheduler())
    await quota.take_term()
    await scheduler.take_term()
    taken = []
    for cycle in range(3):
        await cell.ask(2)
        if cycle != 1 or not what.endswith("before"):
            await cell.put("node-events", [progress(cycle, 7)])
        await quota.step()
        await scheduler.step()
        taken.append(take(scheduler.fold))
    await store.save(taken[0])
    await store.save(forged(taken[2 - tail], what.partition(" ")[0]))
    again = await restored(cell, store)
    assert again.dump() == scheduler.fold.dump()
    (skipped,) = cell.logged("snapshot_skipped")
    assert (skipped["cycle"], skipped["code"]) == (3 - tail, code)
    assert cell.logged("restored")[0]["snapshot_cycle"] == 1


async def test_a_log_that_ends_before_its_snapshot_stops_the_machine_with_a_named_error(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    await with_cycles(cell, store, 2)
    empty = await ToyCell(clock=cell.clock).create()
    with pytest.raises(LogTruncated, match="ends at 0"):
        await empty.candidate(ToyMachine.scheduler(), snapshots=store).run()


async def test_a_leader_takes_snapshots_and_records_them_without_extra_cycles(
    cell: ToyCell, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    candidate = cell.candidate(
        snapshots=store, snapshot=SnapshotLimits(every_cycles=2, every_s=100_000, keep=2)
    )
    async with running(candidate.run()):
        for number in range(8):
            await cell.ask()
            await until(
                lambda n=number: cycle_of(candidate) == n + 1,  # type: ignore[misc]
                cell.clock,
            )
            for _ in range(20):
                await asyncio.sleep(0.001)
        assert cycle_of(candidate) == 8, "a snapshot calls for no cycle of its own"
    taken = [e for e in await cell.events("admissions") if isinstance(e, SnapshotTakenV1)]
    assert [t.cycle for t in taken] == [2, 4, 6]
    assert await store.cycles("quota", CELL) == (8, 6)
    again = await restored(cell, store, ToyMachine.quota())
    assert again.dump() == (await cell.fold()).dump()


async def test_a_broken_chain_stops_a_candidate(cell: ToyCell) -> None:
    leader = cell.leader()
    await leader.take_term()
    await cell.ask()
    await leader.step()
    stored = await cell.stored("admissions")
    await cell.put("admissions", [stored[-1].record])
    with pytest.raises(ChainBroken):
        await cell.candidate().run()


async def test_the_sole_candidate_wins_until_it_is_fenced() -> None:
    election = SoleCandidate()
    await election.won()
    election.on_fenced()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(election.won(), 0.01)
