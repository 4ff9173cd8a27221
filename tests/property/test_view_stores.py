"""For any writes to the views, memory and Redis give the same answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.events import sample
from tests.support.redis_server import RedisServer
from tests.support.redis_views import own_database
from yardmaster_projections.memory import MemoryViewStore
from yardmaster_projections.redis.store import RedisViewStore
from yardmaster_projections.rows import (
    CountersRow,
    JobFacts,
    JobRow,
    NodeRow,
    ProjectRow,
    Row,
    SeenRow,
    SharesRow,
    TaskRow,
)
from yardmaster_projections.store import Change, Delete, Put, Query
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import Placement, SharesDividedV1
from yardmaster_schemas.events.details import Run
from yardmaster_schemas.events.node_events import NodeJoinedV1
from yardmaster_schemas.events.requests import ProjectConfig, SubmittedSpec
from yardmaster_schemas.position import Position

KEPT = 12
JOBS = [f"{name}00000000000" for name in "ab0"]
TEXTS = st.sampled_from(["", "ana", "b=b", "sha256:x", "zwölf\n", "x" * 300, "a\x00b"])
PHASES = st.sampled_from([Phase.PENDING, Phase.RUNNING, Phase.FAILED])


def at(position: int) -> Position:
    return Position(cell="main", requests=position, admissions=0, node_events=0, decisions=0)


FACTS = st.builds(
    JobFacts,
    job_id=st.sampled_from(JOBS),
    project=st.sampled_from(["nlp", "vision"]),
    user=TEXTS,
    name=TEXTS,
    actor=st.just("ana"),
    submitted_at_ms=st.integers(0, 3),
    requested=st.just(SubmittedSpec(pools=("h100", "a100"))),
    labels=st.dictionaries(st.sampled_from(["team", "team.a"]), TEXTS, max_size=2),
    params=st.sampled_from([(), ({"lr": 0.1, "list": [1, None]}, {}), ({"text": "x" * 900},)]),
)
PLACEMENT = Placement(
    replica=0,
    node="n1",
    incarnation="0123456789ab",
    address="10.0.0.1",
    slots=(0, 1),
    gpu_milli=1000,
    cpu_milli=1,
    memory_mib=1,
)
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(
        TaskRow,
        job=FACTS,
        index=st.integers(0, 2),
        phase=PHASES,
        nodes=st.sampled_from([(), ("n1",), ("n1", "n2")]),
    ),
    st.builds(
        JobRow,
        facts=FACTS,
        body_digest=st.just("0" * 64),
        offset=st.integers(0, 9),
        run=st.sampled_from([None, Run(script="true"), Run(command=("a", "b"), env={"A": "b"})]),
        phases=st.dictionaries(PHASES, st.integers(0, 2), max_size=2),
    ),
    st.builds(
        ProjectRow,
        name=st.sampled_from(["nlp", "nlp-2", "vision"]),
        revision=st.integers(1, 3),
        config=st.sampled_from([ProjectConfig(department=name) for name in ("dev", "ops")]),
    ),
    st.builds(
        NodeRow,
        name=st.sampled_from(["n1", "n2"]),
        cordoned=st.booleans(),
        joined=st.sampled_from([None, sample(NodeJoinedV1).data]),
        held=st.sampled_from(
            [{}, {(f"{JOBS[0]}.0", 0): PLACEMENT, (f"{JOBS[0]}.1", 3): PLACEMENT}]
        ),
        reserved=st.sampled_from([{}, {(f"{JOBS[1]}.0", 0): PLACEMENT}]),
    ),
    st.builds(
        CountersRow,
        name=st.sampled_from(["pool/a", "project/b"]),
        used_milli=st.dictionaries(st.sampled_from("ab"), st.integers(0, 5)),
    ),
    st.builds(
        SharesRow,
        pool=st.sampled_from(["h100", "a100"]),
        part=st.integers(0, 2),
        queues=st.sampled_from([(), sample(SharesDividedV1).data.queues]),
        at_ms=st.integers(0, 9),
        cycle=st.integers(0, 9),
    ),
    st.builds(SeenRow, node=st.sampled_from(["n1", "n2"]), at_ms=st.integers(0, 9)),
)
CHANGES = st.lists(st.one_of(st.builds(Put, ROWS), st.builds(Delete, ROWS)), max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["apply", "apply", "note"]), CHANGES), max_size=8)
KINDS: tuple[type[Row], ...] = (
    TaskRow,
    JobRow,
    ProjectRow,
    NodeRow,
    CountersRow,
    SeenRow,
    SharesRow,
)
VALUES = {
    "phase": ["pending", "running"],
    "project": ["nlp", "vision", "none"],
    "user": ["ana", "zwölf\n", "x" * 300],
    "pool": ["h100", "a100"],
    "node": ["n1"],
    "label.team": ["ana", "sha256:x"],
    "department": ["dev", "ops"],
}
QUERIES = st.builds(
    Query,
    facets=st.dictionaries(st.sampled_from(sorted(VALUES)), st.just(None), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries(
            {name: st.frozensets(st.sampled_from(VALUES[name]), max_size=3) for name in names}
        )
    ),
    prefix=st.sampled_from(["", "", "n", "nlp", "a", "a00000000000.1", "pool/"]),
    since_ms=st.integers(0, 2),
    newest_first=st.booleans(),
    limit=st.integers(1, 4),
)


async def pages(store: Any, kind: type[Row], query: Query) -> list[Any]:
    """Read all pages."""
    found: list[Any] = []
    while True:
        page = await store.page(kind, query)
        found.append(page)
        if page.next is None:
            return found
        query = Query(
            **{name: getattr(query, name) for name in Query.__slots__} | {"after": page.next}
        )


def with_facts(row: Row, facts: dict[str, JobFacts]) -> Row:
    """The row with the facts of its job."""
    match row:
        case TaskRow():
            return replace(row, job=facts[row.job.job_id])
        case JobRow():
            return replace(row, facts=facts[row.key])
    return row


def job_of(row: Row) -> str | None:
    match row:
        case TaskRow():
            return row.job.job_id
        case JobRow():
            return row.key
    return None


def agreeing(steps: Sequence[tuple[str, list[Change]]]) -> list[tuple[str, list[Change]]]:
    """The steps, but all rows of a job have the same facts, and none outlives the job's row.

    The projection writes no other rows, and a store may keep what they share once.
    """
    found: list[tuple[str, list[Change]]] = []
    rows: dict[tuple[str, str], Row] = {}
    facts: dict[str, JobFacts] = {}
    for how, changes in steps:
        for change in changes:
            if isinstance(change, Put) and isinstance(change.row, TaskRow):
                facts[change.row.job.job_id] = change.row.job
            elif isinstance(change, Put) and isinstance(change.row, JobRow):
                facts[change.row.key] = change.row.facts
        step: list[Change] = []
        for change in changes:
            if isinstance(change, Put):
                step.append(Put(with_facts(change.row, facts)))
            else:
                if isinstance(change.row, JobRow):
                    tasks = [one for one in rows.values() if isinstance(one, TaskRow)]
                    step += [Delete(one) for one in tasks if job_of(one) == change.key]
                step.append(change)
            for one in step:
                rows.pop((one.kind, one.key), None)
                if isinstance(one, Put):
                    rows[one.kind, one.key] = one.row
        for row in list(rows.values()):
            agreed = with_facts(row, facts)
            if agreed != row:
                rows[row.KIND, row.key] = agreed
                step.append(Put(agreed))
        found.append((how, step))
    return found


async def compare(
    server: RedisServer, steps: Sequence[tuple[str, list[Change]]], queries: Sequence[Query]
) -> None:
    clock = SystemClock()
    memory = MemoryViewStore("main", clock, max_kept=KEPT)
    redis_settings = own_database(server)
    writer = RedisViewStore(redis_settings, "main", clock, max_kept=KEPT)
    reader = RedisViewStore(redis_settings, "main", clock, max_kept=KEPT)
    try:
        for number, (how, changes) in enumerate(steps, 1):
            for store in (memory, writer):
                if how == "note":
                    await store.note(changes, {"number": number})
                else:
                    await store.apply(changes, at(number), {"steps": number})
            late = at(max(0, number - 2))
            assert await reader.changes(late) == await memory.changes(late)
        assert await reader.position() == await memory.position()
        assert await reader.notes() == await memory.notes()
        for after in range(len(steps) + 2):
            assert await reader.changes(at(after)) == await memory.changes(at(after))
        for kind in KINDS:
            for query in (Query(), *queries):
                assert await pages(reader, kind, query) == await pages(memory, kind, query)
            for row in (await memory.page(kind, Query())).rows:
                assert await reader.get(kind, row.key) == row
    finally:
        await writer.close()
        await reader.close()


# All examples share one server; each begins with an empty database.
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, queries=st.lists(QUERIES, max_size=4))
def test_memory_and_redis_give_the_same_answers(
    redis_server: RedisServer,
    steps: Sequence[tuple[str, list[Change]]],
    queries: Sequence[Query],
) -> None:
    asyncio.run(compare(redis_server, agreeing(steps), queries))
