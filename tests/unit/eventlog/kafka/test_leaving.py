"""Leaving a group when the client's own way out waits: for others to join, or for brokers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.toy_cell import until
from yardmaster_eventlog.kafka import membership as kafka_membership
from yardmaster_eventlog.kafka.membership import KafkaMembership, _Consumer
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_runtime.clock import ManualClock


class Waiting(_Consumer):
    """A consumer whose `stop` waits for ever, and that notes what it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.closed = False

        async def nothing() -> None:
            return

        async def close() -> None:
            self.closed = True

        async def send(node: int, request: Any) -> None:
            self.sent.append((node, request))

        self._closed = True
        self._fetcher = None
        self._client = SimpleNamespace(close=close, send=send)
        self._coordinator = SimpleNamespace(
            coordinator_id=3,
            group_id="group",
            member_id="member",
            _stop_heartbeat_task=nothing,
            _stop_commit_offsets_refresh_task=nothing,
        )

    async def stop(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_membership, "LEAVE_S", 0.05)


async def test_who_leaves_while_others_join_says_so_to_the_group() -> None:
    consumer = Waiting()
    await consumer.leave()
    ((node, request),) = consumer.sent
    assert (node, type(request).__name__) == (3, "LeaveGroupRequest")
    assert consumer.closed


async def test_who_is_cancelled_while_it_leaves_closes_its_connections() -> None:
    consumer = Waiting()
    leaving = asyncio.create_task(consumer.leave())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert consumer.sent
    assert consumer.closed


async def test_a_consumer_that_is_leaving_is_not_used_again() -> None:
    member = KafkaMembership(
        KafkaSettings(bootstrap="127.0.0.1:9"), "group", "topic", ManualClock()
    )
    consumer = Waiting()

    async def fails(timeout_ms: int) -> None:
        raise RuntimeError

    consumer.getmany = fails
    vars(member)["_consumer"] = consumer
    keeping = asyncio.create_task(member._keep())
    await until(lambda: consumer.closed and member._consumer is None)
    kept = member._consumer
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert kept is None
    assert consumer.closed
