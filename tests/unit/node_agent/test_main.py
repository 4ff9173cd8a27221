"""The agent's settings and its entry point."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from yardmaster.node_agent.main import main
from yardmaster.node_agent.settings import Settings


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE", "DATA_DIR", "GPUS", "DEVICES", "HEARTBEAT_S"):
        monkeypatch.delenv(f"YARD_AGENT_{name}", raising=False)


def test_what_is_missing_is_named_as_the_variable_to_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_HEARTBEAT_S", "soon")
    assert main() == 2
    said = capsys.readouterr().err
    assert "YARD_AGENT_NODE" in said
    assert "YARD_AGENT_DATA_DIR" in said
    assert "YARD_AGENT_HEARTBEAT_S" in said


def test_the_environment_says_what_the_node_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_AGENT_NODE", "gpu-07")
    monkeypatch.setenv("YARD_AGENT_DATA_DIR", "relative/place")
    monkeypatch.setenv("YARD_AGENT_DEVICES", '["0", "2"]')
    settings = Settings()
    assert (settings.node, settings.devices) == ("gpu-07", ("0", "2"))
    assert settings.data_dir == Path.cwd() / "relative/place"


def test_what_is_said_for_all_services_holds_for_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
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
        {"max_replicas": 100_000},
        {"unknown": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"node": "n1", "data_dir": tmp_path, **wrong})
