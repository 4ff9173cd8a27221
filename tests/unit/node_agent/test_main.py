"""The agent's settings and its entry point."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from yardmaster_core.fencing import LEAST_FENCE_S
from yardmaster_eventlog.errors import NotOurLog
from yardmaster_eventlog.port import EventLog
from yardmaster_node_agent import main as entry
from yardmaster_node_agent.errors import LedgerInUse
from yardmaster_node_agent.ledger import FileLedger
from yardmaster_node_agent.main import main, serve
from yardmaster_node_agent.settings import MAX_HEARTBEAT_S, Settings
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import SystemClock
from yardmaster_runtime.service import Process
from yardmaster_runtime.settings import LogSettings
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE", "DATA_DIR", "GPUS", "DEVICES", "HEARTBEAT_S"):
        monkeypatch.delenv(f"YARD_AGENT_{name}", raising=False)


def test_the_error_names_the_missing_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_HEARTBEAT_S", "soon")
    assert main() == 2
    said = capsys.readouterr().err
    assert "YARD_AGENT_NODE" in said
    assert "YARD_AGENT_DATA_DIR" in said
    assert "YARD_AGENT_HEARTBEAT_S" in said


def test_the_environment_configures_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_AGENT_NODE", "gpu-07")
    monkeypatch.setenv("YARD_AGENT_DATA_DIR", "relative/place")
    monkeypatch.setenv("YARD_AGENT_DEVICES", '["0", "2"]')
    settings = Settings()
    assert (settings.node, settings.devices) == ("gpu-07", ("0", "2"))
    assert settings.data_dir == Path.cwd() / "relative/place"


def test_settings_of_all_services_apply_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_LOG", "kafka://broker:9092")
    monkeypatch.setenv("YARD_CELL", "east")
    monkeypatch.setenv("YARD_PARTITION", "1")
    monkeypatch.setenv("YARD_AGENT_PARTITION", "2")
    settings = Settings(node="gpu-07", data_dir=Path("there"))
    assert (settings.log_url, settings.cell) == ("kafka://broker:9092", "east")
    assert settings.partition == 2, "its own word comes first"


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": "No Name"},
        {"port_first": 30_000, "port_last": 20_000},
        {"gpus": 3, "devices": ("0",)},
        {"heartbeat_s": 0},
        {"heartbeat_s": MAX_HEARTBEAT_S + 0.1},
        {"max_replicas": 100_000},
        {"unknown": 1},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"node": "n1", "data_dir": tmp_path, **wrong})


def test_one_late_heartbeat_does_not_expire_the_shortest_fence() -> None:
    assert MAX_HEARTBEAT_S == LEAST_FENCE_S / 2


class Away(Process):
    """A process whose log does not answer at its start, or is none."""

    found: Exception | None = None

    async def open_log(self, settings: LogSettings) -> EventLog:
        if self.found is not None:
            raise self.found
        await asyncio.Event().wait()
        raise AssertionError


class NoLog(Away):
    found = NotOurLog(path="there", found="something else")


def process(cls: type[Process]) -> Process:
    clock = SystemClock()
    telemetry = Telemetry("node_agent", now_ms=clock.now_ms, level="warning")
    return cls(clock, SystemChance(), telemetry, Health())


async def test_an_agent_starts_while_its_log_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "HEAD_START_S", 0.01)
    settings = Settings(node="n1", data_dir=tmp_path, gpus=0)
    ledger = FileLedger(tmp_path / "ledger")
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve(process(Away), settings))
        async with asyncio.timeout(20):
            while not _in_use(ledger):  # noqa: ASYNC110 there is no event to await
                await asyncio.sleep(0.02)
        serving.cancel()


def _in_use(ledger: FileLedger) -> bool:
    try:
        ledger.load()
    except LedgerInUse:
        return True
    ledger.close()
    return False


async def test_an_agent_without_a_log_ends_with_an_error(tmp_path: Path) -> None:
    settings = Settings(node="n1", data_dir=tmp_path, gpus=0)
    with pytest.raises(NotOurLog):
        await serve(process(NoLog), settings)
