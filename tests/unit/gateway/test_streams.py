"""Watches and followed output: their events, how they resume, and when they are closed."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import logs
from tests.support.gateway import CALLERS, GatewayCell, gateway_cell
from tests.support.pauses import let_wait_begin
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.port import Partition
from yardmaster_gateway.identity.authorization import Caller
from yardmaster_gateway.routes import logs as output_of_tasks
from yardmaster_gateway.routes import watch
from yardmaster_projections.rows import AttemptRow, OutputRow, Row
from yardmaster_projections.store import Found, RowKey
from yardmaster_schemas.events.expiring import NodeHeartbeatV1, Stream, TaskOutputV1
from yardmaster_schemas.position import Position
from yardmaster_schemas.sources import agent_source

Event = tuple[str, str | None, Any]


def events(text: str) -> list[Event]:
    """(event, id, data) of each server-sent event."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


async def watched(cell: GatewayCell, query: str = "", token: str = "operator", **what: Any) -> Any:
    response = await cell.call("GET", f"/v1/watch{query}", token=token, run=False, **what)
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


async def test_a_watch_begins_with_a_snapshot_of_what_has_not_ended(cell: GatewayCell) -> None:
    job = await cell.submit()
    done = await cell.submit()
    await cell.starts(f"{done}.0")
    await cell.finishes(f"{done}.0")
    found = await watched(cell, "?kinds=task,node")
    first, second = found[0], found[1]
    assert (first[0], first[2]["kind"], first[2]["complete"]) == ("snapshot", "task", True)
    assert [task["task_id"] for task in first[2]["items"]] == [f"{job}.0"]
    assert [node["name"] for node in second[2]["items"]] == ["n1"]
    assert second[1] == str(await cell.store.position()), (
        "the last part has the position to resume from"
    )


async def test_a_watch_sends_every_change_after_its_snapshot(cell: GatewayCell) -> None:
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watched(cell))
        await cell.until_reads_wait()
        group.create_task(cell.submit())
    found = watching.result()
    assert found[0][0] == "snapshot"
    phases = [data["item"]["phase"] for event, _, data in found if event == "upsert"]
    assert phases == ["submitted", "pending", "starting"]


async def test_a_watch_resumes_after_the_last_id_without_loss(cell: GatewayCell) -> None:
    job = await cell.submit()
    position = str(await cell.store.position())
    await cell.starts(f"{job}.0")
    await cell.finishes(f"{job}.0")
    for headers, query in (({"Last-Event-ID": position}, ""), ({}, f"?after={position}")):
        found = await watched(cell, query, headers=headers)
        upserts = [one for one in found if one[0] != "bookmark"]
        assert [event for event, _, _ in upserts] == ["upsert", "upsert"]
        assert [data["item"]["phase"] for _, _, data in upserts] == ["running", "succeeded"]
        assert upserts[-1][1] == str(await cell.store.position())


async def test_a_watch_that_resumes_too_late_starts_with_a_new_snapshot(cell: GatewayCell) -> None:
    cell.store._max_kept = 3
    old = str(await cell.store.position())
    for _ in range(3):
        await cell.submit()
    found = await watched(cell, f"?after={old}")
    assert found[0][0] == "snapshot"
    assert len(found[0][2]["items"]) == 3


async def test_a_watch_that_is_slower_than_the_retention_of_changes_is_closed(
    cell: GatewayCell,
) -> None:
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watched(cell))
        await cell.until_reads_wait()
        cell.store._max_kept = 1
        for _ in range(3):
            await cell.submit()
    assert watching.result()[0][0] == "snapshot"


async def test_a_watch_sends_deletions(cell: GatewayCell) -> None:
    position = str(await cell.store.position())
    await cell.call("DELETE", "/v1/pools/h100", status=202, headers={"If-Match": "*"})
    found = await watched(cell, f"?kinds=pool&after={position}")
    assert found[0][0] == "delete"
    assert found[0][2] == {"kind": "pool", "key": "h100"}


async def test_a_watch_contains_only_what_the_caller_may_see(cell: GatewayCell) -> None:
    start = str(await cell.store.position())
    ours = await cell.submit()
    await cell.submit(token="vision", project="vision")
    kinds = "task,job,project,department,pool,node"
    fresh = await watched(cell, f"?kinds={kinds}", token="nlp")
    changes = await watched(cell, f"?kinds={kinds}&after={start}", token="nlp")
    for _, _, data in fresh:
        for item in data.get("items", []):
            assert "viki" not in json.dumps(item)
            assert item.get("project", "nlp") == "nlp"
    for event, _, data in changes:
        if event == "upsert" and data["kind"] in {"task", "job"}:
            assert data["item"]["job_id"] == ours


class Forgetful:
    """Authenticates a caller the first two times only."""

    def __init__(self) -> None:
        self.calls = 0

    async def identify(self, token: str) -> Caller | None:
        self.calls += 1
        return CALLERS[token] if self.calls <= 2 else None


async def test_a_quiet_watch_sends_bookmarks_and_checks_its_caller_again() -> None:
    async with gateway_cell(identity=Forgetful(), bookmark_s=0.01, stream_s=60.0) as cell:
        found = await watched(cell)
    assert [event for event, _, _ in found] == ["snapshot", "bookmark"]
    assert found[-1][1] is not None, "a bookmark names a position"


class Revocable:
    """Authenticates every caller, or once more after `revoke`; `refused` is set by a refusal."""

    def __init__(self) -> None:
        self._left: int | None = None
        self.refused = asyncio.Event()

    def revoke(self) -> None:
        self._left = 1

    async def identify(self, token: str) -> Caller | None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.refused.set()
                return None
        return CALLERS[token]


async def test_a_watch_that_is_never_idle_ends_when_its_token_is_revoked() -> None:
    tokens = Revocable()
    async with gateway_cell(identity=tokens, bookmark_s=0.05, stream_s=60.0) as cell:

        async def changed(after: Position, timeout_s: float) -> bool:
            await asyncio.sleep(0.01)
            return True

        cell.store.changed = changed  # type: ignore[method-assign]
        tokens.revoke()
        async with asyncio.timeout(30):
            found = await watched(cell)
    assert tokens.refused.is_set()
    assert [event for event, _, _ in found] == ["snapshot"]


async def test_followed_output_ends_when_the_token_is_revoked() -> None:
    tokens = Revocable()
    async with gateway_cell(identity=tokens, bookmark_s=0.05, stream_s=60.0) as cell:
        task = f"{await cell.submit()}.0"
        await cell.starts(task)
        await prints(cell, task, "before\n", 0)

        async def print_after_the_refusal() -> None:
            await tokens.refused.wait()
            await prints(cell, task, "after\n", 1)

        tokens.revoke()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(print_after_the_refusal())
            response = await cell.call("GET", f"/v1/tasks/{task}/logs?follow=true", run=False)
    found = events(response.text)
    assert [data["text"] for event, _, data in found if event == "output"] == ["before\n"]
    assert "end" not in [event for event, _, _ in found], "a client that resumes learns why"


async def test_streams_are_bounded() -> None:
    async with gateway_cell(max_streams=1) as cell, asyncio.TaskGroup() as group:
        group.create_task(watched(cell))
        await cell.until_reads_wait()
        await cell.call("GET", "/v1/watch", status=429, run=False)


@pytest.mark.parametrize("query", ["?kinds=share", "?kinds=", "?after=x", "?kinds=task,task,"])
async def test_a_watch_with_invalid_parameters_is_refused(cell: GatewayCell, query: str) -> None:
    await cell.call("GET", f"/v1/watch{query}", status=400)


def test_the_store_keeps_changes_of_every_kind_that_can_be_watched() -> None:
    assert all(kind.WATCHED for kind in watch.KINDS.values())


# --- output -------------------------------------------------------------------------------------


async def write_output(
    cell: GatewayCell,
    task_id: str,
    text: str,
    seq: int,
    *,
    node: str = "n1",
    source: str | None = None,
    attempt: int = 1,
    replica: int = 0,
) -> None:
    event = TaskOutputV1(
        task_id=task_id,
        attempt=attempt,
        replica=replica,
        node=node,
        stream=Stream.STDOUT,
        seq=seq,
        at_ms=1_700_000_000_000,
        text=text,
    )
    await cell.write("task-logs", agent_source(source or node, logs.incarnation()), event, task_id)


async def prints(cell: GatewayCell, task_id: str, text: str, seq: int, **options: Any) -> None:
    """Write a piece of output that the views have indexed."""
    await write_output(cell, task_id, text, seq, **options)
    await cell.follower.catch_up()


async def test_output_is_the_text_of_the_newest_attempt(cell: GatewayCell) -> None:
    job = await cell.submit()
    other = await cell.submit()
    task = f"{job}.0"
    await cell.starts(task)
    await cell.starts(f"{other}.0")
    assert (await cell.call("GET", f"/v1/tasks/{task}/logs")).text == ""
    await prints(cell, task, "one\n", 0)
    await prints(cell, f"{other}.0", "not mine\n", 0)
    await prints(cell, task, "two\nthree\n", 1)
    response = await cell.call("GET", f"/v1/tasks/{task}/logs")
    assert response.text == "one\ntwo\nthree\n"
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert (await cell.call("GET", f"/v1/tasks/{task}/logs?tail=2")).text == "two\nthree\n"
    assert (await cell.call("GET", f"/v1/tasks/{task}/logs?tail=0")).text == ""


async def test_output_of_a_missing_attempt_or_replica_is_refused(
    cell: GatewayCell,
) -> None:
    task = f"{await cell.submit()}.0"
    early = await cell.call("GET", f"/v1/tasks/{task}/logs?attempt=2", status=404)
    await cell.starts(task)
    for follow in ("", "&follow=true"):
        late = await cell.call("GET", f"/v1/tasks/{task}/logs?attempt=9{follow}", status=404)
        assert "attempt 9" in late["detail"]
        assert late["detail"].endswith("it has attempt 1 only.")
        other = await cell.call("GET", f"/v1/tasks/{task}/logs?replica=5{follow}", status=404)
        assert "replica 5" in other["detail"]
        assert "replica 0 only" in other["detail"]
    assert "attempt" in early["detail"]


async def test_the_last_lines_are_counted_over_pieces_and_the_last_may_have_no_line_break(
    cell: GatewayCell,
) -> None:
    task = f"{await cell.submit()}.0"
    await cell.starts(task)
    for seq, text in enumerate(["one\nt", "wo\nthree\n", "fo", "ur"]):
        await prints(cell, task, text, seq)
    for lines, wanted in ((0, ""), (1, "four"), (2, "three\nfour"), (3, "two\nthree\nfour")):
        response = await cell.call("GET", f"/v1/tasks/{task}/logs?tail={lines}")
        assert response.text == wanted, lines
    response = await cell.call("GET", f"/v1/tasks/{task}/logs?tail=2&pieces=true")
    found = events(response.text)
    pieces = [data for event, _, data in found if event == "output"]
    assert [piece["text"] for piece in pieces] == ["three\n", "fo", "ur"]
    assert {(piece["attempt"], piece["replica"]) for piece in pieces} == {(1, 0)}
    assert found[-1][0] == "end"


async def test_followed_output_starts_with_its_last_lines_or_after_the_last_event_id() -> None:
    async with gateway_cell(stream_s=0.2, bookmark_s=0.05) as cell:
        task = f"{await cell.submit()}.0"
        await cell.starts(task)
        for seq in range(4):
            await prints(cell, task, f"line {seq}\n", seq)
        path = f"/v1/tasks/{task}/logs?follow=true"

        async def followed(query: str, **headers: str) -> list[Event]:
            answer = await cell.call("GET", path + query, run=False, headers=headers)
            return [one for one in events(answer.text) if one[0] == "output"]

        assert [data["text"] for _, _, data in await followed("&tail=1")] == ["line 3\n"]
        every = await followed("")
        assert len(every) == 4
        resumed = await followed("&tail=1", **{"Last-Event-ID": str(every[1][1])})
        assert resumed == every[2:]


async def test_followed_output_with_tail_zero_resumes_with_all_output_written_since() -> None:
    async with gateway_cell(stream_s=0.2, bookmark_s=0.05) as cell:
        task = f"{await cell.submit()}.0"
        await cell.starts(task)
        await prints(cell, task, "before\n", 0)
        path = f"/v1/tasks/{task}/logs?follow=true&tail=0"
        first = events((await cell.call("GET", path, run=False)).text)
        seen = [id_ for _, id_, _ in first if id_ is not None]
        assert not [one for one in first if one[0] == "output"]
        await prints(cell, task, "while disconnected\n", 1)
        answer = await cell.call("GET", path, run=False, headers={"Last-Event-ID": seen[-1]})
        found = [data["text"] for event, _, data in events(answer.text) if event == "output"]
        assert found == ["while disconnected\n"]


async def test_output_of_another_node_or_a_repeated_piece_is_ignored(cell: GatewayCell) -> None:
    await cell.joins("n2")
    await cell.run_until_idle()
    job = await cell.submit()
    task = f"{job}.0"
    await cell.starts(task)
    await prints(cell, task, "mine\n", 0)
    await prints(cell, task, "forged by a neighbour\n", 1, node="n2")
    await prints(cell, task, "forged in another's name\n", 2, source="n2")
    await prints(cell, task, "mine\n", 0)
    assert (await cell.call("GET", f"/v1/tasks/{task}/logs")).text == "mine\n"


async def test_output_is_followed_until_the_task_has_ended() -> None:
    async with gateway_cell(stream_s=5.0, bookmark_s=0.05) as cell:
        job = await cell.submit()
        task = f"{job}.0"
        await cell.starts(task)
        await prints(cell, task, "before\n", 0)

        async def continue_task() -> None:
            await let_wait_begin(0.1)
            await prints(cell, task, "while\n", 1)
            await cell.finishes(task)

        async with asyncio.TaskGroup() as group:
            group.create_task(continue_task())
            response = await cell.call("GET", f"/v1/tasks/{task}/logs?follow=true", run=False)
    found = events(response.text)
    texts = [data["text"] for event, _, data in found if event == "output"]
    assert texts == ["before\n", "while\n"]
    assert found[-1][0] == "end"
    assert found[-1][2] == {"phase": "succeeded"}


async def followed_while_views_are_behind(
    cell: GatewayCell, task: str, missing: type[Row]
) -> list[str]:
    """The followed output of a task; the views catch up after they have lacked a row once."""
    await write_output(cell, task, "first\n", 0)
    row_missing = asyncio.Event()
    get_all = cell.store.get_all

    async def get_all_and_notify(wanted: Sequence[RowKey]) -> Found:
        found = await get_all(wanted)
        kinds = [kind for (kind, _), row in zip(wanted, found.rows, strict=True) if row is None]
        if missing in kinds:
            row_missing.set()
        return found

    async def catch_up_views() -> None:
        await row_missing.wait()
        await cell.starts(task)
        await cell.finishes(task)

    cell.store.get_all = get_all_and_notify  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        group.create_task(catch_up_views())
        response = await cell.call("GET", f"/v1/tasks/{task}/logs?follow=true", run=False)
    return [data["text"] for event, _, data in events(response.text) if event == "output"]


async def test_output_that_the_views_do_not_know_yet_is_followed_from_its_first_line() -> None:
    async with gateway_cell(stream_s=5.0, bookmark_s=0.05) as cell:
        task = f"{await cell.submit()}.0"
        assert await followed_while_views_are_behind(cell, task, OutputRow) == ["first\n"]


async def test_output_is_not_lost_while_the_views_are_behind_the_allocation_of_its_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The reads for output without an allocation are already used up.
    monkeypatch.setattr(output_of_tasks, "LATE_READS", 0)
    async with gateway_cell(stream_s=30.0, bookmark_s=0.05) as cell:
        ahead = f"{await cell.submit(resources={'gpus': 4})}.0"
        task = f"{await cell.submit(resources={'gpus': 4})}.0"
        assert (await cell.call("GET", f"/v1/tasks/{task}"))["phase"] == "pending"
        await cell.starts(ahead)
        await cell.claim(logs.exited(ahead, "n1"))
        await cell.claim(logs.released(ahead, "n1"))
        await cell.run_machines()
        assert await followed_while_views_are_behind(cell, task, AttemptRow) == ["first\n"]


async def test_a_heartbeat_sets_the_time_when_a_node_was_seen(cell: GatewayCell) -> None:
    beat = NodeHeartbeatV1(
        node="n1", incarnation=logs.incarnation(), sent_at_ms=5, running=0, gpu_milli_used=0
    )
    await cell.write("heartbeats", agent_source("n2", beat.incarnation), beat, "n1")
    await cell.run_until_idle()
    assert (await cell.call("GET", "/v1/nodes/n1"))["seen_at"] is None, (
        "n2 must not send heartbeats of n1"
    )
    await cell.write("heartbeats", agent_source("n1", beat.incarnation), beat, "n1")
    await cell.run_until_idle()
    assert (await cell.call("GET", "/v1/nodes/n1"))["seen_at"] is not None


# --- the log ------------------------------------------------------------------------------------


async def test_the_log_is_read_page_by_page_in_causal_order(cell: GatewayCell) -> None:
    job = await cell.submit()
    await cell.starts(f"{job}.0")
    whole = await cell.call("GET", "/v1/events?limit=1000")
    places = [(one["topic"], one["offset"]) for one in whole["items"]]
    assert len(set(places)) == len(places)
    types = [one["type"] for one in whole["items"]]
    order = ["LogCreated", "TaskSubmitted", "TaskAdmitted", "SlotsAllocated", "TaskStarted"]
    assert [types.index(one) for one in order] == sorted(types.index(one) for one in order)
    for topic in ("requests", "admissions", "node-events", "decisions"):
        assert len([one for one in places if one[0] == topic]) == len(await cell.events(topic))
    paged: list[Any] = []
    after = "main@"
    while True:
        page = await cell.call("GET", f"/v1/events?limit=7&after={after}")
        if not page["items"]:
            break
        paged += page["items"]
        after = page["position"]
    assert sorted(places) == sorted((one["topic"], one["offset"]) for one in paged)
    # Terms start without an input.
    assert next(one["type"] for one in paged if one["type"] != "TermStarted") == "LogCreated"
    resumed = await cell.call("GET", f"/v1/events?after={paged[9]['position']}&limit=1000")
    assert [one["id"] for one in resumed["items"]] == [one["id"] for one in paged[10:]]


def expire(cell: GatewayCell, topic: str, first: int) -> None:
    """Let the records of a topic before the offset `first` expire."""
    assert isinstance(cell.log, MemoryLog)
    sequence = cell.log._shared.sequences[Partition(topic)]
    sequence.first = first
    sequence.records = [one for one in sequence.records if one.offset >= first]


async def test_records_that_have_expired_are_not_skipped_in_silence() -> None:
    cell = await GatewayCell().start()  # not audited afterwards: it loses records
    await cell.starts(f"{await cell.submit()}.0")
    whole = await cell.call("GET", "/v1/events?limit=1000")
    expire(cell, "requests", 1)
    refused = await cell.call("GET", "/v1/events?after=main@", status=410, run=False)
    assert refused["code"] == "position_expired"
    oldest = refused["detail"].split("Those after ")[1].split()[0]
    assert oldest == "main@r1.a0.n0.d0"
    assert "continue after the position" in refused["hint"]
    left = await cell.call("GET", f"/v1/events?after={oldest}&limit=1000", run=False)
    kept = [one["id"] for one in whole["items"] if (one["topic"], one["offset"]) != ("requests", 0)]
    assert sorted(one["id"] for one in left["items"]) == sorted(kept)


async def test_followed_output_that_would_miss_expired_pieces_is_refused() -> None:
    cell = await GatewayCell(stream_s=0.2, bookmark_s=0.05).start()
    task = f"{await cell.submit()}.0"
    await cell.starts(task)
    for seq in range(4):
        await prints(cell, task, f"line {seq}\n", seq)
    expire(cell, "task-logs", 2)
    path = f"/v1/tasks/{task}/logs?follow=true"
    after: dict[str, Any] = {"headers": {"Last-Event-ID": "0"}, "run": False}
    refused = await cell.call("GET", path, status=410, **after)
    assert refused["code"] == "position_expired"
    assert refused["detail"] == (
        "Records after position 0 have expired. Those after 1 are still in the log."
    )
    for headers in ({"Last-Event-ID": "1"}, {}):
        answer = await cell.call("GET", path, headers=headers, run=False)
        found = [data["text"] for event, _, data in events(answer.text) if event == "output"]
        assert found == ["line 2\n", "line 3\n"]


async def test_the_events_of_a_task_are_those_about_it_and_its_job(cell: GatewayCell) -> None:
    job = await cell.submit(tasks={"count": 2})
    await cell.starts(f"{job}.0")
    await cell.finishes(f"{job}.0")
    found = await cell.call("GET", f"/v1/tasks/{job}.0/events")
    assert [one["type"] for one in found["items"]] == [
        "TaskSubmitted",
        "TaskAdmitted",
        "SlotsAllocated",
        "TaskStarted",
        "TaskExited",
        "SlotsReleased",
        "TaskEnded",
    ]
    attempts = await cell.call("GET", f"/v1/tasks/{job}.0/attempts")
    assert [(one["attempt"], one["end"]) for one in attempts["items"]] == [(1, "exit")]
    assert attempts["items"][0]["replicas"][0]["exit_code"] == 0


async def test_a_cycle_shows_its_inputs(cell: GatewayCell) -> None:
    await cell.submit()
    number = (await cell.call("GET", "/v1/tasks"))["position"]
    answer = await cell.call("GET", "/v1/cycles/main/1")
    assert answer["cycle"] == 1
    assert {taken["topic"] for taken in answer["inputs"]} <= {"admissions", "node-events"}
    assert number.startswith("main@")


def test_tokens_of_the_tests_are_all_different() -> None:
    assert len({caller.user for caller in CALLERS.values()}) == len(CALLERS)


async def test_resumed_output_misses_nothing_of_an_attempt_that_ended_in_the_meantime() -> None:
    async with gateway_cell(stream_s=0.2, bookmark_s=0.05) as cell:
        task = f"{await cell.submit()}.0"
        await cell.starts(task)
        await prints(cell, task, "one\n", 0)
        path = f"/v1/tasks/{task}/logs?follow=true"
        answer = await cell.call("GET", path, run=False)
        (seen,) = [one for one in events(answer.text) if one[0] == "output"]
        await prints(cell, task, "two\n", 1)
        await cell.call("POST", f"/v1/tasks/{task}/pause", status=202, json={})
        await cell.finishes(task)
        await cell.call("POST", f"/v1/tasks/{task}/resume", status=202, json={})
        await cell.starts(task, attempt=2)
        await prints(cell, task, "three\n", 0, attempt=2)
        headers = {"Last-Event-ID": str(seen[1])}
        answer = await cell.call("GET", path, run=False, headers=headers)
        texts = [data["text"] for event, _, data in events(answer.text) if event == "output"]
        assert texts == ["two\n", "three\n"]
