"""A forged record with an epoch far ahead does not shut out the service that it names."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cell_world import World, job, submission
from tests.support.logs import LogBuilder, joined, log_created, subject_of
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Partition
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.admissions import TaskAdmittedV1
from yardmaster_schemas.events.expiring import RecordQuarantinedV1
from yardmaster_schemas.events.machine import CycleCommittedV1
from yardmaster_schemas.events.requests import NodeCordonRequestedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.sources import MAX_EPOCH_AHEAD_MS
from yardmaster_schemas.topics import DAY_MS

CORDON = NodeCordonRequestedV1(node="n3")
LARGEST = 2**53 - 1


async def events(world: World, topic: str) -> list[Event]:
    stored = await world.log.read(Partition(topic), 0, max_records=1000)
    return [decode(each.record).data for each in stored]


@pytest.mark.parametrize("ahead_ms", [LARGEST, MAX_EPOCH_AHEAD_MS + 60_000])
async def test_a_gateways_requests_are_judged_after_a_forged_one_with_a_large_epoch(
    tmp_path: Path, ahead_ms: int
) -> None:
    world = World(tmp_path)
    await world.create()
    genuine = world.writers.gateway.envelope(submission(1), job(1))
    epoch = min(LARGEST, world.clock.now_ms() + ahead_ms)
    forged = replace(genuine, epoch=epoch, seq=LARGEST, data=CORDON, subject="n3", type=CORDON.TYPE)
    async with world.running():
        await world._put("requests", [forged, genuine])
        found: list[Event] = []
        for _ in range(50):
            await world.run_for_half_a_second()
            found = await events(world, "admissions")
            if any(isinstance(each, TaskAdmittedV1) for each in found):
                break
        else:
            raise AssertionError(f"the genuine request was not judged: {found}")
        commits = [each for each in found if isinstance(each, CycleCommittedV1)]
        refused = [one.code for each in commits for one in each.refused]
        assert refused == [RefusalCode.EPOCH_AHEAD]
        copies = [
            each.code
            for each in await events(world, "quarantine")
            if isinstance(each, RecordQuarantinedV1)
        ]
        assert copies == [RefusalCode.EPOCH_AHEAD]
    await world.prove()


def test_the_limit_of_a_gateways_epoch_is_an_hour_after_the_latest_time_of_a_cycle() -> None:
    machine, at_ms = QuotaMachine(), 1_700_000_000_000
    made = LogBuilder(now_ms=0).gateway.envelope(CORDON, subject_of(CORDON))
    state = machine.apply(machine.initial("main"), log_created(), "operator/setup/1/0")
    state = machine.begin_cycle(state, 1, at_ms)
    limit = replace(made, epoch=at_ms + MAX_EPOCH_AHEAD_MS)
    beyond = replace(made, epoch=at_ms + MAX_EPOCH_AHEAD_MS + 1)
    assert machine.refusal(state, limit) is None
    assert machine.refusal(state, beyond) is RefusalCode.EPOCH_AHEAD
    state = machine.begin_cycle(state, 2, at_ms - DAY_MS)
    assert machine.refusal(state, limit) is None, "the latest time never falls"
    loaded = machine.load("main", machine.dump(state))
    assert machine.refusal(loaded, limit) is None


async def test_requests_are_judged_whose_epoch_is_from_a_clock_of_the_log_that_was_ahead(
    tmp_path: Path,
) -> None:
    """Nothing but the newest request's append time says that the clock was a day ahead."""
    world = World(tmp_path)
    await world.create()
    world.clock.advance(DAY_MS / 1000)
    await world.request(CORDON)
    epoch = (await world.log.read(Partition("requests"), 4))[0].appended_ms
    world.clock.advance(-DAY_MS / 1000)
    made = world.writers.gateway.envelope(submission(1), job(1))
    await world._put("requests", [replace(made, source="gateway/gw-9.0123456789ab", epoch=epoch)])
    async with world.running():
        found: list[Event] = []
        for _ in range(50):
            await world.run_for_half_a_second()
            found = await events(world, "admissions")
            if any(isinstance(each, TaskAdmittedV1) for each in found):
                break
        commits = [each for each in found if isinstance(each, CycleCommittedV1)]
        assert [one.code for each in commits for one in each.refused] == []
        assert any(isinstance(each, TaskAdmittedV1) for each in found)
    await world.prove()


def test_the_limit_of_an_agents_epoch_is_an_hour_after_its_cycle() -> None:
    machine, at_ms = SchedulerMachine(), 1_700_000_000_000
    made = LogBuilder(now_ms=0).claim(joined("n1", 1)).envelope
    assert made is not None
    limit = replace(made, epoch=at_ms + MAX_EPOCH_AHEAD_MS)
    beyond = replace(made, epoch=at_ms + MAX_EPOCH_AHEAD_MS + 1)

    def refusal(envelope: Envelope[Event]) -> RefusalCode | None:
        state = machine.begin_cycle(machine.initial("main"), 1, at_ms)
        return machine.refusal(state, envelope)

    assert refusal(limit) is None
    assert refusal(beyond) is RefusalCode.EPOCH_AHEAD
