"""Properties of quota's state machine for any requests, and for any split of the log over cycles.

Histories have every request type over few names, so that requests conflict: jobs are repeated, or
changed after their cancel; pools are deleted while they are used.
`AdmissionCell` checks on every cycle that `decide` leaves the state as it was and decides on the
digest that the appliers reach.
"""

import json
from collections import Counter
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.admission.admission_cell import (
    CELL,
    CELL_SETUP,
    AdmissionCell,
    envelope,
    gpus,
    job,
    pool,
    project,
)
from yardmaster_core.admission.apply import JUDGED
from yardmaster_core.admission.machine import QuotaMachine
from yardmaster_eventlog.codec import decode, encode
from yardmaster_schemas.events import admissions as a
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events import users as u
from yardmaster_schemas.image_names import is_allowed
from yardmaster_schemas.reasons import AdmissionCode, RefusalCode
from yardmaster_schemas.run_as import RunAs

JOBS = [f"{n}" * 12 for n in range(3)]
jobs = st.sampled_from(JOBS)
pools = st.sampled_from(["default", "default", "h100", "h100", "moon"])
names = st.sampled_from(["nlp", "nlp", "vision"])
departments = st.sampled_from(["research", "product"])
indexes = st.none() | st.integers(0, 3)
revisions = st.none() | st.none() | st.integers(0, 3)
priorities = st.integers(1, 99)
limits = st.none() | st.sampled_from([0, 2000, 8000])
quotas = st.dictionaries(pools, st.builds(r.Quota, limit_milli=limits), max_size=2)
some_pools = st.just(()) | st.lists(pools, max_size=2).map(tuple)
some_images = st.sampled_from([(), (), ("python",), ("r.example.org", "library/")])
some_mounts = st.sampled_from([(), ("datasets",), ("datasets", "scratch:rw"), ("scratch:rw",)])
some_users = st.sampled_from([(), ("7:7",), ("7:7", "8:8")])
some_hosts = st.sampled_from([(), (), ("git.example.org",), ("git.example.org", "h:8443")])

specs = st.builds(
    r.SubmittedSpec,
    kind=st.sampled_from(r.Kind),
    priority=st.none() | priorities,
    pools=some_pools,
    node_types=st.lists(st.sampled_from(["sxm", "pcie"]), max_size=2).map(tuple),
    resources=st.sampled_from([gpus(0), gpus(1, 500), gpus(4)]),
    replicas_min=st.integers(1, 3),
    replicas_max=st.integers(1, 3),
    tasks=st.integers(1, 3),
    grace_s=st.none() | st.integers(0, 4000),
    checkpoint_uri=st.sampled_from([None, "s3://runs/nlp/x", "s3://else/x"]),
    image=st.sampled_from([None, None, "docker.io/library/python", "r.example.org/nlp/train"]),
    mounts=st.sampled_from([(), (), ("datasets",), ("datasets", "scratch:rw")]),
    run_as=st.sampled_from([None, None, RunAs(uid=7, gid=7), RunAs(uid=8, gid=8)]),
    git_host=st.sampled_from([None, None, "git.example.org", "h:8443"]),
    min_runtime_s=st.none() | st.integers(0, 4000),
)
pool_configs = st.builds(
    r.PoolConfig,
    policy=st.builds(r.PolicyRef, name=st.sampled_from(["priority", "odd"])),
    default_priority=priorities,
    max_grace_s=st.integers(0, 100),
    unequal_gangs=st.booleans(),
    gpuless_per_node=st.none() | st.integers(0, 2),
    pool_order=st.sampled_from(r.PoolOrder),
    gpu_placement=st.none() | st.sampled_from(r.GpuPlacement),
    images=some_images,
    mounts=some_mounts,
    users=some_users,
    git_hosts=some_hosts,
)
project_configs = st.builds(
    r.ProjectConfig,
    department=departments,
    pools=some_pools,
    best_priority=st.sampled_from([1, 40]),
    default_priority=st.none() | priorities,
    limit_milli=limits,
    max_pending=st.sampled_from([2, 1_000_000]),
    max_unfinished=st.sampled_from([None, None, 4]),
    default_pools=some_pools,
    checkpoint_prefixes=st.sampled_from([(), (), ("s3://runs/nlp",)]),
    kind_node_types=st.sampled_from([{}, {r.Kind.TRAINING: ("sxm",), r.Kind.INFERENCE: ()}]),
    quotas=quotas,
    images=some_images,
    mounts=some_mounts,
    users=some_users,
    git_hosts=some_hosts,
)
roles = st.sampled_from(
    [
        u.RoleInScope(role=u.RoleName.OPERATOR, scope=u.Scope.CELL, name="main"),
        u.RoleInScope(role=u.RoleName.USER, scope=u.Scope.PROJECT, name="nlp"),
    ]
)
tokens = st.builds(
    u.NewToken,
    id=st.sampled_from(["t1", "t2", "t3"]),
    digest=st.sampled_from([f"{number:064x}" for number in range(6)]),
    lifetime_s=st.sampled_from([None, 1, 60]),
)
VALUES = {
    # The actor of all requests is `ada`.
    "principal": st.sampled_from(["ada", "ada", "bo"]),
    "roles": st.lists(roles, min_size=1, max_size=2).map(tuple),
    "tokens": st.lists(tokens, max_size=2).map(tuple),
    "token": tokens,
    "token_id": st.sampled_from(["t1", "t2", "t3"]),
    "new": st.booleans(),
    "imported": st.booleans(),
    "overlap_s": st.sampled_from([None, 0, 60]),
    "job_id": jobs,
    "index": indexes,
    "if_revision": revisions,
    "priority": priorities,
    "weight": st.integers(1, 5),
    "max_slots_milli": st.none() | st.integers(1, 8000),
    "pool": pools,
    "department": departments,
    "project": names,
    "node": st.sampled_from(["gpu-07", "gpu-09"]),
    "spec": specs,
    "body_digest": st.sampled_from(["ab" * 32, "cd" * 32]),
    "details": st.just(r.DetailsRef(offset=1, digest="ef" * 32)),
    "immediate": st.booleans(),
    "deadline_at_ms": st.integers(0, 5),
    "note": st.none(),
    "enrollment": st.builds(r.Enrollment, pool=pools, gpus=st.sampled_from([0, 8])),
    "partition": st.just(0),
    "tombstone": st.integers(0, 5),
    "disabled": st.sampled_from([(), (0,), (1, 3)]),
    "stop": st.booleans(),
}
JUDGED_OF_JOBS = (
    *(r.CancelRequestedV1, r.PauseRequestedV1, r.ResumeRequestedV1),
    *(r.PriorityChangeRequestedV1, r.WeightChangeRequestedV1, r.MaxSlotsChangeRequestedV1),
)
CONFIGS = {
    r.CellChangeRequestedV1: st.builds(
        r.CellConfig,
        project_tasks=st.sampled_from([2, 6, 200_000]),
        user_tasks=st.sampled_from([5, 100_000]),
        tasks_of=st.sampled_from([{}, {"ada": 4}]),
        default_pools=some_pools,
    ),
    r.PoolChangeRequestedV1: pool_configs,
    r.DepartmentChangeRequestedV1: st.builds(r.DepartmentConfig, quotas=quotas),
    r.ProjectChangeRequestedV1: project_configs,
}


def request_of(cls):
    made = {f.name: CONFIGS[cls] if f.name == "config" else VALUES[f.name] for f in fields(cls)}
    return st.builds(cls, **made)


#: A log with the newest rules accepts no change of them.
CHANGES = JUDGED - {r.RulesRequestedV1}
ALL = [request_of(cls) for cls in sorted(CHANGES, key=lambda cls: cls.TYPE)]
submissions = request_of(r.TaskSubmittedV1)
of_jobs = st.one_of(*(request_of(cls) for cls in JUDGED_OF_JOBS))
#: Most requests are about jobs, and most histories start with a configured cell: otherwise few
#: requests would name an existing object.
requests = st.one_of(*[submissions] * 4, of_jobs, of_jobs, *ALL)
WORKING = (*CELL_SETUP, pool("h100"), project("vision"))
SUBMITTED = (*WORKING, *(job(job_id, tasks=2 + n) for n, job_id in enumerate(JOBS)))
starts = st.sampled_from([*[SUBMITTED] * 4, WORKING, ()])
histories = st.builds(
    lambda start, some: [*start, *some], starts, st.lists(requests, min_size=5, max_size=30)
)


def machine():
    return QuotaMachine(
        lambda config: AdmissionCode.POLICY_UNKNOWN if config.policy.name == "odd" else None
    )


def records_of(history, gateways=2):
    """The history as records of several gateways in turn."""
    return [
        envelope(event, source=f"gateway/gw-{n % gateways}", seq=n // gateways)
        for n, event in enumerate(history)
    ]


def judged(records, cuts=(), limit=1000):
    """A quota that took the records, in cycles that end at `cuts`."""
    quota = AdmissionCell(machine=machine())
    start = 0
    for end in [*sorted(cuts), len(records)]:
        quota.take(records[start:end], limit)
        start = max(start, end)
    return quota


def position_free(quota):
    """The dump without its cycle counters."""
    return {k: v for k, v in quota.machine.dump(quota.state).items() if k != "cycle"}


@given(histories)
def test_each_request_gets_exactly_one_verdict_in_order(history):
    records = records_of(history)
    quota = judged(records)
    assert [cause for cause, _ in quota.verdicts] == [record.id for record in records]
    assert quota.refusals == []


@given(histories, st.data())
def test_any_split_into_cycles_gives_the_same_verdicts_and_digest(history, data):
    records = records_of(history)
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    limit = data.draw(st.integers(1, 5))
    whole, split = judged(records), judged(records, cuts, limit)
    assert split.verdicts == whole.verdicts
    assert split.state.digest() == whole.state.digest()
    assert position_free(split) == position_free(whole)


@given(histories, st.data())
def test_a_repeated_record_is_refused_and_changes_nothing(history, data):
    records = records_of(history)
    again = []
    for n, record in enumerate(records):
        again.append(record)
        again += data.draw(st.lists(st.sampled_from(records[: n + 1]), max_size=1))
    once, twice = judged(records), judged(again, limit=3)
    assert twice.refusals == [RefusalCode.REPEATED] * (len(again) - len(records))
    assert twice.verdicts == once.verdicts
    assert twice.state.digest() == once.state.digest()


@given(histories)
def test_an_event_applied_twice_counts_once_also_for_a_reader_that_does_not_check(history):
    records = records_of(history)
    leader = judged(records)
    reader = AdmissionCell(machine=machine())
    for record in records:
        for _ in range(2):
            reader.state = reader.machine.apply(reader.state, record.data, record.id, "ada")
    for seq, (_, verdict) in enumerate(leader.verdicts):
        for _ in range(2):
            record_id = f"quota/main.0123456789ab/1/{seq}"
            reader.state = reader.machine.apply(reader.state, verdict, record_id)
    assert reader.state.digest() == leader.state.digest()


@given(histories, st.data())
def test_a_restart_from_a_snapshot_at_any_point_changes_nothing(history, data):
    records = records_of(history)
    at = data.draw(st.integers(0, len(records)))
    through = judged(records)
    before = judged(records[:at])
    restarted = judged([])
    restarted.state = restarted.machine.load(CELL, json.loads(before.dumped()))
    assert restarted.dumped() == before.dumped()
    assert restarted.state.digest() == before.state.digest()
    restarted.own_seq = before.own_seq
    restarted.take(records[at:])
    assert before.verdicts + restarted.verdicts == through.verdicts
    assert restarted.state.digest() == through.state.digest()


@given(histories)
def test_a_job_is_admitted_at_most_once_and_only_judged_once(history):
    quota = judged(records_of(history))
    ends = Counter(
        v.job_id for _, v in quota.verdicts if isinstance(v, a.TaskAdmittedV1 | a.TaskRejectedV1)
    )
    asked = {event.job_id for event in history if isinstance(event, r.TaskSubmittedV1)}
    assert set(ends) == asked
    assert set(ends.values()) <= {1}


@given(histories, st.randoms(use_true_random=False), st.integers(1, 5))
def test_once_all_tasks_have_ended_only_ids_remain_whatever_the_order_of_the_ends(
    history, random, size
):
    quota, other = judged(records_of(history)), judged(records_of(history))
    tasks = [f"{id_}.{n}" for id_, row in quota.state.jobs.items() for n in range(row.tasks)]
    known = {id_: row.body for id_, row in quota.state.jobs.items()}
    quota.end(*tasks)
    random.shuffle(tasks)
    for first in range(0, len(tasks), size):
        other.end(*tasks[first : first + size])
    assert quota.state.digest() == other.state.digest()
    for state in (quota.state, other.state):
        assert not dict(state.jobs.items())
        assert {id_: state.judged_ids.get(id_) for id_ in known} == known
        assert not any(name.startswith("tasks of") for name, _ in state.uses.items())
        assert not state.in_use("project", "vision")


@given(histories)
@settings(max_examples=50)
def test_every_verdict_can_be_written_and_read_back(history):
    quota = judged(records_of(history))
    for _, verdict in quota.verdicts:
        record = envelope(verdict, source="quota/main.0123456789ab")
        assert decode(encode(record, CELL)) == record


@given(histories)
def test_after_its_cancel_a_job_accepts_only_a_sooner_end_or_an_erase(history):
    cancelled = set()
    for _, verdict in judged(records_of(history)).verdicts:
        job_id = getattr(verdict, "job_id", None)
        sooner = isinstance(verdict, a.CancelAcceptedV1) and verdict.immediate
        erased = isinstance(verdict, a.DetailsErasedV1)
        assert sooner or erased or job_id not in cancelled, verdict
        if isinstance(verdict, a.CancelAcceptedV1) and verdict.index is None:
            cancelled.add(job_id)


@given(histories)
def test_every_named_pool_and_department_exists(history):
    """No pool of a project or of an open job is deleted, and no department of a project."""
    state = judged(records_of(history)).state
    for name, row in state.projects.items():
        assert state.departments.get(row.config.department) is not None, name
        for named in (*row.config.pools, *row.config.quotas):
            assert state.pools.get(named) is not None, named
    for job_id, admitted in state.jobs.items():
        if admitted.live:
            assert state.projects.get(admitted.project) is not None, job_id
            assert all(state.pools.get(named) is not None for named in admitted.pools), job_id


@given(histories)
def test_an_admitted_job_uses_only_what_the_lists_of_its_project_and_pools_allow(history):
    records = records_of(history)
    quota = judged([])
    for record in records:
        quota.take([record])
        verdict = quota.verdicts[-1][1]
        if not isinstance(verdict, a.TaskAdmittedV1):
            continue
        spec = record.data.spec
        configs = [quota.state.projects.get(verdict.project).config]
        configs += [quota.state.pools.get(name).config for name in verdict.spec.pools]
        images = [config.images for config in configs if config.images]
        assert spec.image is None or all(is_allowed(spec.image, each) for each in images)
        hosts = [config.git_hosts for config in configs if config.git_hosts]
        assert spec.git_host is None or all(spec.git_host in each for each in hosts)
        mounts = [config.mounts for config in configs if config.mounts or config is configs[0]]
        for mount in spec.mounts:
            source = mount.removesuffix(":rw")
            assert all(mount in each or f"{source}:rw" in each for each in mounts)
        users = [config.users for config in configs if config.users or config is configs[0]]
        assert verdict.spec.run_as == spec.run_as
        assert spec.run_as is None or all(str(spec.run_as) in each for each in users)
