"""The output of a container of a fake engine, which does not send it as it should."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from tests.support.fake_engine import FakeEngine, fake_engine, frame
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.executors import container
from yardmaster_node_agent.executors.container import LOG_TRIES
from yardmaster_node_agent.executors.docker import DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Execution, Launch
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run

KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
ERROR = frame(b"Error grabbing logs: unexpected EOF", 3)
LINE = frame(b"2026-11-27T22:00:00.000000001Z one\n")
TIME = "2026-11-27T22:00:00Z"
ENDED = {"Status": "exited", "ExitCode": 3, "OOMKilled": False, "FinishedAt": TIME}


class HastyClock(SystemClock):
    """The clock of the system, whose sleeps take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@asynccontextmanager
async def started(
    folder: Path, state: dict[str, object]
) -> AsyncIterator[tuple[FakeEngine, Execution]]:
    """An engine with one container, which has the state."""
    clock = HastyClock()
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="error")
    async with fake_engine() as fake:
        root, engine = folder / "containers", Engine(fake.socket)
        guarding = Guarding(folder / "guard", fake.socket, folder / "renewed")
        executor = DockerExecutor(root, clock, engine, telemetry, guarding=guarding)
        await executor.prepare(Launch(KEY, Run(script="true", image="train:1"), {}))
        (asked,) = (each for each in fake.asked if "/containers/create" in each)
        (name,) = parse_qs(urlparse(asked).query)["name"]
        found = {"Id": "c1", "Created": TIME, "State": state, "Config": fake.created[0]}
        fake.containers = {name: found, "c1": found}
        fake.info = {"SystemTime": TIME}
        execution = (await executor.find(KEY)).execution
        assert execution is not None
        yield fake, execution


async def test_a_log_that_stays_unreadable_is_given_up_after_some_tries(tmp_path: Path) -> None:
    async with started(tmp_path, ENDED) as (fake, execution):
        fake.log = [LINE, ERROR]
        assert await execution.exited() == Exit(exit_code=3, output_doubtful=True)
        reads = [each for each in fake.asked if "/logs" in each and "follow=false" in each]
        assert len(reads) == 2 * LOG_TRIES
        assert execution.files.read_output("stdout", 0, 100) == b"one\n"


async def test_an_end_is_seen_although_the_engine_leaves_the_output_open(tmp_path: Path) -> None:
    async with started(tmp_path, ENDED) as (fake, execution):
        fake.open = True
        assert await execution.exited() == Exit(exit_code=3)


async def test_a_quiet_stream_is_followed_again_while_the_other_one_has_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "ANSWER_S", 0.1)
    monkeypatch.setattr(container, "FRESH_S", 0.0)
    state: dict[str, object] = {"Status": "running"}
    async with started(tmp_path, state) as (fake, execution), asyncio.TaskGroup() as group:
        fake.open, fake.steady, fake.running = True, frozenset({"stdout"}), ["c1"]
        exited = group.create_task(execution.exited())
        follows = {"stdout": 0, "stderr": 0}
        while follows["stderr"] < 3:
            await asyncio.sleep(0.01)
            for stream in follows:
                wanted = (f"{stream}=true", "follow=true")
                follows[stream] = sum(all(each in asked for each in wanted) for asked in fake.asked)
        assert follows["stdout"] == 1
        assert execution.files.output_size("stdout") > 0
        state |= ENDED
        fake.running = []
        assert await exited == Exit(exit_code=3)
