"""Which records are accepted, how cycles are cut, and the content of a snapshot."""

import json
from dataclasses import replace

import pytest

from tests.unit.core.admission.desk import (
    CELL,
    CELL_SETUP,
    JOB,
    LOG,
    OTHER,
    START_MS,
    Desk,
    envelope,
    job,
    pool,
)
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_core.admission.state import MAX_STARTS
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_core.machine import Decision, Machine
from yardmaster_schemas.events.admissions import NodeCordonedV1, TaskAdmittedV1
from yardmaster_schemas.events.machine import RulesEnabledV1, SnapshotTakenV1
from yardmaster_schemas.events.requests import NodeCordonRequestedV1, PauseRequestedV1
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, REQUESTS

CORDON = NodeCordonRequestedV1(node="gpu-07")


def refusal(desk, record):
    before = desk.dumped()
    code = desk.machine.refusal(desk.state, record)
    assert desk.dumped() == before, "refusal changed the state"
    return code


def test_quota_is_a_machine_that_reads_requests_and_writes_admissions():
    machine: Machine = QuotaMachine()
    assert (machine.name, machine.output) == ("quota", ADMISSIONS)
    assert machine.inputs == (REQUESTS, DECISIONS)
    assert machine.observations == (RulesEnabledV1, SnapshotTakenV1)
    assert machine.policies(machine.initial(CELL)) == ()


# Claims ----------------------------------------------------------------------------------------


def test_a_record_that_is_not_a_request_is_refused():
    desk = Desk()
    assert refusal(desk, envelope(NodeCordonedV1(node="gpu-07"))) is RefusalCode.WRONG_TOPIC


@pytest.mark.parametrize("source", ["node/gpu-07", "quota/main.0123456789ab", "cli/ada"])
def test_a_request_from_another_service_than_a_gateway_is_refused(source):
    assert refusal(Desk(), envelope(CORDON, source=source)) is RefusalCode.NOT_ITS_AUTHOR


def test_a_request_before_the_logs_creation_is_refused():
    desk = Desk()
    desk.state = desk.machine.initial(CELL)
    assert refusal(desk, envelope(CORDON)) is RefusalCode.NOT_ITS_AUTHOR


@pytest.mark.parametrize("source", ["gateway/gw-1", "setup/main"])
def test_a_log_is_created_once(source):
    desk = Desk()
    again = envelope(replace(LOG, log_id="1" * 32), source=source, seq=9)
    assert refusal(desk, again) is RefusalCode.CONTRADICTION
    assert refusal(desk, envelope(LOG, source="setup/main")) is RefusalCode.REPEATED


def test_a_log_created_for_another_cell_is_refused():
    desk = Desk()
    desk.state = desk.machine.initial(CELL)
    assert refusal(desk, envelope(replace(LOG, cell="other"))) is RefusalCode.WRONG_CELL
    assert refusal(desk, envelope(LOG, source="node/n1")) is RefusalCode.NOT_ITS_AUTHOR
    assert refusal(desk, envelope(LOG)) is None


def test_a_record_that_is_not_after_its_sources_last_is_a_repeat():
    desk = Desk()
    assert desk.take([envelope(CORDON, epoch=3, seq=5)])
    for epoch, seq in [(3, 5), (3, 4), (2, 99)]:
        repeat = envelope(CORDON, epoch=epoch, seq=seq)
        assert refusal(desk, repeat) is RefusalCode.REPEATED, (epoch, seq)
    for epoch, seq in [(3, 6), (3, 99), (4, 0)]:
        assert refusal(desk, envelope(CORDON, epoch=epoch, seq=seq)) is None, (epoch, seq)


def test_gateways_may_interleave():
    desk = Desk()
    verdicts = desk.take(
        [
            envelope(CORDON, source="gateway/b", seq=5),
            envelope(CORDON, source="gateway/a", seq=1),
            envelope(CORDON, source="gateway/b", seq=6),
            envelope(CORDON, source="gateway/a", seq=2),
        ]
    )
    assert (len(verdicts), desk.refusals) == (4, [])


def test_a_gateway_start_whose_clock_stepped_back_is_accepted():
    desk = Desk()
    before = envelope(CORDON, source="gateway/gw-1.0123456789ab", epoch=9, seq=5)
    after = envelope(CORDON, source="gateway/gw-1.ba9876543210", epoch=3, seq=0)
    assert len(desk.take([before, after])) == 2
    assert refusal(desk, before) is RefusalCode.REPEATED
    assert refusal(desk, after) is RefusalCode.REPEATED


def test_last_records_do_not_accumulate_with_gateway_starts():
    desk = Desk(*CELL_SETUP)
    named = dict(desk.state.sources.items())
    starts = [f"gateway/gw-1.{start:012x}" for start in range(MAX_STARTS + 20)]
    desk.take([envelope(CORDON, source=start, epoch=9 + n) for n, start in enumerate(starts)])
    kept = {name: mark for name, mark in desk.state.sources.items() if name not in named}
    assert sorted(kept) == starts[20:]
    assert named.items() <= dict(desk.state.sources.items()).items()
    # A start that was dropped and writes again replaces the next oldest one.
    assert len(desk.take([envelope(CORDON, source=starts[0], epoch=9, seq=1)])) == 1
    kept = {name: mark for name, mark in desk.state.sources.items() if name not in named}
    assert sorted(kept) == [starts[0], *starts[21:]]
    loaded = desk.machine.load(CELL, json.loads(desk.dumped()))
    assert loaded.digest() == desk.state.digest()


def test_a_repeat_within_one_cycle_is_refused_and_judged_once():
    desk = Desk()
    record = envelope(CORDON)
    assert len(desk.take([record, record])) == 1
    assert desk.refusals == [RefusalCode.REPEATED]


def test_a_request_applied_twice_is_pending_once():
    desk = Desk()
    record = envelope(CORDON)
    for _ in range(2):
        desk.state = desk.machine.apply(desk.state, record.data, record.id)
    assert len(desk.state.work) == 1


def test_a_verdict_applied_twice_changes_the_state_once():
    desk = Desk(*CELL_SETUP)
    desk.ask(job())
    before = desk.dumped()
    last = desk.verdicts[-1][1]
    record_id = f"quota/main.0123456789ab/1/{desk.own_seq - 1}"
    desk.state = desk.machine.apply(desk.state, last, record_id)
    assert desk.dumped() == before


# Cycles ----------------------------------------------------------------------------------------


def test_each_verdict_names_its_request_and_its_subject():
    desk = Desk(*CELL_SETUP, job(tasks=3))
    record = envelope(PauseRequestedV1(job_id=JOB, index=2), seq=77)
    desk.state = desk.machine.apply(desk.state, record.data, record.id)
    (decision,) = desk.machine.decide(desk.state, limit=5).decisions
    assert decision == Decision(decision.event, f"{JOB}.2", "gateway/gw-1/1/77")


def test_the_next_cycle_continues_where_a_cut_cycle_stopped():
    whole, cut = Desk(), Desk()
    requests = [*CELL_SETUP, job(), job(OTHER), CORDON]
    assert whole.ask(*requests) == cut.ask(*requests, limit=1)
    assert whole.state.digest() == cut.state.digest()


def test_observations_count_against_the_limit():
    desk = Desk()
    for seq in range(3):
        record = envelope(CORDON, seq=seq)
        desk.state = desk.machine.apply(desk.state, record.data, record.id)
    seen = Decision(SnapshotTakenV1(cycle=1, state_digest="0" * 64), "main")
    verdict = desk.machine.decide(desk.state, limit=3, observed=[seen])
    assert (len(verdict.decisions), verdict.complete) == (2, False)
    verdict = desk.machine.decide(desk.state, limit=1, observed=[seen])
    assert (len(verdict.decisions), verdict.complete) == (0, False)


def test_the_submission_time_is_that_of_the_cycle_that_consumed_the_request():
    desk = Desk(*CELL_SETUP)
    first, second = envelope(job(), seq=100), envelope(job(OTHER), seq=101)
    desk.state = desk.machine.begin_cycle(desk.state, 9, START_MS + 5)
    for record in (first, second):
        desk.state = desk.machine.apply(desk.state, record.data, record.id)
    desk.record(desk.machine.decide(desk.state, limit=1).decisions[0])
    desk.state = desk.machine.begin_cycle(desk.state, 10, START_MS + 50)
    (decision,) = desk.machine.decide(desk.state, limit=1).decisions
    assert isinstance(decision.event, TaskAdmittedV1)
    assert decision.event.submitted_at_ms == START_MS + 5


def test_the_time_never_goes_backwards():
    desk = Desk()
    desk.state = desk.machine.begin_cycle(desk.state, 5, START_MS - 1000)
    assert desk.state.now_ms == START_MS


def test_a_cycle_is_due_only_for_a_pending_request():
    desk = Desk()
    assert desk.machine.due_ms(desk.state) is None
    record = envelope(CORDON)
    desk.state = desk.machine.apply(desk.state, record.data, record.id)
    assert desk.machine.due_ms(desk.state) == desk.state.now_ms


# Snapshots -------------------------------------------------------------------------------------


def busy_desk():
    setup = (*CELL_SETUP, pool("h100", default_priority=7), job(tasks=4), job(OTHER, "ghost"))
    desk = Desk(*setup)
    desk.ask(CORDON, PauseRequestedV1(job_id=JOB, index=3))
    record = envelope(job("x7t1v9ga3wde", resources=Resources(gpus=1, gpu_milli=500)), seq=500)
    desk.state = desk.machine.apply(desk.state, record.data, record.id)
    return desk


def test_a_snapshot_restores_the_state_with_its_pending_requests():
    desk = busy_desk()
    loaded = desk.machine.load(CELL, json.loads(desk.dumped()))
    assert desk.machine.digest(loaded) == desk.machine.digest(desk.state)
    assert desk.machine.dump(loaded) == desk.machine.dump(desk.state)
    assert loaded.pool_names == desk.state.pool_names
    assert dict(loaded.uses.items()) == dict(desk.state.uses.items())
    assert desk.machine.decide(loaded, limit=9) == desk.machine.decide(desk.state, limit=9)


@pytest.mark.parametrize(
    "damage",
    [
        {"form": 3},
        {"cell": "other"},
        {"jobs": {JOB: ["nlp"]}},
        {"jobs": {JOB: None}},
        {"pools": {"default": [{"policy": 3}, 1]}},
        {"work": []},
        {"work": [{"type": "Nonsense", "version": 1}]},
        {"now_ms": None},
        {"sources": 7},
    ],
    ids=str,
)
def test_a_dump_of_another_format_is_refused_with_a_reason(damage):
    desk = busy_desk()
    with pytest.raises(SnapshotUnreadable):
        desk.machine.load(CELL, {**json.loads(desk.dumped()), **damage})


@pytest.mark.parametrize("dump", [None, [], "x", {}, 7], ids=str)
def test_a_value_that_is_no_dump_is_refused_with_a_reason(dump):
    with pytest.raises(SnapshotUnreadable):
        QuotaMachine().load(CELL, dump)
