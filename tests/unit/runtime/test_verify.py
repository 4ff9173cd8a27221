"""`verify` proves an untouched log, and finds each changed record."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_cell import CELL
from tests.support.toy_cell import ToyCell
from tests.support.toy_machine import INCARNATION, ToyMachine, ToyState, job_id, progress, request
from yardmaster_core.machine import CycleResult, Decision
from yardmaster_eventlog.codec import decode, encode
from yardmaster_eventlog.errors import LogCorrupt
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.machine import inputs
from yardmaster_runtime.replay.report import Report
from yardmaster_runtime.replay.verify import verify
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.errors import MalformedRecord, UnknownEventType, UnknownVersion
from yardmaster_schemas.events.decisions import NodeSilenceObservedV1
from yardmaster_schemas.events.details import JobDetailedV1, Run
from yardmaster_schemas.events.node_events import TaskProgressedV1
from yardmaster_schemas.events.requests import CancelRequestedV1, DetailsRef
from yardmaster_schemas.topics import TOPICS

ORDERED = ("requests", "admissions", "node-events", "decisions")
Records = dict[str, list[Record]]


def details_of(number: int) -> Record:
    job = job_id(number)
    event = JobDetailedV1(
        job_id=job, salt=f"{number:032x}", name="a job", user="Ann", run=Run(command=("true",))
    )
    envelope = replace(request(number), type=event.TYPE, subject=job, data=event)
    return encode(envelope, job)


def noted(number: int) -> CancelRequestedV1:
    digest = sha256(details_of(number).value or b"").hexdigest()
    return CancelRequestedV1(job_id=job_id(number), note=DetailsRef(offset=number, digest=digest))


async def eventful() -> ToyCell:
    """Two terms of each machine, refused records, observations, a fenced leader's late batch."""
    cell = await ToyCell().create()
    for term in range(2):
        quota = cell.leader(max_decisions=3)
        scheduler = cell.leader(ToyMachine.scheduler())
        late = cell.leader()
        if term == 0:
            await late.take_term()
        await quota.take_term()
        await scheduler.take_term()
        for step in range(2):
            first = 10 * term + 5 * step
            for number in range(first, first + 5):
                await cell.put("details", [details_of(number)])
            await cell.put("requests", [request(n, noted(n)) for n in range(first, first + 5)])
            await cell.put("requests", [Record(b"main", b"junk")])
            claims = [progress(n, 666 if n % 3 == 0 else 7) for n in range(first, first + 5)]
            await cell.put("node-events", claims)
            while await quota.step():
                pass
            silence = NodeSilenceObservedV1(
                node=f"n{first}", incarnation=INCARNATION, last_heard_at_ms=first
            )
            scheduler._observations.put(Decision(silence, f"n{first}"))
            await scheduler.step()
            cell.clock.advance(1)
    return cell


async def taken_out(cell: ToyCell) -> Records:
    records = {}
    for topic in TOPICS:
        records[topic] = [stored.record for stored in await cell.stored(topic)]
    return records


async def put_in(records: Records) -> MemoryLog:
    log = MemoryLog(ManualClock())
    await log.create_topics(list(TOPICS.values()))
    for topic, batch in records.items():
        for record in batch:
            await log.append(Partition(topic), [record])
    return log


async def proof(log: EventLog) -> Report:
    machines = [ToyMachine.quota(), ToyMachine.scheduler()]
    return await verify(log, machines, CELL, promises=False)


@pytest.fixture(scope="module")
def untouched() -> Records:
    import asyncio

    async def make() -> Records:
        return await taken_out(await eventful())

    return asyncio.run(make())


async def test_an_untouched_log_is_proved_to_its_end(untouched: Records) -> None:
    report = await proof(await put_in(untouched))
    assert report.findings == ()
    assert report.ok
    assert report.unproved == {}
    quota, scheduler = report.proved
    assert (quota.machine, quota.terms, quota.inputs, quota.refused) == ("quota", 3, 24, 4)
    assert (quota.decisions, scheduler.decisions) == (20, 20 + 2 * 4)
    assert quota.cycles == 8, "each five decisions in a cycle of three and one of two"
    assert scheduler.cycles == 4
    assert report.details_checked == 20


async def test_uncommitted_inputs_are_reported_as_unproved(untouched: Records) -> None:
    more = untouched | {"requests": [*untouched["requests"], Record(b"main", b"later")]}
    report = await proof(await put_in(more))
    assert report.ok
    end = len(untouched["requests"])
    assert report.unproved == {Partition("requests"): (end, end + 1)}


def first_of(report: Report) -> tuple[str, int]:
    assert report.first is not None, "nothing was found"
    return report.first.topic, report.first.offset


def positions(records: Records, topics: tuple[str, ...] = ORDERED) -> list[tuple[str, int]]:
    """All records that something vouches for; a first TermStarted alone has nothing after it."""
    return [(topic, offset) for topic in topics for offset in range(len(records[topic]))]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_one_changed_byte_is_found_in_its_record(untouched: Records, data: st.DataObject) -> None:
    import asyncio

    topic, offset = data.draw(st.sampled_from(positions(untouched)), label="record")
    record = untouched[topic][offset]
    value = bytearray(record.value or b"")
    at = data.draw(st.integers(0, len(value) - 1), label="byte")
    value[at] ^= data.draw(st.integers(1, 255), label="bits")
    altered = list(untouched[topic])
    altered[offset] = replace(record, value=bytes(value))

    async def check() -> Report:
        return await proof(await put_in(untouched | {topic: altered}))

    assert first_of(asyncio.run(check())) == (topic, offset)


@pytest.mark.parametrize("topic", ORDERED)
async def test_a_changed_key_or_header_is_found(untouched: Records, topic: str) -> None:
    for offset, record in enumerate(untouched[topic]):
        headers = tuple((name, content + b"0") for name, content in record.headers[:1])
        for other in (
            replace(record, key=b"mine"),
            replace(record, headers=(*headers, *record.headers[1:], ("x", b"y"))),
        ):
            altered = list(untouched[topic])
            altered[offset] = other
            report = await proof(await put_in(untouched | {topic: altered}))
            assert first_of(report) == (topic, offset)


@pytest.mark.parametrize("topic", ORDERED)
async def test_a_removed_record_is_found_where_it_was(untouched: Records, topic: str) -> None:
    # Removing the last commit of a topic without readers, and all records after it, is unnoticed.
    last = len(untouched[topic]) - (topic == "decisions")
    for offset in range(last):
        altered = [r for at, r in enumerate(untouched[topic]) if at != offset]
        report = await proof(await put_in(untouched | {topic: altered}))
        assert first_of(report) == (topic, offset)


@pytest.mark.parametrize("topic", ORDERED)
async def test_a_swapped_pair_is_found_at_its_first_record(untouched: Records, topic: str) -> None:
    for offset in range(len(untouched[topic]) - 1):
        altered = list(untouched[topic])
        altered[offset], altered[offset + 1] = altered[offset + 1], altered[offset]
        if altered == untouched[topic]:
            continue
        report = await proof(await put_in(untouched | {topic: altered}))
        assert first_of(report) == (topic, offset)


class Holed:
    """A log that lacks a record without having closed the gap, as a damaged file does."""

    def __init__(self, inner: EventLog, partition: Partition, offset: int) -> None:
        self._inner = inner
        self._place = (partition, offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def read(self, partition: Partition, offset: int, **how: Any) -> object:
        found = await self._inner.read(partition, offset, **how)
        if any((r.partition, r.offset) == self._place for r in found):
            raise LogCorrupt(path="x", found="a hole", partition=partition, offset=self._place[1])
        return found


async def test_a_hole_in_the_log_is_found_and_earlier_findings_come_first(
    untouched: Records,
) -> None:
    inner = await put_in(untouched)
    for topic, offset in positions(untouched):
        log = Holed(inner, Partition(topic), offset)
        assert first_of(await proof(log)) == (topic, offset)  # type: ignore[arg-type]
    altered = list(untouched["requests"])
    altered[3] = replace(altered[3], value=b"changed")
    both = Holed(await put_in(untouched | {"requests": altered}), Partition("requests"), 9)
    assert first_of(await proof(both)) == ("requests", 3)  # type: ignore[arg-type]


async def test_swapped_missing_and_inserted_records_are_named_as_such(
    untouched: Records,
) -> None:
    claims = untouched["node-events"]
    swapped = [claims[1], claims[0], *claims[2:]]
    report = await proof(await put_in(untouched | {"node-events": swapped}))
    assert "swapped" in str(report.first)
    report = await proof(await put_in(untouched | {"node-events": claims[1:]}))
    assert "is missing" in str(report.first)
    report = await proof(await put_in(untouched | {"node-events": [claims[4], *claims]}))
    assert "inserted" in str(report.first)


# Details


def with_details(untouched: Records, details: list[Record]) -> Records:
    return untouched | {"details": details}


async def test_changed_removed_and_swapped_details_are_found(untouched: Records) -> None:
    details = untouched["details"]
    for offset in range(len(details) - 1):
        changed = [*details[:offset], replace(details[offset], value=b"x"), *details[offset + 1 :]]
        assert first_of(await proof(await put_in(with_details(untouched, changed)))) == (
            "details",
            offset,
        )
        for touched in (
            replace(details[offset], key=b"x"),
            replace(details[offset], headers=details[offset].headers[1:]),
        ):
            changed[offset] = touched
            assert first_of(await proof(await put_in(with_details(untouched, changed)))) == (
                "details",
                offset,
            )
        removed = [*details[:offset], *details[offset + 1 :]]
        assert first_of(await proof(await put_in(with_details(untouched, removed)))) == (
            "details",
            offset,
        )
        swapped = list(details)
        swapped[offset], swapped[offset + 1] = swapped[offset + 1], swapped[offset]
        assert first_of(await proof(await put_in(with_details(untouched, swapped)))) == (
            "details",
            offset,
        )


@pytest.mark.parametrize("value", [None, b"{}"], ids=["tombstone", "replaced"])
async def test_details_that_are_missing_without_an_erasure_are_found(
    untouched: Records, value: bytes | None
) -> None:
    gone = [*untouched["details"], Record(job_id(3).encode(), value)]
    report = await proof(await put_in(with_details(untouched, gone)))
    assert [(one.topic, one.offset) for one in report.findings][:1] == [("details", 3)]
    assert "missing without a DetailsErased" in str(report.first)
    assert (report.details_checked, report.details_gone) == (19, 0)


async def test_details_that_no_request_names_are_not_called_proved(untouched: Records) -> None:
    more = [*untouched["details"], details_of(99)]
    report = await proof(await put_in(with_details(untouched, more)))
    assert report.ok
    assert (report.details_checked, report.details_unnamed) == (20, 1)


# Another core


class Reordering(ToyMachine):
    """Decides the same in another order."""

    def decide(self, state: ToyState, *, limit: int, observed: object = ()) -> CycleResult:
        verdict = super().decide(state, limit=limit, observed=observed)  # type: ignore[arg-type]
        return CycleResult(verdict.decisions[::-1], verdict.state_digest, verdict.complete)


async def test_a_decision_that_differs_is_named_with_the_field(
    untouched: Records,
) -> None:
    template = ToyMachine.quota()
    machine = Reordering(template.name, template.output, template.inputs)
    report = await verify(await put_in(untouched), [machine], CELL, promises=False)
    assert report.first is not None
    assert report.first.topic == "admissions"
    assert "subject is 'job000000000', decided again it is 'job000000002'" in report.first.found


def an_older_version(record: Record) -> Envelope[Event]:
    """Decode as a version that knows no progress reports, and requests in version 0 only."""
    envelope = decode(record)
    if isinstance(envelope.data, TaskProgressedV1):
        raise UnknownEventType(type=envelope.type)
    if isinstance(envelope.data, CancelRequestedV1):
        raise UnknownVersion(type=envelope.type, version=envelope.version)
    return envelope


async def test_claims_that_an_older_version_did_not_know_are_refused_as_it_refused_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as older:
        older.setattr(inputs, "decode", an_older_version)
        cell = await eventful()
    report = await proof(await put_in(await taken_out(cell)))
    assert report.findings == ()
    assert {one.machine: one.unreadable_then for one in report.proved} == {
        "quota": 20,
        "scheduler": 20,
    }


async def test_another_recorded_refusal_must_be_reproduced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(record: Record) -> Envelope[Event]:
        raise MalformedRecord(found="a leader that refuses everything")

    with monkeypatch.context() as another:
        another.setattr(inputs, "decode", wrong)
        records = await taken_out(await eventful())
    report = await proof(await put_in(records))
    assert [one.found for one in report.findings if "refused records differ" in one.found]
