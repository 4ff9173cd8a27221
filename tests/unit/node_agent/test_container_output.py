"""The output of a container whose log the engine cannot read, on a fake engine."""

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from tests.support.fake_engine import fake_engine, frame
from yardmaster_node_agent.agent_state import Exit, ReplicaKey
from yardmaster_node_agent.executors.docker import LOG_TRIES, DockerExecutor
from yardmaster_node_agent.executors.engine import Engine
from yardmaster_node_agent.executors.guarding import Guarding
from yardmaster_node_agent.executors.port import Launch
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.events.details import Run

KEY = ReplicaKey("4kq7w2mz9c1f.0", 1, 0)
ERROR = frame(b"Error grabbing logs: unexpected EOF", 3)
LINE = frame(b"2026-11-27T22:00:00.000000001Z one\n")


class HastyClock(SystemClock):
    """The clock of the system, whose sleeps take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_a_log_that_stays_unreadable_is_given_up_after_some_tries(tmp_path: Path) -> None:
    clock = HastyClock()
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="error")
    async with fake_engine() as fake:
        root, engine = tmp_path / "containers", Engine(fake.socket)
        guarding = Guarding(tmp_path / "guard", fake.socket, tmp_path / "renewed")
        executor = DockerExecutor(root, clock, engine, telemetry, guarding=guarding)
        await executor.prepare(Launch(KEY, Run(script="true", image="train:1"), {}))
        (asked,) = (each for each in fake.asked if "/containers/create" in each)
        (name,) = parse_qs(urlparse(asked).query)["name"]
        time = "2026-11-27T22:00:00Z"
        state = {"Status": "exited", "ExitCode": 3, "OOMKilled": False, "FinishedAt": time}
        found = {"Id": "c1", "Created": time, "State": state, "Config": fake.created[0]}
        fake.containers = {name: found, "c1": found}
        fake.info = {"SystemTime": time}
        fake.log = [LINE, ERROR]
        execution = (await executor.find(KEY)).execution
        assert execution is not None
        assert await execution.exited() == Exit(exit_code=3, output_doubtful=True)
        reads = [each for each in fake.asked if "/logs" in each and "follow=false" in each]
        assert len(reads) == 2 * LOG_TRIES
        assert execution.files.read_output("stdout", 0, 100) == b"one\n"
