"""The settings of compose, and the state of containers; Docker itself is not called."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from yardmaster_localcluster import compose
from yardmaster_localcluster.compose import ComposeCluster, project_name
from yardmaster_localcluster.errors import DockerMissing, NotHealthy
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Counts, Wanted

PORTS = {"gateway": 7450, "health": 7500, "kafka": 9092, "controller": 9093, "redis": 6379}
FILE = Path(__file__).parents[3] / "deploy" / "compose" / "compose.yaml"


def prepared(tmp_path: Path) -> dict[str, str]:
    data = DataLayout(tmp_path / "data")
    ComposeCluster(data, "yardmaster")._prepare(Wanted(slots=2), PORTS)
    lines = (data.path / "compose.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_settings_name_the_folder_the_user_and_the_ports(tmp_path: Path) -> None:
    settings = prepared(tmp_path)
    assert settings["YARD_UP_DATA"] == str(tmp_path / "data")
    assert settings["YARD_UP_SLOTS"] == "2"
    assert settings["YARD_UP_AGENTS"] == "3"
    assert settings["YARD_UP_GATEWAY_PORTS"] == "7450-7459"
    assert settings["YARD_UP_USER"] != "0:0"


def test_every_mount_of_the_file_belongs_to_the_user_of_the_containers(tmp_path: Path) -> None:
    settings = prepared(tmp_path)
    uid, agent = (
        int(settings[name].partition(":")[0]) for name in ("YARD_UP_USER", "YARD_UP_AGENT_USER")
    )
    for service in yaml.safe_load(FILE.read_text())["services"].values():
        for mount in service.get("volumes", ()):
            if "YARD_UP_DATA" in mount:
                inside = mount.partition("}/")[2].partition(":")[0]
                owner = agent if inside.startswith(("agents/", "shared")) else uid
                assert (tmp_path / "data" / inside).stat().st_uid == owner, inside
    for secret in ("tokens.json", "credentials/redis/views", "credentials/kafka/agent-n3"):
        path = tmp_path / "data" / secret
        assert path.stat().st_uid == uid
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "data" / "token").stat().st_uid == os.getuid()


def test_tasks_find_the_examples_and_their_sdk_on_every_node(tmp_path: Path) -> None:
    prepared(tmp_path)
    examples = tmp_path / "data" / "shared" / "examples"
    assert (examples / "train.py").is_file()
    assert (examples / "yardmaster" / "task.py").is_file()


def test_every_variable_that_the_file_reads_without_a_default_is_set(tmp_path: Path) -> None:
    settings = prepared(tmp_path)
    text = "\n".join(line for line in FILE.read_text().splitlines() if not line.startswith("#"))
    for part in text.split("${")[1:]:
        name, _, rest = part.partition("}")[0].partition(":")
        assert rest.startswith("-") or name in settings, name


def test_the_nodes_of_the_file_are_those_that_can_be_requested() -> None:
    services = yaml.safe_load(FILE.read_text())["services"]
    agents = [name.removeprefix("agent-") for name in services if name.startswith("agent-")]
    assert agents == list(compose.NODES)
    assert set(compose.SCALED) <= services.keys()


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ({"Status": "exited", "ExitCode": 3}, "exited 3"),
        ({"Status": "running", "Health": {"Status": "healthy"}}, "healthy"),
        ({"Status": "running"}, "running"),
    ],
)
def test_the_state_of_a_container_is_one_word(state: dict[str, Any], word: str) -> None:
    assert compose.container_state(state) == word


def test_a_setup_that_failed_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"kafka-1": "healthy", "setup-1": "exited 1"}
    monkeypatch.setattr(ComposeCluster, "containers", lambda _: found)
    with pytest.raises(NotHealthy, match="setup: exited 1"):
        ComposeCluster(DataLayout(tmp_path), "yardmaster")._await({"gateway": 1})


def test_clusters_in_two_folders_do_not_share_containers(tmp_path: Path) -> None:
    names = {project_name(tmp_path / name, tmp_path / "usual") for name in ("a", "b")}
    assert len(names) == 2
    assert compose.PROJECT not in names
    assert project_name(tmp_path, tmp_path) == compose.PROJECT


def test_a_missing_daemon_is_reported_with_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "daemon_answers", lambda: False)
    with pytest.raises(DockerMissing, match="no Docker daemon") as caught:
        ComposeCluster(DataLayout(tmp_path), "yardmaster")._words(["up"])
    assert caught.value.hint is not None
    assert "--local" in caught.value.hint
    assert Counts().agent == len(compose.NODES)
