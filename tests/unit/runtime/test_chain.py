"""`check_chain` accepts an untouched log, and finds each changed record that a commit names."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_cell import CELL
from tests.support.toy_machine import ToyMachine
from tests.unit.runtime.test_verify import ORDERED, Records, proof, put_in, untouched
from yardmaster_eventlog.port import EventLog, Partition, Record
from yardmaster_runtime.replay.chain import check_chain
from yardmaster_runtime.replay.report import ChainProof

__all__ = ["untouched"]


async def chains(log: EventLog) -> list[ChainProof]:
    machines = [ToyMachine.quota(), ToyMachine.scheduler()]
    return [await check_chain(log, machine, CELL) for machine in machines]


def kinds(records: list[Record]) -> list[str]:
    return [dict(record.headers).get("ce_type", b"").decode() for record in records]


def covered(records: Records, topic: str) -> int:
    """The number of records before the last commit of `decisions`, which nothing names."""
    types = kinds(records[topic])
    if topic != "decisions":
        return len(types)
    return len(types) - 1 - types[::-1].index("CycleCommitted")


async def found_in(records: Records) -> list[tuple[str, int]]:
    checked = await chains(await put_in(records))
    findings = [one.finding for one in checked if one.finding is not None]
    return [(finding.topic, finding.offset) for finding in findings]


async def test_an_untouched_chain_has_the_counts_of_the_whole_proof(untouched: Records) -> None:
    log = await put_in(untouched)
    whole = await proof(log)
    checked = await chains(log)
    assert [one.finding for one in checked] == [None, None]
    assert [one.unproved for one in checked] == [{}, {}]
    for one, proved in zip(checked, whole.proved, strict=True):
        for name in ("machine", "terms", "cycles", "decisions", "inputs", "dropped", "last_cycle"):
            assert getattr(one, name) == getattr(proved, name), name
        assert (one.from_cycle, one.now_ms) == (0, proved.now_ms)


async def test_records_that_no_cycle_has_read_are_reported(untouched: Records) -> None:
    more = untouched | {"requests": [*untouched["requests"], Record(b"main", b"later")]}
    quota, _ = await chains(await put_in(more))
    end = len(untouched["requests"])
    assert quota.finding is None
    assert quota.unproved == {Partition("requests"): (end, end + 1)}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_one_changed_byte_is_found(untouched: Records, data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(ORDERED), label="topic")
    offset = data.draw(st.integers(0, covered(untouched, topic) - 1), label="offset")
    record = untouched[topic][offset]
    value = bytearray(record.value or b"")
    at = data.draw(st.integers(0, len(value) - 1), label="byte")
    value[at] ^= data.draw(st.integers(1, 255), label="bits")
    altered = list(untouched[topic])
    altered[offset] = replace(record, value=bytes(value))
    found = asyncio.run(found_in(untouched | {topic: altered}))
    types = kinds(untouched[topic])
    if (
        types[offset] in ("CycleCommitted", "TermStarted")
        and "CycleCommitted" in types[offset + 1 :]
    ):
        # The commit after it names it, unless it contradicts itself.
        following = types.index("CycleCommitted", offset + 1)
        assert found[0][0] == topic
        assert offset <= found[0][1] <= following
    else:
        # Its own commit names it, or the commit of the machine that took it.
        assert (topic, offset) in found


@pytest.mark.parametrize("topic", ORDERED)
async def test_a_changed_key_or_header_is_found(untouched: Records, topic: str) -> None:
    for offset in range(covered(untouched, topic)):
        record = untouched[topic][offset]
        for other in (
            replace(record, key=b"mine"),
            replace(record, headers=(*record.headers, ("x", b"y"))),
            replace(record, headers=record.headers[1:]),
            replace(record, headers=(("ce_type", b"\xff"), *record.headers[1:])),
        ):
            altered = list(untouched[topic])
            altered[offset] = other
            if other != record:
                assert await found_in(untouched | {topic: altered}), f"{topic} {offset} {other}"


@pytest.mark.parametrize("topic", ORDERED)
async def test_a_removed_or_moved_record_is_found(untouched: Records, topic: str) -> None:
    records = untouched[topic]
    for offset in range(covered(untouched, topic) - 1):
        removed = [*records[:offset], *records[offset + 1 :]]
        swapped = [*removed[: offset + 1], records[offset], *removed[offset + 1 :]]
        for altered in (removed, swapped):
            if altered != records:
                assert await found_in(untouched | {topic: altered}), f"{topic} {offset}"
