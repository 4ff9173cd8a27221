"""The same records give the same state, however they are read: repeated, in parts, from any point.

Histories of all event types run through both real machines on a memory log, with appends that are
lost, succeed without an answer, or arrive late. Then every other way to read the log must lead to
the state of the leaders: SAFETY S11, and S1 to S10 by the audit.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from tests.support import events
from tests.support.audit import assert_audit_clean
from tests.support.honest_actors import HonestActors
from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.machine import Decision, Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import POLICIES, check
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import AppendOutcomeUnknown, LogUnavailable
from yardmaster_eventlog.port import EventLog, Partition, Record, StoredRecord
from yardmaster_eventlog.testing import Fault, FaultKind, FaultPlan, FaultyLog
from yardmaster_runtime.errors import Fenced
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.replay.verify import verify as verify_log
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Envelope
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.topics import Topic

MACHINES = ("quota", "scheduler")


def machine_of(name: str) -> Machine[Any]:
    return QuotaMachine(check) if name == "quota" else SchedulerMachine()


class ShortReads:
    """A log whose reads return at most the given numbers of records."""

    def __init__(self, inner: EventLog, sizes: Sequence[int]) -> None:
        self._inner = inner
        self._sizes = sizes
        self._reads = 0

    async def read(
        self,
        partition: Partition,
        offset: int,
        *,
        max_records: int = 1000,
        buffered_only: bool = False,
    ) -> Sequence[StoredRecord]:
        self._reads += 1
        if buffered_only and self._reads % 2:
            return ()
        most = min(max_records, self._sizes[self._reads % len(self._sizes)])
        return await self._inner.read(
            partition, offset, max_records=most, buffered_only=buffered_only
        )

    async def append(self, partition: Partition, batch: Sequence[Record]) -> int:
        return await self._inner.append(partition, batch)

    async def end(self, partition: Partition) -> int:
        return await self._inner.end(partition)

    async def newest(
        self, partitions: Sequence[Partition]
    ) -> Mapping[Partition, StoredRecord | None]:
        return await self._inner.newest(partitions)

    async def wait(self, ends: Mapping[Partition, int], timeout_s: float) -> bool:
        return await self._inner.wait(ends, timeout_s)

    async def create_topics(self, topics: Sequence[Topic], partitions: int = 1) -> None:
        await self._inner.create_topics(topics, partitions)

    async def close(self) -> None:
        await self._inner.close()


@dataclass
class Racer:
    """A leader that restarts from a snapshot of any age whenever it is fenced."""

    cell: ToyCell
    log: EventLog
    name: str
    limits: dict[str, int]
    leader: Leader[Any] | None = None
    #: The state's digest by the offset after each of its commits.
    digests: dict[int, str] = field(default_factory=dict)
    #: Snapshots at some commits: the offset, the digest, the snapshot.
    kept: list[tuple[int, str, Any]] = field(default_factory=list)
    starts: int = 0
    cycles: int = 0

    async def step(self) -> bool:
        try:
            if self.leader is None:
                self.starts += 1
                dump = self.kept[len(self.kept) * 2 // 3][2] if self.kept else None
                machine = machine_of(self.name)
                leader = self.cell.leader(machine, self.log, dump=dump, **self.limits)
                await leader.take_term()
                self.leader = leader
                return True
            stepped = await self.leader.step()
        except (AppendOutcomeUnknown, Fenced, LogUnavailable):
            self.leader = None
            return True
        if stepped:
            fold = self.leader.fold
            then = fold.machine.digest(fold.state)
            self.digests[fold.reader.boundary] = then
            self.cycles += 1
            if self.cycles % 5 == 1:
                dump = from_json(plain.encode(fold.dump()))
                self.kept.append((fold.reader.boundary, then, dump))
        return stepped


@dataclass
class GeneratedLog:
    """A generated history: its log, and each machine's states by cycle."""

    cell: ToyCell
    racers: dict[str, Racer]


def samples(actors: HonestActors) -> tuple[list[Envelope[Any]], list[Envelope[Any]]]:
    """One event of every input type, with and without optional fields, from its author."""
    for cls in EVENTS.values():
        for full in (True, False):
            data = events.sample(cls, full=full).data
            if "requests" in cls.TOPICS:
                actors.ask(data)
            elif "node-events" in cls.TOPICS:
                actors.claim(data)
    return actors.taken()


def doubled(made: Sequence[Envelope[Any]], sent: list[Record], again: set[int]) -> list[Record]:
    """Records, some of them twice, and some old ones once more."""
    out = []
    for envelope in made:
        record = encode(envelope, CELL)
        sent.append(record)
        out.append(record)
        if len(sent) % 5 in again:
            out.append(record)
        if len(sent) % 7 in again:
            out.append(sent[len(sent) // 2])
    return out


@dataclass
class Plan:
    """The values drawn by Hypothesis."""

    seed: int
    policy: req.PolicyRef
    ticks: int
    again: set[int]
    faults: list[Fault]
    limits: dict[str, int]
    read_sizes: list[int]
    pauses: list[float]
    samples_at: int


plans = st.builds(
    Plan,
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(
        [req.PolicyRef(name=name, version=version) for name, version in POLICIES]
        + [req.PolicyRef(name="fair_share", options={"among": "project", "variant": "max_min"})]
    ),
    ticks=st.integers(5, 60),
    again=st.sets(st.integers(0, 6), max_size=3),
    faults=st.lists(
        st.builds(
            Fault,
            topic=st.sampled_from(["admissions", "decisions"]),
            nth=st.integers(1, 60),
            kind=st.sampled_from([FaultKind.LOST, FaultKind.LANDED, FaultKind.LATE]),
            after_operations=st.none() | st.integers(0, 60),
        ),
        max_size=8,
    ),
    limits=st.fixed_dictionaries(
        {
            "max_decisions": st.sampled_from([2, 7, 1000]),
            "max_inputs": st.sampled_from([1, 5, 1000]),
            "max_batch_bytes": st.sampled_from([2048, 900_000]),
        }
    ),
    read_sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    pauses=st.lists(st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]), min_size=1, max_size=6),
    samples_at=st.integers(0, 10),
)


async def generate(plan: Plan) -> GeneratedLog:
    """Generate a history."""
    cell = await ToyCell().create()
    faults = FaultPlan(cell.clock, plan.faults)
    log = ShortReads(FaultyLog(cell.log, faults), plan.read_sizes)
    racers = {name: Racer(cell, log, name, plan.limits) for name in MACHINES}
    actors = HonestActors(plan.seed, cell.clock.now_ms(), plan.policy)
    actors.begin()
    requested: list[Record] = []
    claimed: list[Record] = []
    committed = CommittedDecisions(cell)
    for tick in range(plan.ticks):
        if tick == plan.samples_at:
            actors.act()
            asked, said = samples(actors)
        else:
            asked, said = actors.taken()
        await put(cell, "requests", doubled(asked, requested, plan.again))
        await put(cell, "node-events", doubled(said, claimed, plan.again))
        scheduler = racers["scheduler"].leader
        for silence in actors.observed():
            if scheduler is not None:
                scheduler._observations.put(Decision(silence, silence.node))
        for _ in range(3):
            for racer in racers.values():
                await racer.step()
        for envelope in await committed.new():
            actors.obey(envelope.data)
        cell.clock.advance(plan.pauses[tick % len(plan.pauses)])
        actors.log.now_ms = cell.clock.now_ms()
        actors.act()
    await faults.write_late()
    faults.faults = ()
    for _ in range(500):
        if not any([await racer.step() for racer in racers.values()]):
            return GeneratedLog(cell, racers)
    raise AssertionError("the cell does not become idle")


async def put(cell: ToyCell, topic: str, records: list[Record]) -> None:
    for at in range(0, len(records), 50):
        await cell.put(topic, records[at : at + 50])


class CommittedDecisions:
    """Follows decisions once they are committed."""

    def __init__(self, cell: ToyCell) -> None:
        self.fold: Fold[Any] = Fold(cell.log, SchedulerMachine(), CELL)
        self.heard: list[Envelope[Any]] = []
        self.fold.listeners.append(
            lambda _, cycle: self.heard.extend(one for _, one in cycle.decisions)
        )

    async def new(self) -> list[Envelope[Any]]:
        """Decisions committed since the last call."""
        self.heard.clear()
        await self.fold.catch_up()
        return self.heard


async def fold_of(generated: GeneratedLog, name: str, **how: Any) -> Fold[Any]:
    fold: Fold[Any] = Fold(generated.cell.log, machine_of(name), CELL, **how)
    await fold.catch_up()
    return fold


def digest(fold: Fold[Any]) -> str:
    return str(fold.machine.digest(fold.state))


@settings(max_examples=20, deadline=None)
@given(plan=plans, data=st.data())
def test_every_way_to_read_a_history_leads_to_the_same_state(
    plan: Plan, data: st.DataObject
) -> None:
    async def run() -> None:
        generated = await generate(plan)
        for name in MACHINES:
            racer = generated.racers[name]
            assert racer.leader is not None
            where = racer.digests
            whole = await fold_of(generated, name)
            assert digest(whole) == digest(racer.leader.fold), "leader and reader"
            assert_same(racer.leader.fold, whole, "leader and reader")

            # Any split of the inputs over polls.
            sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=8), "sizes")
            log = ShortReads(generated.cell.log, sizes)
            parts: Fold[Any] = Fold(
                log, machine_of(name), CELL, read_ahead=data.draw(st.integers(1, 50), "ahead")
            )
            parts.listeners.append(lambda _, __, fold=parts, known=where: check_at(fold, known))
            await parts.catch_up()
            assert_same(parts, whole, "read in parts")

            # Any prefix, read and read again; any restart point: a snapshot and the tail.
            for boundary, then, dump in some_of(data, racer.kept):
                prefix = Fold(generated.cell.log, machine_of(name), CELL)
                await prefix.catch_up(lambda cycle, end=boundary: cycle.offset >= end)  # type: ignore[misc]
                assert digest(prefix) == then, "a prefix read again"
                restarted = Fold(generated.cell.log, machine_of(name), CELL, dump=dump)
                assert digest(restarted) == then, "a snapshot"
                await restarted.catch_up()
                assert_same(restarted, whole, "a snapshot and the tail")
        report = await verify_log(
            generated.cell.log, [machine_of(name) for name in MACHINES], CELL, promises=False
        )
        assert [f for f in report.findings if f.topic != "details"] == []
        await assert_audit_clean(generated.cell.log)

    asyncio.run(run())


def assert_same(one: Fold[Any], other: Fold[Any], what: str) -> None:
    """Two folds have equal states, in every part of a snapshot."""
    found, expected = (from_json(plain.encode(fold.dump())) for fold in (one, other))
    assert found == expected, f"{what}: {next(unlike(found, expected, ''))}"


def unlike(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences between two JSON documents."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from unlike(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from unlike(a, b, f"{path}[{index}]")
    elif one != other:
        yield path, one, other


def check_at(fold: Fold[Any], known: Mapping[int, str]) -> None:
    """A reader between two cycles has the state that the leader had there."""
    boundary = fold.reader.boundary
    # No leader observed the commit of a cycle that arrived late.
    assert known.get(boundary, digest(fold)) == digest(fold), f"after offset {boundary}"


def some_of(data: st.DataObject, kept: list[Any]) -> list[Any]:
    places = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=3), "places")
    return [kept[place % len(kept)] for place in places] if kept else []


def test_a_standby_that_reads_in_small_pieces_never_differs_from_the_leader() -> None:
    """The standby polls while the leaders write, not only after the last record."""

    async def run() -> None:
        cell = await ToyCell().create()
        racers = {name: Racer(cell, cell.log, name, {}) for name in MACHINES}
        followers = {
            name: Fold(ShortReads(cell.log, [1, 3, 2]), machine_of(name), CELL, read_ahead=3)
            for name in MACHINES
        }
        actors = HonestActors(11, cell.clock.now_ms())
        actors.begin()
        committed = CommittedDecisions(cell)
        for tick in range(60):
            asked, said = actors.taken()
            await put(cell, "requests", [encode(each, CELL) for each in asked])
            await put(cell, "node-events", [encode(each, CELL) for each in said])
            for name, racer in racers.items():
                while await racer.step():
                    if tick % 3:
                        await followers[name].catch_up()
                        assert racer.leader is not None
                        assert digest(followers[name]) == digest(racer.leader.fold)
            for envelope in await committed.new():
                actors.obey(envelope.data)
            cell.clock.advance(1.0)
            actors.log.now_ms = cell.clock.now_ms()
            actors.act()
        types = {decode(stored.record).type for stored in await cell.stored("decisions")}
        assert {"SlotsAllocated", "TaskRequeued", "TaskEnded"} <= types

    asyncio.run(run())


def test_a_history_with_every_record_twice_is_decided_as_if_each_were_there_once() -> None:
    async def history(again: bool) -> tuple[list[Any], dict[str, str]]:
        cell = await ToyCell().create()
        racers = {name: Racer(cell, cell.log, name, {}) for name in MACHINES}
        actors = HonestActors(17, cell.clock.now_ms())
        actors.begin()
        committed = CommittedDecisions(cell)
        decided: list[Any] = []
        for _ in range(80):
            for topic, made in zip(("requests", "node-events"), actors.taken(), strict=True):
                records = [encode(each, CELL) for each in made]
                await put(cell, topic, records * (2 if again else 1))
            for racer in racers.values():
                while await racer.step():
                    pass
            for envelope in await committed.new():
                decided.append((envelope.time_ms, envelope.cause, envelope.data))
                actors.obey(envelope.data)
            cell.clock.advance(2.0)
            actors.log.now_ms = cell.clock.now_ms()
            actors.act()
        await assert_audit_clean(cell.log)
        return decided, {
            name: digest(racer.leader.fold) for name, racer in racers.items() if racer.leader
        }

    async def both() -> None:
        once, twice = await history(False), await history(True)
        assert once[0] == twice[0]
        assert once[1] == twice[1]

    asyncio.run(both())
