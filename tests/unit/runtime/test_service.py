"""Settings, ports, and running as a process of its own."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import SettingsConfigDict

from yardmaster.core.errors import ChainBroken
from yardmaster.eventlog.errors import NotOurLog
from yardmaster.eventlog.memory import MemoryLog
from yardmaster.eventlog.sqlite import SqliteLog
from yardmaster.runtime.clock import ManualClock, SystemClock
from yardmaster.runtime.service import Ports, open_log, open_ports, run_process
from yardmaster.runtime.settings import RuntimeSettings, ServiceSettings
from yardmaster.schemas.topics import REQUESTS


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="YARD_TOY_")


def test_a_services_own_variable_comes_before_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_CELL", "west")
    monkeypatch.setenv("YARD_CYCLE__MAX_INPUTS", "7")
    assert (Settings().cell, Settings().cycle.max_inputs) == ("west", 7)
    monkeypatch.setenv("YARD_TOY_CELL", "east")
    assert Settings().cell == "east"
    assert RuntimeSettings().cell == "west"
    assert Settings(cell="north").cell == "north"


def test_a_log_and_snapshots_lie_in_the_data_folder_unless_named() -> None:
    settings = RuntimeSettings(data=Path("/var/lib/yard"))
    assert settings.log_url == "sqlite:////var/lib/yard/log.db"
    assert settings.snapshots_url == "/var/lib/yard/snapshots"
    assert RuntimeSettings(log="kafka://k:9092").log_url == "kafka://k:9092"


async def test_a_url_names_the_log(tmp_path: Path) -> None:
    clock = ManualClock()
    memory = await open_log(RuntimeSettings(log="memory:"), clock)
    assert isinstance(memory, MemoryLog)
    file = await open_log(RuntimeSettings(data=tmp_path), SystemClock())
    assert isinstance(file, SqliteLog)
    await file.create_topics([REQUESTS])
    await file.close()


@pytest.mark.parametrize("url", ["ftp://x", "sqlite:relative", "kafka:x", "nothing"])
async def test_a_url_of_no_log_is_an_error_that_says_what_is_expected(url: str) -> None:
    with pytest.raises(NotOurLog, match="sqlite:///PATH"):
        await open_log(RuntimeSettings(log=url), ManualClock())


async def test_a_missing_log_is_not_made_when_that_was_not_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotOurLog):
        await open_log(RuntimeSettings(data=tmp_path), SystemClock(), create=False)


async def test_the_ports_of_a_process_are_the_real_ones(tmp_path: Path) -> None:
    ports = await open_ports(RuntimeSettings(data=tmp_path, log="memory:"), "toy")
    assert isinstance(ports.clock, SystemClock)
    assert ports.snapshots is not None
    assert ports.telemetry.service == "toy"


def test_a_process_ends_with_a_code_that_says_how(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("YARD_LOG", "memory:")
    monkeypatch.setenv("YARD_DATA", str(tmp_path))

    async def fine(ports: Ports, settings: Any) -> None:
        assert settings.cell == "main"

    async def broken(ports: Ports, settings: Any) -> None:
        raise ChainBroken(topic="decisions", offset=5, found="as the test wants")

    async def interrupted(ports: Ports, settings: Any) -> None:
        raise KeyboardInterrupt

    assert run_process(Settings, "toy", fine) == 0
    assert run_process(Settings, "toy", broken) == 100
    assert "decisions offset 5" in capsys.readouterr().err
    assert run_process(Settings, "toy", interrupted) == 0
    monkeypatch.setenv("YARD_CELL", "NOT A CELL")
    assert run_process(Settings, "toy", fine) == 2
    assert "YARD_TOY_CELL" in capsys.readouterr().err
