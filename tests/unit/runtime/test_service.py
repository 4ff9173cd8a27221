"""Settings, ports, and running as a process of its own."""

import asyncio
import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_settings import SettingsConfigDict

from yardmaster_core.errors import ChainBroken
from yardmaster_eventlog.errors import LogTruncated, NotOurLog
from yardmaster_eventlog.memory import MemoryLog
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_runtime.chance import SystemChance
from yardmaster_runtime.clock import ManualClock, SystemClock
from yardmaster_runtime.http import listen
from yardmaster_runtime.service import Process, kafka_settings, open_log, open_ports, run_process
from yardmaster_runtime.settings import RuntimeSettings
from yardmaster_runtime.telemetry.health import Health
from yardmaster_runtime.telemetry.port import Telemetry
from yardmaster_schemas.secret import SecretUnreadable
from yardmaster_schemas.topics import REQUESTS


class Settings(RuntimeSettings):
    model_config = SettingsConfigDict(env_prefix="YARD_TOY_")


def test_a_services_own_variable_overrides_the_one_of_all_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("YARD_CELL", "west")
    monkeypatch.setenv("YARD_CYCLE__MAX_INPUTS", "7")
    assert (Settings().cell, Settings().cycle.max_inputs) == ("west", 7)
    monkeypatch.setenv("YARD_TOY_CELL", "east")
    assert Settings().cell == "east"
    assert RuntimeSettings().cell == "west"
    assert Settings(cell="north").cell == "north"


def test_log_and_snapshots_are_in_the_data_directory_by_default() -> None:
    settings = RuntimeSettings(data=Path("/var/lib/yard"))
    assert settings.log_url == "sqlite:////var/lib/yard/log.db"
    assert settings.snapshots_url == "/var/lib/yard/snapshots"
    assert RuntimeSettings(log="kafka://k:9092").log_url == "kafka://k:9092"


async def test_the_scheme_of_the_url_selects_the_log(tmp_path: Path) -> None:
    clock = ManualClock()
    memory = await open_log(RuntimeSettings(log="memory:"), clock)
    assert isinstance(memory, MemoryLog)
    file = await open_log(RuntimeSettings(data=tmp_path), SystemClock())
    assert isinstance(file, SqliteLog)
    await file.create_topics([REQUESTS])
    await file.close()


@pytest.mark.parametrize("url", ["ftp://x", "sqlite:relative", "kafka:x", "nothing"])
async def test_a_url_with_an_unknown_scheme_is_an_error_that_names_the_known_ones(url: str) -> None:
    with pytest.raises(NotOurLog, match="sqlite:///PATH"):
        await open_log(RuntimeSettings(log=url), ManualClock())


async def test_a_missing_log_is_created_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(NotOurLog):
        await open_log(RuntimeSettings(data=tmp_path), SystemClock(), create=False)


async def test_cells_are_named_in_the_order_of_their_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [(each.cell, each.partition) for each in RuntimeSettings().served()] == [("main", 0)]
    monkeypatch.setenv("YARD_CELLS", "main, east")
    served = RuntimeSettings().served()
    assert [(each.cell, each.partition) for each in served] == [("main", 0), ("east", 1)]


def test_kafkas_secrets_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    monkeypatch.setenv("YARD_LOG", "kafka://a:1,b:2")
    monkeypatch.setenv("YARD_KAFKA__SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("YARD_KAFKA__SASL_USERNAME", "quota")
    monkeypatch.setenv("YARD_KAFKA__SASL_PASSWORD_FILE", str(secret))
    settings = RuntimeSettings()
    assert kafka_settings(settings).sasl_password == "hunter2"
    assert kafka_settings(settings).bootstrap == "a:1,b:2"
    assert "hunter2" not in repr(kafka_settings(settings))
    secret.chmod(0o644)
    with pytest.raises(SecretUnreadable, match="all users may read it"):
        kafka_settings(settings)
    for mode, writers in ((0o602, "all users"), (0o660, "its group")):
        secret.chmod(mode)
        with pytest.raises(SecretUnreadable, match=f"password: {writers} may write it; chmod go-w"):
            kafka_settings(settings)
    secret.chmod(0o440)
    assert kafka_settings(settings).sasl_password == "hunter2"
    secret.chmod(0o600)
    monkeypatch.setenv("YARD_KAFKA__SASL_PASSWORD", "hunter3")
    with pytest.raises(SecretUnreadable, match="also given as a value"):
        kafka_settings(RuntimeSettings())


def a_process() -> Process:
    clock = SystemClock()
    telemetry = Telemetry("toy", now_ms=clock.now_ms)
    return Process(clock, SystemChance(), telemetry, Health())


def test_a_log_that_other_users_may_write_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def opened() -> None:
        log = await a_process().open_log(RuntimeSettings(data=tmp_path))
        await log.close()

    asyncio.run(opened())
    assert "writable_by_others" not in capsys.readouterr().err
    tmp_path.chmod(0o777)
    (tmp_path / "log.db").chmod(0o620)
    asyncio.run(opened())
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    found = [(one["path"], one["hint"]) for one in said if one["event"] == "writable_by_others"]
    paths = [str(tmp_path), str(tmp_path / "log.db")]
    assert found == [(path, f"chmod go-w {path}") for path in paths]


async def test_the_ports_of_a_process_are_the_real_ones(tmp_path: Path) -> None:
    ports = await open_ports(a_process(), RuntimeSettings(data=tmp_path, log="memory:"))
    assert isinstance(ports.clock, SystemClock)
    assert ports.snapshots is not None
    assert ports.telemetry.service == "toy"


async def test_a_process_whose_log_opened_is_not_ready_before_its_machines(tmp_path: Path) -> None:
    process = a_process()
    await open_ports(process, RuntimeSettings(data=tmp_path, log="memory:"))
    assert process.health.reasons == {"cell main": "starting"}


def test_the_exit_code_of_a_process_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("YARD_LOG", "memory:")
    monkeypatch.setenv("YARD_DATA", str(tmp_path))

    async def fine(process: Process, settings: Any) -> None:
        assert settings.cell == "main"

    async def broken(process: Process, settings: Any) -> None:
        raise ChainBroken(topic="decisions", offset=5, found="as the test wants")

    async def interrupted(process: Process, settings: Any) -> None:
        raise KeyboardInterrupt

    async def stopped(process: Process, settings: Any) -> None:
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    assert run_process(Settings, "toy", fine) == 0
    assert run_process(Settings, "toy", broken) == 100
    assert "error: chain_broken: " in capsys.readouterr().err
    assert run_process(Settings, "toy", interrupted) == 0
    # asyncio reports the task that the interrupt has ended when it is collected. Later, the report
    # could come while another test parses a source, which CPython 3.11 refuses.
    gc.collect()
    assert run_process(Settings, "toy", stopped) == 0
    monkeypatch.setenv("YARD_CELL", "NOT A CELL")
    assert run_process(Settings, "toy", fine) == 2
    assert "error: YARD_CELL: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "written"),
    [
        (None, ["info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_lines_below_the_log_level_are_not_written(
    level: str | None,
    written: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if level is not None:
        monkeypatch.setenv("YARD_LOG_LEVEL", level)

    async def serve(process: Process, settings: Any) -> None:
        for telemetry in (process.telemetry, process.telemetry.for_cell("main")):
            for write in (telemetry.info, telemetry.warn, telemetry.error):
                write("said")

    assert run_process(Settings, "toy", serve) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # A library may log too, such as asyncio about what an earlier test left.
    assert [line["level"] for line in lines if line["event"] == "said"] == written * 2
    assert {line["level"] for line in lines} == set(written)


@pytest.mark.parametrize("variable", ["YARD_LOG_LEVEL", "YARD_TOY_LOG_LEVEL"])
def test_a_wrong_log_level_is_refused_with_its_variable_and_the_known_levels(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(process: Process, settings: Any) -> None:
        raise AssertionError("it must not start")

    monkeypatch.setenv(variable, "verbose")
    assert run_process(Settings, "toy", serve) == 2
    said = capsys.readouterr().err
    assert said == f"error: {variable}: Input should be 'info', 'warning' or 'error'\n"


def test_a_process_serves_liveness_readiness_and_metrics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YARD_HEALTH_PORT", "0")
    seen: list[tuple[int, str]] = []

    async def serve(process: Process, settings: Any) -> None:
        process.telemetry.counter("turns", "Turns").inc()
        said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        port = next(line["port"] for line in said if line["event"] == "health")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for part, reason in ((None, None), ("log", "it is away"), ("log", None)):
                if part is not None:
                    process.health.report(part, reason)
                answer = await client.get("/readyz")
                seen.append((answer.status_code, answer.text))
            for path in ("/livez", "/metrics", "/nothing"):
                answer = await client.get(path)
                seen.append((answer.status_code, answer.text))
            seen.append(((await client.post("/livez")).status_code, ""))

    assert run_process(Settings, "toy", serve) == 0
    assert [status for status, _ in seen] == [503, 503, 200, 200, 200, 404, 405]
    assert "starting" in seen[0][1]
    assert "it is away" in seen[1][1]
    assert "yard_toy_turns_total 1.0" in seen[4][1]


def test_a_port_in_use_is_a_named_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(process: Process, settings: Any) -> None:
        raise AssertionError("it must not start")

    with listen("127.0.0.1", 0) as taken:
        monkeypatch.setenv("YARD_HEALTH_PORT", str(taken.getsockname()[1]))
        assert run_process(Settings, "toy", serve) == 100
    assert "error: cannot_listen: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_stop_cleans_up_once_however_often_it_arrives(
    capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    cleaned: list[str] = []

    async def serve(process: Process, settings: Any) -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.01)
            cleaned.append("once")

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert run_process(Settings, "toy", serve) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert cleaned == ["once"]
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "stopping"
    ]


def test_under_nohup_a_closed_terminal_stops_no_process() -> None:
    survived: list[bool] = []

    async def serve(process: Process, settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        survived.append(True)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_process(Settings, "toy", serve) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert survived == [True]


def test_a_process_stays_up_not_ready_when_the_log_was_truncated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YARD_HEALTH_PORT", "0")
    seen: list[tuple[int, str]] = []

    async def ask(port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            answer = await client.get("/readyz")
            while "log_truncated" not in answer.text:
                answer = await client.get("/readyz")
            seen.append((answer.status_code, answer.text))
            seen.append(((await client.get("/livez")).status_code, ""))
        os.kill(os.getpid(), signal.SIGTERM)

    asked: list[asyncio.Task[None]] = []

    async def serve(process: Process, settings: Any) -> None:
        said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        port = next(line["port"] for line in said if line["event"] == "health")
        asked.append(asyncio.create_task(ask(port)))
        error = LogTruncated(found="decisions/0 ends at 3")
        raise ExceptionGroup("several failed at once", [error, OSError("a socket")])

    assert run_process(Settings, "toy", serve) == 0
    assert [status for status, _ in seen] == [503, 200]
    assert "decisions/0 ends at 3" in seen[0][1]
