"""Which records are accepted, how cycles are cut, and the content of a snapshot."""

import json
from dataclasses import replace

import pytest

from tests.unit.core.admission.admission_cell import (
    CELL,
    CELL_SETUP,
    JOB,
    LOG,
    OTHER,
    START_MS,
    AdmissionCell,
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


def refusal(quota, record):
    before = quota.dumped()
    code = quota.machine.refusal(quota.state, record)
    assert quota.dumped() == before, "refusal changed the state"
    return code


def test_quota_is_a_machine_that_reads_requests_and_writes_admissions():
    machine: Machine = QuotaMachine()
    assert (machine.name, machine.output) == ("quota", ADMISSIONS)
    assert machine.inputs == (REQUESTS, DECISIONS)
    assert machine.observations == (RulesEnabledV1, SnapshotTakenV1)
    assert machine.policies(machine.initial(CELL)) == ()


# Claims ----------------------------------------------------------------------------------------


def test_a_record_that_is_not_a_request_is_refused():
    quota = AdmissionCell()
    assert refusal(quota, envelope(NodeCordonedV1(node="gpu-07"))) is RefusalCode.WRONG_TOPIC


@pytest.mark.parametrize("source", ["node/gpu-07", "quota/main.0123456789ab", "cli/ada"])
def test_a_request_from_another_service_than_a_gateway_is_refused(source):
    assert refusal(AdmissionCell(), envelope(CORDON, source=source)) is RefusalCode.NOT_ITS_AUTHOR


def test_a_request_before_the_logs_creation_is_refused():
    quota = AdmissionCell()
    quota.state = quota.machine.initial(CELL)
    assert refusal(quota, envelope(CORDON)) is RefusalCode.NOT_ITS_AUTHOR


@pytest.mark.parametrize("source", ["gateway/gw-1", "setup/main"])
def test_a_log_is_created_once(source):
    quota = AdmissionCell()
    again = envelope(replace(LOG, log_id="1" * 32), source=source, seq=9)
    assert refusal(quota, again) is RefusalCode.CONTRADICTION
    assert refusal(quota, envelope(LOG, source="setup/main")) is RefusalCode.REPEATED


def test_a_log_created_for_another_cell_is_refused():
    quota = AdmissionCell()
    quota.state = quota.machine.initial(CELL)
    assert refusal(quota, envelope(replace(LOG, cell="other"))) is RefusalCode.WRONG_CELL
    assert refusal(quota, envelope(LOG, source="node/n1")) is RefusalCode.NOT_ITS_AUTHOR
    assert refusal(quota, envelope(LOG)) is None


def test_a_record_that_is_not_after_its_sources_last_is_a_repeat():
    quota = AdmissionCell()
    assert quota.take([envelope(CORDON, epoch=3, seq=5)])
    for epoch, seq in [(3, 5), (3, 4), (2, 99)]:
        repeat = envelope(CORDON, epoch=epoch, seq=seq)
        assert refusal(quota, repeat) is RefusalCode.REPEATED, (epoch, seq)
    for epoch, seq in [(3, 6), (3, 99), (4, 0)]:
        assert refusal(quota, envelope(CORDON, epoch=epoch, seq=seq)) is None, (epoch, seq)


def test_gateways_may_interleave():
    quota = AdmissionCell()
    verdicts = quota.take(
        [
            envelope(CORDON, source="gateway/b", seq=5),
            envelope(CORDON, source="gateway/a", seq=1),
            envelope(CORDON, source="gateway/b", seq=6),
            envelope(CORDON, source="gateway/a", seq=2),
        ]
    )
    assert (len(verdicts), quota.refusals) == (4, [])


def test_a_gateway_start_whose_clock_stepped_back_is_accepted():
    quota = AdmissionCell()
    before = envelope(CORDON, source="gateway/gw-1.0123456789ab", epoch=9, seq=5)
    after = envelope(CORDON, source="gateway/gw-1.ba9876543210", epoch=3, seq=0)
    assert len(quota.take([before, after])) == 2
    assert refusal(quota, before) is RefusalCode.REPEATED
    assert refusal(quota, after) is RefusalCode.REPEATED


def test_last_records_do_not_accumulate_with_gateway_starts():
    quota = AdmissionCell(*CELL_SETUP)
    named = dict(quota.state.sources.items())
    starts = [f"gateway/gw-1.{start:012x}" for start in range(MAX_STARTS + 20)]
    quota.take([envelope(CORDON, source=start, epoch=9 + n) for n, start in enumerate(starts)])
    kept = {name: mark for name, mark in quota.state.sources.items() if name not in named}
    assert sorted(kept) == starts[20:]
    assert named.items() <= dict(quota.state.sources.items()).items()
    # A start that was dropped and writes again replaces the next oldest one.
    assert len(quota.take([envelope(CORDON, source=starts[0], epoch=9, seq=1)])) == 1
    kept = {name: mark for name, mark in quota.state.sources.items() if name not in named}
    assert sorted(kept) == [starts[0], *starts[21:]]
    loaded = quota.machine.load(CELL, json.loads(quota.dumped()))
    assert loaded.digest() == quota.state.digest()


def test_a_repeat_within_one_cycle_is_refused_and_judged_once():
    quota = AdmissionCell()
    record = envelope(CORDON)
    assert len(quota.take([record, record])) == 1
    assert quota.refusals == [RefusalCode.REPEATED]


def test_a_request_applied_twice_is_pending_once():
    quota = AdmissionCell()
    record = envelope(CORDON)
    for _ in range(2):
        quota.state = quota.machine.apply(quota.state, record.data, record.id)
    assert len(quota.state.work) == 1


def test_a_verdict_applied_twice_changes_the_state_once():
    quota = AdmissionCell(*CELL_SETUP)
    quota.ask(job())
    before = quota.dumped()
    last = quota.verdicts[-1][1]
    record_id = f"quota/main.0123456789ab/1/{quota.own_seq - 1}"
    quota.state = quota.machine.apply(quota.state, last, record_id)
    assert quota.dumped() == before


# Cycles ----------------------------------------------------------------------------------------


def test_each_verdict_names_its_request_and_its_subject():
    quota = AdmissionCell(*CELL_SETUP, job(tasks=3))
    record = envelope(PauseRequestedV1(job_id=JOB, index=2), seq=77)
    quota.state = quota.machine.apply(quota.state, record.data, record.id)
    (decision,) = quota.machine.decide(quota.state, limit=5).decisions
    assert decision == Decision(decision.event, f"{JOB}.2", "gateway/gw-1/1/77")


def test_the_next_cycle_continues_where_a_cut_cycle_stopped():
    whole, cut = AdmissionCell(), AdmissionCell()
    requests = [*CELL_SETUP, job(), job(OTHER), CORDON]
    assert whole.ask(*requests) == cut.ask(*requests, limit=1)
    assert whole.state.digest() == cut.state.digest()


def test_observations_count_against_the_limit():
    quota = AdmissionCell()
    for seq in range(3):
        record = envelope(CORDON, seq=seq)
        quota.state = quota.machine.apply(quota.state, record.data, record.id)
    seen = Decision(SnapshotTakenV1(cycle=1, state_digest="0" * 64), "main")
    verdict = quota.machine.decide(quota.state, limit=3, observed=[seen])
    assert (len(verdict.decisions), verdict.complete) == (2, False)
    verdict = quota.machine.decide(quota.state, limit=1, observed=[seen])
    assert (len(verdict.decisions), verdict.complete) == (0, False)


def test_the_submission_time_is_that_of_the_cycle_that_consumed_the_request():
    quota = AdmissionCell(*CELL_SETUP)
    first, second = envelope(job(), seq=100), envelope(job(OTHER), seq=101)
    quota.state = quota.machine.begin_cycle(quota.state, 9, START_MS + 5)
    for record in (first, second):
        quota.state = quota.machine.apply(quota.state, record.data, record.id)
    quota.record(quota.machine.decide(quota.state, limit=1).decisions[0])
    quota.state = quota.machine.begin_cycle(quota.state, 10, START_MS + 50)
    (decision,) = quota.machine.decide(quota.state, limit=1).decisions
    assert isinstance(decision.event, TaskAdmittedV1)
    assert decision.event.submitted_at_ms == START_MS + 5


def test_the_time_never_goes_backwards():
    quota = AdmissionCell()
    quota.state = quota.machine.begin_cycle(quota.state, 5, START_MS - 1000)
    assert quota.state.now_ms == START_MS


def test_a_cycle_is_due_only_for_a_pending_request():
    quota = AdmissionCell()
    assert quota.machine.due_ms(quota.state) is None
    record = envelope(CORDON)
    quota.state = quota.machine.apply(quota.state, record.data, record.id)
    assert quota.machine.due_ms(quota.state) == quota.state.now_ms


# Snapshots -------------------------------------------------------------------------------------


def busy_desk():
    setup = (*CELL_SETUP, pool("h100", default_priority=7), job(tasks=4), job(OTHER, "ghost"))
    quota = AdmissionCell(*setup)
    quota.ask(CORDON, PauseRequestedV1(job_id=JOB, index=3))
    record = envelope(job("x7t1v9ga3wde", resources=Resources(gpus=1, gpu_milli=500)), seq=500)
    quota.state = quota.machine.apply(quota.state, record.data, record.id)
    return quota


def test_a_snapshot_restores_the_state_with_its_pending_requests():
    quota = busy_desk()
    loaded = quota.machine.load(CELL, json.loads(quota.dumped()))
    assert quota.machine.digest(loaded) == quota.machine.digest(quota.state)
    assert quota.machine.dump(loaded) == quota.machine.dump(quota.state)
    assert loaded.pool_names == quota.state.pool_names
    assert dict(loaded.uses.items()) == dict(quota.state.uses.items())
    assert quota.machine.decide(loaded, limit=9) == quota.machine.decide(quota.state, limit=9)


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
    quota = busy_desk()
    with pytest.raises(SnapshotUnreadable):
        quota.machine.load(CELL, {**json.loads(quota.dumped()), **damage})


@pytest.mark.parametrize("dump", [None, [], "x", {}, 7], ids=str)
def test_a_value_that_is_no_dump_is_refused_with_a_reason(dump):
    with pytest.raises(SnapshotUnreadable):
        QuotaMachine().load(CELL, dump)
