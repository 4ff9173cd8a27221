"""The data directory of the embedded mode: one process, private files, the cluster remembered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from yardmaster.errors import InputError
from yardmaster.local_cluster import read_dev
from yardmaster_cli.dev.data_directory import DataDirectory, plain_cluster, read_cluster
from yardmaster_cli.policy_spec import PolicySpec
from yardmaster_localcluster.errors import DataDirInUse, DataDirUnusable


@pytest.fixture
def folder(tmp_path: Path) -> DataDirectory:
    return DataDirectory.take(tmp_path / "data")


def test_a_second_process_is_refused_and_the_error_names_the_first(folder: DataDirectory) -> None:
    with pytest.raises(DataDirInUse) as caught:
        DataDirectory.take(folder.path)
    assert f"pid {os.getpid()}" in str(caught.value)


def test_who_was_killed_is_given_the_time_to_let_go_of_its_lock(tmp_path: Path) -> None:
    first = DataDirectory.take(tmp_path / "data")
    # A child of it still has the lock for a while; the parent, whose pid it says, is no more.
    parent = subprocess.Popen(["true"])
    parent.wait()
    (first.path / "lock").write_text(f"{parent.pid}\n")
    script = "import time; print(flush=True); time.sleep(0.3)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, pass_fds=[first.lock]
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        os.close(first.lock)
        second = DataDirectory.take(first.path)
        assert child.wait() == 0
    assert (second.path / "lock").read_text() == f"{os.getpid()}\n"
    os.close(second.lock)


@pytest.mark.parametrize("names", [(), ("lock", "log.db")])
def test_a_folder_that_is_open_to_others_is_closed(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    DataDirectory.take(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_other_files_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(DataDirUnusable, match=r"open to other users \(mode 755\)"):
        DataDirectory.take(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o700)
    DataDirectory.take(tmp_path)


def test_the_token_is_private_and_stays(folder: DataDirectory) -> None:
    token = folder.token()
    assert len(token) > 30
    assert folder.token() == token
    assert (folder.path / "token").stat().st_mode & 0o777 == 0o600


def test_a_running_server_is_announced_and_withdrawn(folder: DataDirectory) -> None:
    folder.announce(7450, "t0ken")
    assert (folder.path / "dev.json").stat().st_mode & 0o777 == 0o600
    found = read_dev(folder.path)
    assert found is not None
    assert (found.server, found.token) == ("http://127.0.0.1:7450", "t0ken")
    folder.withdraw()
    folder.withdraw()
    assert read_dev(folder.path) is None


def test_the_cluster_is_remembered(folder: DataDirectory) -> None:
    assert folder.cluster() is None
    cluster = plain_cluster(2, 4, PolicySpec(options={"preemption": False}))
    folder.keep_cluster(cluster)
    assert folder.cluster() == cluster
    (folder.path / "cluster.json").write_text(json.dumps({"nodes": []}))
    assert folder.cluster() is None


def test_a_cluster_file_describes_nodes_and_policy(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "policy: {name: priority, options: {backfill: false}}\n"
        "nodes:\n  - {name: a, slots: 8, type: sxm, labels: {rack: r1}}\n  - {name: b, slots: 0}\n"
    )
    cluster = read_cluster(path)
    assert [(node.name, node.slots) for node in cluster.nodes] == [("a", 8), ("b", 0)]
    assert cluster.policy.options == {"backfill": False}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes:\n  - {name: a}\n  - {name: b, slotts: 1}\n", r"cluster.yaml:3: .*unknown key"),
        ("nodes: []\n", r"cluster.yaml:1: nodes"),
        ("nodes: [{name: a}, {name: a}]\n", "same name"),
        ("nods: [{name: a}]\n", r"cluster.yaml"),
    ],
)
def test_a_wrong_cluster_file_is_named_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_cluster(path)
