"""Rows as JSON and back, and members that sort like rows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import logs
from tests.support.logs import LogBuilder
from tests.support.views import viewed
from yardmaster_projections import rows
from yardmaster_projections.errors import ViewsDamaged
from yardmaster_projections.redis import keys as redis_keys
from yardmaster_projections.row_codec import RowCodec
from yardmaster_projections.rows import JobFacts, JobRow, Row, TaskRow, WaitRow
from yardmaster_projections.store import Change, Delete, Put, Query
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events import decisions as d
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.requests import SubmittedSpec
from yardmaster_schemas.reasons import PolicyStop, Stop, StopCode, Wait, WaitCode

JOB = "a" * 12
KINDS = [
    one
    for one in vars(rows).values()
    if isinstance(one, type) and issubclass(one, Row) and one is not Row
]


async def rows_of_a_cell() -> list[Row]:
    """Rows of every kind, as a cell's life leaves them."""
    log = LogBuilder()
    log.request(logs.log_created())
    log.quota.cycle(logs.pool_configured(), logs.department(), logs.project())
    log.claim(logs.joined("n1"))
    log.scheduler.cycle()
    resources = logs.admitted(JOB).spec.resources
    log.judged(logs.submitted(JOB, resources=resources), logs.admitted(JOB))
    log.scheduler.cycle(logs.allocated(f"{JOB}.0", logs.placed("n1", 0)))
    log.claim(logs.started(f"{JOB}.0", "n1"))
    log.scheduler.cycle()
    store = await viewed(log)
    found: list[Row] = []
    for kind in KINDS:
        found += (await store.page(kind, Query(limit=1000))).rows
    return found


def written(codec: RowCodec, row: Row) -> tuple[bytes, dict[str, bytes | None]]:
    """The row as JSON, and what it shares with other rows of its job, as JSON by name."""
    encoded = codec.encode(row)
    return encoded.body, {name: codec.dump(name, one) for name, one in encoded.shared.items()}


async def test_every_row_of_a_cell_comes_back_as_it_was() -> None:
    found = await rows_of_a_cell()
    writer, reader = RowCodec(), RowCodec()
    for row in found:
        assert reader.decode(type(row), *written(writer, row)) == row
    kinds = {type(row).__name__ for row in found}
    assert kinds >= {"TaskRow", "JobRow", "NodeRow", "AttemptRow", "PoolRow", "CycleRow", "LogRow"}


async def test_a_commit_comes_back_with_the_version_of_its_rules() -> None:
    (row,) = [row for row in await rows_of_a_cell() if isinstance(row, rows.CycleRow)][:1]
    commit = replace(row.commit, rules=3)
    codec = RowCodec()
    read = codec.decode(rows.CycleRow, *written(codec, replace(row, commit=commit)))
    assert read.commit == commit


def facts(**more: object) -> JobFacts:
    plain = JobFacts(
        job_id=JOB,
        project="nlp",
        user="ana",
        name="train",
        actor="ana",
        submitted_at_ms=1,
        requested=SubmittedSpec(),
        params=({"lr": 0.1},),
    )
    return replace(plain, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stop",
    [
        Stop(code=StopCode.CANCELLED),
        Stop(code=StopCode.NODE_DRAINED, numbers={"until_at_ms": 60}, about="n1"),
        PolicyStop(policy="toy", rule="drawn", numbers={"dice": 6}),
    ],
)
def test_rows_with_reasons_and_stops_come_back(stop: Stop | PolicyStop) -> None:
    codec = RowCodec()
    stopping = rows.Stopping(stop=stop, at_ms=1, deadline_at_ms=None)
    task = TaskRow(
        job=facts(),
        index=0,
        phase=Phase.STOPPING,
        stopping=stopping,
        checkpoint=d.Checkpoint(uri="file:///c", step=3),
    )
    wait = WaitRow(
        pool="p",
        shape="s",
        priority=1,
        wait=Wait(code=WaitCode.NOT_CONSIDERED),
        since_ms=0,
        cycle=1,
    )
    job = JobRow(facts=facts(), body_digest="0", offset=1, run=Run(script="x"))
    for row in (task, wait, replace(job, again=replace(job, offset=2))):
        assert codec.decode(type(row), *written(codec, row)) == row


def test_shared_values_are_one_object_when_they_are_read() -> None:
    writer, reader = RowCodec(), RowCodec()
    raws = [
        written(writer, TaskRow(job=facts(), index=index, phase=Phase.PENDING))
        for index in range(2)
    ]
    assert raws[0][1] == raws[1][1], "equal facts are equal bytes"
    read = [reader.decode(TaskRow, *raw) for raw in raws]
    assert read[0].job is read[1].job
    assert written(reader, read[0]) == raws[0], "a row that was read is written the same"


def test_a_row_whose_facts_are_missing_is_damage_with_a_name() -> None:
    body, _ = written(RowCodec(), TaskRow(job=facts(), index=0, phase=Phase.PENDING))
    for shared in ({}, {"facts": None}):
        with pytest.raises(ViewsDamaged, match="facts of its job is missing"):
            RowCodec().decode(TaskRow, body, shared)


def test_no_more_is_remembered_than_the_limit_says() -> None:
    codec = RowCodec(max_bytes=3_000)
    for number in range(100):
        written(codec, TaskRow(job=facts(name=f"n{number}"), index=0, phase=Phase.PENDING))
        assert codec.remembered_bytes <= 3_000
    first = written(codec, TaskRow(job=facts(name="n0"), index=0, phase=Phase.PENDING))
    assert codec.decode(TaskRow, *first).job.name == "n0"
    assert codec.remembered_bytes <= 3_000


def test_bytes_of_another_version_are_damage_with_a_name() -> None:
    for raw in (b"", b"\n{}", b"\n[", b'\n{"node": 7, "at_ms": 1}'):
        with pytest.raises(ViewsDamaged, match="seen"):
            RowCodec().decode(rows.SeenRow, raw, {})
    with pytest.raises(ViewsDamaged, match="nothing"):
        RowCodec().decode_set(b"+nothing  {}", {})


def test_change_sets_come_back_in_order() -> None:
    writer, reader = RowCodec(), RowCodec()
    task = TaskRow(job=facts(), index=0, phase=Phase.PENDING)
    changes: list[Change] = [Put(task), Put(replace(task, phase=Phase.RUNNING)), Delete(task)]
    payload = writer.encode_set((change, writer.encode(change.row)) for change in changes)
    assert reader.references(payload) == []
    assert reader.decode_set(payload, {}) == tuple(changes)
    assert payload.count(b'"project":"nlp"') == 1, "shared values are written once"


def test_a_change_set_refers_to_large_facts_and_is_read_while_they_are_stored() -> None:
    writer, reader = RowCodec(), RowCodec()
    large = facts(params=({"text": "x" * 9_000},))
    task = TaskRow(job=large, index=0, phase=Phase.PENDING)
    payload = writer.encode_set([(Put(task), writer.encode(task))])
    assert len(payload) < 1_000
    assert reader.references(payload) == [("facts", JOB)]
    stored: dict[tuple[str, str], bytes | None] = {("facts", JOB): writer.dump("facts", large)}
    assert reader.decode_set(payload, stored) == (Put(task),)
    for changed in (None, writer.dump("facts", facts())):
        assert reader.decode_set(payload, {("facts", JOB): changed}) is None


TEXT = st.text(alphabet=st.sampled_from("\x00\x01az~\x7f\xffé字😀"), max_size=4)
ORDERS = st.tuples(st.integers(-(2**53), 2**53), TEXT, st.integers(-5, 2**53))


@given(st.lists(st.tuples(ORDERS, TEXT), min_size=2, max_size=6))
def test_members_sort_as_orders_and_keys_do(entries: list[tuple[rows.Order, str]]) -> None:
    def member(entry: tuple[rows.Order, str]) -> bytes:
        return redis_keys.order_bytes(entry[0]) + entry[1].encode()

    assert sorted(map(member, entries)) == list(map(member, sorted(entries)))
    for entry in entries:
        assert redis_keys.key_of(member(entry)) == entry[1]


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_facets_have_unique_names_that_fit_in_a_key(one: rows.Facet, other: rows.Facet) -> None:
    names = [redis_keys.facet_name(facet) for facet in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    long = redis_keys.facet_name(("user", "x" * 10_000))
    assert len(long) < 300
    assert long != redis_keys.facet_name(("user", "x" * 9_999))
