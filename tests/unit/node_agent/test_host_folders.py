"""The folders of a node that containers may get: the list, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from yardmaster_node_agent.executors.host_folders import (
    HostFolder,
    MountRefused,
    grants_of,
    mounts_of,
)
from yardmaster_node_agent.settings import Settings
from yardmaster_schemas.events.details import FolderMount


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, HostFolder]:
    for name in ("sets", "scratch"):
        (tmp_path / name).mkdir()
    return {
        "datasets": HostFolder(path=tmp_path / "sets"),
        "scratch": HostFolder(path=tmp_path / "scratch", read_only=False),
        "absent": HostFolder(path=tmp_path / "absent"),
    }


def test_a_mount_is_read_only_unless_list_and_job_say_otherwise(
    folders: dict[str, HostFolder], tmp_path: Path
) -> None:
    wanted = [
        FolderMount(source="datasets", target="/data"),
        FolderMount(source="scratch", target="/a"),
        FolderMount(source="scratch", target="/b", read_only=False),
    ]
    found = [(one["Source"], one["Target"], one["ReadOnly"]) for one in mounts_of(wanted, folders)]
    assert found == [
        (str(tmp_path / "sets"), "/data", True),
        (str(tmp_path / "scratch"), "/a", True),
        (str(tmp_path / "scratch"), "/b", False),
    ]


@pytest.mark.parametrize(
    ("mount", "found"),
    [
        ({"source": "home"}, "this node has no mount home: .* has absent, datasets, scratch"),
        ({"source": "datasets", "read_only": False}, "mount datasets of this node is read-only"),
        ({"source": "absent"}, "the folder of mount absent is missing on this node"),
    ],
)
def test_a_mount_that_the_node_does_not_allow_is_refused(
    folders: dict[str, HostFolder], mount: dict[str, Any], found: str
) -> None:
    with pytest.raises(MountRefused, match=found):
        mounts_of([FolderMount(target="/data", **mount)], folders)


@pytest.mark.parametrize(
    "path", ["agent", "agent/code", "engine", "secrets", "auths", "", "relative"]
)
def test_an_agent_does_not_start_with_a_folder_that_leads_to_its_own_files(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    folder = Path(path) if path == "relative" else tmp_path / "link" / path
    with pytest.raises(ValidationError, match="mount data: "):
        Settings(
            node="n1",
            data_dir=tmp_path / "agent",
            secrets_dir=tmp_path / "secrets",
            registry_auths=tmp_path / "auths" / "config.json",
            engine_socket=tmp_path / "engine" / "docker.sock",
            mounts={"data": HostFolder(path=folder)},
        )


def test_the_list_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_AGENT_MOUNTS", '{"datasets": {"path": "/srv/datasets"}}')
    settings = Settings(node="n1", data_dir=tmp_path)
    assert settings.mounts == {"datasets": HostFolder(path=Path("/srv/datasets"))}


def test_a_node_states_which_of_its_folders_are_writable() -> None:
    read, write = HostFolder(path=Path("/a")), HostFolder(path=Path("/b"), read_only=False)
    assert grants_of({"scratch": write, "data": read}) == ("data", "scratch:rw")
