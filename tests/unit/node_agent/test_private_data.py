"""The files that an agent believes, when other users may write them."""

import io
import json
import os
from pathlib import Path

import pytest

from yardmaster_eventlog.memory import MemoryLog
from yardmaster_node_agent.errors import DataWritable
from yardmaster_node_agent.ports import Ports, host_ports
from yardmaster_node_agent.settings import Settings
from yardmaster_runtime.chance import SeededChance
from yardmaster_runtime.clock import ManualClock
from yardmaster_runtime.telemetry.port import Telemetry


def started(folder: Path, lines: io.StringIO, secrets_dir: Path | None = None) -> Ports:
    """The ports of an agent that starts on a data directory."""
    clock = ManualClock()
    return host_ports(
        Settings(node="n1", data_dir=folder, gpus=0, task_users="same", secrets_dir=secrets_dir),
        log=MemoryLog(clock),
        clock=clock,
        chance=SeededChance(1),
        telemetry=Telemetry("node_agent", now_ms=clock.now_ms, stream=lines),
    )


@pytest.mark.parametrize(("mode", "writers"), [(0o602, "all users"), (0o660, "its group")])
def test_an_agent_refuses_a_ledger_that_others_may_write(
    tmp_path: Path, mode: int, writers: str
) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch()
    ledger.chmod(mode)
    with pytest.raises(DataWritable, match=f"ledger: {writers} may write it"):
        started(tmp_path, io.StringIO())
    ledger.chmod(0o600)
    started(tmp_path, io.StringIO())


def test_an_agent_refuses_a_link_in_the_place_of_its_ledger(tmp_path: Path) -> None:
    (tmp_path / "of-another").touch()
    (tmp_path / "ledger").symlink_to(tmp_path / "of-another")
    with pytest.raises(DataWritable, match="not a regular file"):
        started(tmp_path, io.StringIO())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_an_agent_of_another_user_than_the_ledgers_does_not_start(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.touch(mode=0o600)
    os.chown(ledger, 4711, 4711)
    with pytest.raises(DataWritable, match="belongs to user 4711"):
        started(tmp_path, io.StringIO())


def test_an_agent_closes_its_own_folders_to_others_and_names_a_folder_that_stays_open(
    tmp_path: Path,
) -> None:
    data, secrets = tmp_path / "data", tmp_path / "secrets"
    for folder in (data, data / "replicas", secrets):
        folder.mkdir()
        folder.chmod(0o777)
    lines = io.StringIO()
    started(data, lines, secrets_dir=secrets)
    assert [path.stat().st_mode & 0o777 for path in (data, data / "replicas")] == [0o755, 0o755]
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    named = [(one["event"], one["path"]) for one in said if "path" in one]
    assert named == [
        ("made_private", str(data)),
        ("made_private", str(data / "replicas")),
        ("writable_by_others", str(secrets)),
    ]
