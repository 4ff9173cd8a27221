"""A hostile node writes 100,000 records: no service stops, and honest decisions do not change.

Both real machines process the same honest history twice: alone, and with bursts of hostile records
between the honest records. An invalid record in a machine's own topic stops its readers.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.audit import assert_audit_clean
from tests.support.honest_actors import NODES, HonestActors
from tests.support.logs import exited, incarnation, joined, released, started, submitted
from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.errors import ForeignRecord
from yardmaster_core.machine import Decision, Machine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.policies import check
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.port import Partition, Record
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.machine.leader import Leader
from yardmaster_runtime.replay.verify import verify as verify_log
from yardmaster_schemas.envelope import Actor, ActorKind, Envelope, Event
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.machine import CycleCommittedV1, TermStartedV1
from yardmaster_schemas.events.node_events import (
    CheckpointDoneV1,
    NodeDrainedV1,
    NodeJoinedV1,
    TaskProgressedV1,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import agent_source
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS

HOSTILE = "zz-hostile"
EVENTS = 100_000
TICKS = 200
#: Large, so that one cycle takes all records of a tick, with and without the hostile records.
LIMITS: dict[str, Any] = {"max_inputs": 20_000, "max_refused": 4_096, "max_quarantined": 10_000}
NOW_MS = 1_700_000_000_000

pytestmark = pytest.mark.timeout(300)


def machines() -> tuple[Machine[Any], Machine[Any]]:
    return QuotaMachine(check), SchedulerMachine()


class Hostile:
    """A node that writes arbitrary records to `node-events`, with its own name as their source.

    The access rules of the log ensure that `source` is the writer's own name; the machine checks
    the content of the record.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seq = 0
        self.kinds: Counter[str] = Counter()

    def records(self, count: int, honest: Sequence[Record], actors: HonestActors) -> list[Record]:
        """Return a burst of hostile records; the first of all joins the pool `hostile`."""
        if self.seq == 0 and count:
            self.kinds["joins"] += 1
            return [self.of(self.join()), *self.records(count - 1, honest, actors)]
        return [self.record(honest, actors) for _ in range(count)]

    def record(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        kinds = [
            *(self.noise, self.cut_short, self.unknown, self.version, self.headers, self.wrong_key),
            *(self.others_attempt, self.anothers_name, self.lives, self.contradiction),
            *(self.other_topic, self.joins, self.ahead),
        ]
        kind = self.chance.choice([*kinds, self.repeated, self.repeated])
        self.kinds[kind.__name__] += 1
        made: Record = kind(honest, actors)
        return made

    def envelope(self, event: Event, **changes: Any) -> Envelope[Any]:
        self.seq += self.chance.choice([1, 1, 1, 1_000_000])
        whole: Envelope[Any] = Envelope(
            type=event.TYPE,
            version=event.VERSION,
            source=agent_source(HOSTILE, getattr(event, "incarnation", incarnation())),
            epoch=1,
            seq=self.seq,
            subject=HOSTILE,
            time_ms=self.chance.choice([0, NOW_MS, 253_402_300_799_999]),
            actor=Actor(kind=ActorKind.NODE, id=HOSTILE),
            data=event,
        )
        return replace(whole, **changes)

    def of(self, event: Event, **changes: Any) -> Record:
        return encode(self.envelope(event, **changes), CELL)

    def target(self, actors: HonestActors) -> dict[str, Any]:
        """An honest task's attempt, running or not."""
        task = self.chance.choice(sorted(actors.tasks) or ["000000000000.0"])
        return {"attempt": actors.tasks.get(task, 1), "replica": 0, "task": task}

    def about(self, actors: HonestActors, node: str, life: int) -> Any:
        """A claim about an honest attempt, under some node's name."""
        at = self.target(actors)
        task, attempt = at["task"], at["attempt"] + self.chance.choice([0, 0, 0, 1, -1])
        which = {"attempt": max(1, attempt), "life": life}
        plain = {
            "task_id": task,
            "attempt": max(1, attempt),
            "replica": self.chance.choice([0, 0, 1]),
            "node": node,
            "incarnation": incarnation(life),
        }
        return self.chance.choice(
            [
                started(task, node, **which),
                exited(task, node, exit_code=1, **which),
                released(task, node, never_started=True, **which),
                released(task, node, **which),
                CheckpointDoneV1(**plain, uri="file:///etc/passwd", step=10**6),
                TaskProgressedV1(**plain, permille=1000),
            ]
        )

    # Kinds

    def noise(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        def some(most: int) -> bytes:
            return self.chance.randbytes(self.chance.randrange(most))

        headers = tuple(
            (self.chance.choice(["ce_type", "yard_version", "x", "ce_id"]), some(30))
            for _ in range(self.chance.randrange(4))
        )
        return Record(some(12), self.chance.choice([some(200), None, b""]), headers)

    def cut_short(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        whole = self.of(joined(HOSTILE))
        value = whole.value or b""
        return replace(whole, value=value[: self.chance.randrange(len(value))])

    def unknown(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        return self._renamed(b"NodeJoined", b"NodeRuined!"[:10])

    def version(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        whole = self.of(joined(HOSTILE))
        named = self.chance.choice([b"2", b"0", b"-1", b"999", b"99999", b"1.0", b""])
        headers = tuple(
            (name, named if name == "yard_version" else content) for name, content in whole.headers
        )
        return replace(whole, headers=headers)

    def headers(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        whole = self.of(joined(HOSTILE))
        kept = list(whole.headers)
        kept[self.chance.randrange(len(kept))] = ("ce_id", self.chance.randbytes(4))
        return replace(whole, headers=tuple(kept))

    def wrong_key(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        return replace(self.of(joined(HOSTILE)), key=self.chance.choice([b"", b"other", b"main2"]))

    def others_attempt(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        return self.of(self.about(actors, HOSTILE, 1))

    def anothers_name(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        node = self.chance.choice(NODES)
        event = self.chance.choice(
            [
                self.about(actors, node, actors.lives[node]),
                joined(node, life=actors.lives[node] + 1),
                NodeDrainedV1(node=node, incarnation=incarnation(actors.lives[node])),
            ]
        )
        return self.of(event)

    def lives(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        return self.of(self.about(actors, HOSTILE, self.chance.choice([2, 3, 99])))

    def contradiction(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        base = self.join()
        return self.of(
            self.chance.choice(
                [
                    replace(base, gpus=base.gpus + 1),
                    replace(base, pool="default"),
                    replace(base, port_first=2, port_last=1),
                    exited("000000000000.0", HOSTILE),
                ]
            )
        )

    def other_topic(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        commit = TermStartedV1(cell=CELL, machine="scheduler", term=99, incarnation="f" * 12)
        return self.of(self.chance.choice([commit, submitted("zzzzzzzzzzzz")]))

    def joins(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        """A permitted join in a pool that no honest job requests; sometimes a new incarnation."""
        return self.of(self.join(self.chance.choice([1, 1, 1, 1, 2])))

    def ahead(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        """A permitted join, but with an epoch after which its source's clock seems to be years
        ahead.
        """
        return self.of(self.join(), epoch=NOW_MS + self.chance.choice([10**10, 10**12]))

    def join(self, life: int = 1) -> NodeJoinedV1:
        return joined(HOSTILE, pool="hostile", life=life)

    def repeated(self, honest: Sequence[Record], actors: HonestActors) -> Record:
        """An unchanged copy of a record of another node."""
        return self.chance.choice(honest) if honest else self.noise(honest, actors)

    def _renamed(self, old: bytes, new: bytes) -> Record:
        whole = self.of(joined(HOSTILE))
        return Record(
            whole.key,
            (whole.value or b"").replace(old, new),
            tuple((name, content.replace(old, new)) for name, content in whole.headers),
        )


@dataclass
class Run:
    """The result of `play`."""

    cell: ToyCell
    actors: HonestActors
    quota: Leader[Any]
    scheduler: Leader[Any]
    #: Every decision, with its time, subject and cause.
    decided: list[tuple[int, str, str | None, Event]]
    hostile: int = 0
    #: The offset after the last decision in `decided`.
    seen: int = 0

    async def hear(self) -> None:
        """Read the new decisions, and let the actors obey."""
        found = await self.cell.log.read(Partition("decisions"), self.seen, max_records=1_000_000)
        for stored in found:
            self.seen = stored.offset + 1
            envelope = decode(stored.record)
            self.actors.obey(envelope.data)
            self.decided.append((envelope.time_ms, envelope.subject, envelope.cause, envelope.data))


def shuffled(chance: random.Random, honest: list[Record], hostile: list[Record]) -> list[Record]:
    """Interleave both lists at random; each keeps its order."""
    places = sorted(chance.randrange(len(honest) + 1) for _ in hostile)
    mixed: list[Record] = []
    at = 0
    for place, record in zip(places, hostile, strict=True):
        mixed += honest[at:place]
        at = place
        mixed.append(record)
    return [*mixed, *honest[at:]]


async def play(hostile: Hostile | None, *, ticks: int = TICKS, seed: int = 7) -> Run:
    cell = await ToyCell().create()
    actors = HonestActors(seed, cell.clock.now_ms())
    quota, scheduler = (cell.leader(machine, **LIMITS) for machine in machines())
    await quota.take_term()
    await scheduler.take_term()
    run = Run(cell, actors, quota, scheduler, [])
    earlier: list[Record] = []
    chance = random.Random(seed + 1)
    actors.begin()
    for tick in range(ticks):
        requests, claims = actors.taken()
        if requests:
            await cell.put("requests", requests)
        honest = [encode(envelope, CELL) for envelope in claims]
        mixed = honest
        if hostile is not None:
            # Bursts: half of the ticks have none.
            count = 2 * EVENTS // ticks if tick % 2 else 0
            mixed = shuffled(hostile.chance, honest, hostile.records(count, earlier, actors))
            run.hostile += count
        for at in range(0, len(mixed), 100):
            await cell.put("node-events", mixed[at : at + 100])
        earlier += honest
        for silence in actors.observed():
            scheduler._observations.put(Decision(silence, silence.node))
        while await quota.step():
            pass
        while await scheduler.step():
            pass
        await run.hear()
        cell.clock.advance(chance.choice([0.1, 1.0, 5.0]))
        actors.log.now_ms = cell.clock.now_ms()
        actors.act(12)
    while await quota.step():
        pass
    # The scheduler takes quota's last cycle, which may decide nothing, with its next claim.
    await cell.put("node-events", earlier[-1:])
    while await scheduler.step():
        pass
    await run.hear()
    return run


def honest(run: Run) -> list[Any]:
    """The decisions without commits, terms and decisions about the hostile node."""
    own = (CycleCommittedV1, TermStartedV1)
    return [each for each in run.decided if not isinstance(each[3], own) and each[1] != HOSTILE]


def test_a_hundred_thousand_hostile_records_change_no_honest_decision() -> None:
    async def both() -> None:
        alone = await play(None)
        hostile = Hostile(7)
        attacked = await play(hostile)
        assert attacked.hostile == EVENTS
        for one, other in zip(honest(attacked), honest(alone), strict=False):
            assert one == other, "the first decision that differs"
        assert len(honest(attacked)) == len(honest(alone))
        assert {type(each[3]).TYPE for each in honest(alone)} >= {
            "SlotsAllocated",
            "PreemptionRequested",
            "TaskRequeued",
            "TaskEnded",
            "NodeLost",
        }
        codes = await all_refused(attacked, hostile)
        print(dict(hostile.kinds), dict(codes), len(honest(alone)))
        for run in (alone, attacked):
            assert run.quota.term == run.scheduler.term == 1, "no machine started a second term"
            report = await verify_log(run.cell.log, machines(), CELL, promises=False)
            assert [f for f in report.findings if f.topic != "details"] == []
            assert not report.unproved
        await assert_audit_clean(alone.cell.log)
        await assert_audit_clean(attacked.cell.log, honest_agents=False)

    asyncio.run(both())


async def all_refused(run: Run, hostile: Hostile) -> Counter[RefusalCode]:
    """Check that each refusal is once in a commit and once in quarantine; count them by code."""
    named: dict[int, RefusalCode] = {}
    for *_, event in run.decided:
        if isinstance(event, CycleCommittedV1):
            for one in event.refused:
                for offset in range(one.first, one.last + 1):
                    assert offset not in named
                    named[offset] = one.code
    copies = {}
    for event in await run.cell.events("quarantine"):
        assert isinstance(event, RecordQuarantinedV1)
        assert event.offset not in copies
        copies[event.offset] = event.code
    assert copies == named
    # All hostile records except permitted joins; stale honest claims may be among the refusals.
    assert len(named) >= EVENTS - hostile.kinds["joins"]
    codes = Counter(named.values())
    # No node is enrolled here (tests/unit/gateway/test_enrollment.py), and no project says where
    # checkpoints are (tests/unit/core/scheduling/planner/test_refusals.py). No start takes hours
    # (test_lifecycle.py, in the same folder).
    closed = {RefusalCode.NOT_ENROLLED, RefusalCode.BEYOND_ENROLLMENT}
    closed |= {RefusalCode.CHECKPOINT_NOT_ALLOWED, RefusalCode.PULL_TOO_LONG}
    assert set(codes) >= set(RefusalCode) - closed - {RefusalCode.UNKNOWN_NODE}, codes
    return codes


# A machine's own topic


UNKNOWN = Record(b"main", b'{"type":"Unheard"}', (("ce_type", b"Unheard"), ("yard_version", b"1")))
NEWER = Record(
    b"main", b'{"type":"TaskEnded"}', (("ce_type", b"TaskEnded"), ("yard_version", b"7"))
)


@pytest.mark.parametrize("record", [UNKNOWN, NEWER, Record(b"main", b"\x00noise")])
@pytest.mark.parametrize("topic", [ADMISSIONS.name, DECISIONS.name])
def test_an_unknown_record_in_a_machines_own_topic_stops_its_readers_with_a_named_error(
    topic: str, record: Record
) -> None:
    async def run() -> None:
        played = await play(None, ticks=12)
        cell = played.cell
        dump = played.scheduler.fold.dump()
        await cell.put(topic, [record])
        at = await cell.log.end(Partition(topic)) - 1
        await cell.put("requests", [played.actors.log.gateway.envelope(joined("x"), "x")])
        readers: list[Any] = []
        if topic == ADMISSIONS.name:
            readers += [played.quota.step, played.scheduler.step]
            readers += [cell.candidate(QuotaMachine(check)).run]
        else:
            readers += [played.scheduler.check_fenced]
        quota, scheduler = machines()
        own = quota if topic == ADMISSIONS.name else scheduler
        standby: Fold[Any] = Fold(cell.log, scheduler, CELL, dump=dump)
        following: Fold[Any] = Fold(cell.log, own, CELL)
        readers += [following.catch_up, cell.candidate(own).run]
        if topic == DECISIONS.name:
            readers += [standby.catch_up]
        for read in readers:
            with pytest.raises(ForeignRecord) as caught:
                async with asyncio.timeout(10):
                    await read()
            assert (caught.value.fields["topic"], caught.value.fields["offset"]) == (topic, at)
        report = await verify_log(cell.log, machines(), CELL, promises=False)
        found = [(f.topic, f.offset) for f in report.findings if f.topic != "details"]
        assert found == [(topic, at)]

    asyncio.run(run())
