"""Where an agent finds cgroups, and why it cannot use them; the limits are in tests/contract."""

import os
import shutil
from pathlib import Path

import pytest

from yardmaster_node_agent.errors import CgroupsUnusable
from yardmaster_node_agent.executors.cgroups import Group, find_cgroups
from yardmaster_node_agent.executors.directory import ReplicaDirectory

MOUNT = "30 20 0:26 {root} {point} rw - {kind} {kind} rw{options}\n"


class Machine:
    """The files of /proc and of two hierarchies, as plain files."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mounted = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.mounted.mkdir()

    def describe(self, groups: str, *, root: str = "/", kind: str = "cgroup2") -> None:
        options = ",memory" if kind == "cgroup" else ""
        line = MOUNT.format(root=root, point=self.mounted, kind=kind, options=options)
        (self.proc / "self" / "cgroup").write_text(groups)
        (self.proc / "self" / "mountinfo").write_text(line)

    def group(self, name: str, **files: str) -> Path:
        folder = self.mounted / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / f"cgroup.{file}").write_text(content)
        return folder

    def reason(self, setting: str = "auto") -> str:
        found, reason = find_cgroups(setting, "n1", proc=self.proc)
        assert found is None
        return reason


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_setting_off_uses_none(machine: Machine) -> None:
    assert machine.reason("off") == "the setting cgroups is off"


def test_a_machine_without_cgroups_is_named(machine: Machine) -> None:
    machine.describe("0::/unit\n", kind="tmpfs")
    assert machine.reason() == "no hierarchy of cgroups with the group of the agent is mounted"


def test_a_group_outside_of_what_is_mounted_is_not_used(machine: Machine) -> None:
    machine.describe("0::/elsewhere\n", root="/docker/a")
    assert machine.reason() == "no hierarchy of cgroups with the group of the agent is mounted"


def test_an_agent_of_version_2_is_alone_in_its_group(machine: Machine) -> None:
    machine.describe("0::/unit\n")
    unit = machine.group("unit", procs=f"1\n{os.getpid()}\n", events="", controllers="memory")
    assert machine.reason() == (
        f"other processes are in {unit}, the group of the agent: run the agent as a service of its "
        "own with Delegate=yes"
    )
    assert not (unit / "agent").exists()


def test_a_group_without_controllers_limits_nothing(machine: Machine) -> None:
    machine.describe("0::/unit/agent\n")
    machine.group("unit", events="", controllers="cpuset io", subtree_control="")
    assert machine.reason() == "; ".join(
        f"{name}: not available" for name in ("memory", "cpu", "pids")
    )


def test_controllers_that_cannot_be_set_are_named(machine: Machine) -> None:
    machine.describe("4:memory:/unit\n0::/\n", kind="cgroup")
    machine.group("unit")
    reason = machine.reason()
    assert reason.startswith("cpu: not available; pids: not available; memory: [Errno 2]")
    assert list((machine.mounted / "unit").iterdir()) == [], "the group of the trial is gone"


def test_a_named_group_that_limits_nothing_is_an_error(machine: Machine) -> None:
    machine.describe("4:memory:/unit\n", kind="cgroup")
    with pytest.raises(CgroupsUnusable, match="in the cgroup /yardmaster: cpu: not available"):
        find_cgroups("/yardmaster", "n1", proc=machine.proc)


def test_only_the_groups_of_a_replica_are_read_from_its_directory(tmp_path: Path) -> None:
    directory = ReplicaDirectory(tmp_path / "a.0.1.0")
    directory.path.mkdir()
    assert Group.of(directory) == Group()
    own = Path("/sys/fs/cgroup/yard-1-a.0.1.0")
    Group((own, Path("/sys/fs/cgroup/yard-1-b.0.1.0"))).note(directory)
    assert Group.of(directory) == Group((own,))


def test_a_copy_of_a_replicas_directory_has_no_group(tmp_path: Path) -> None:
    original = ReplicaDirectory(tmp_path / "n1" / "a.0.1.0")
    original.path.mkdir(parents=True)
    group = Group((Path("/sys/fs/cgroup/yard-1-a.0.1.0"),))
    group.note(original)
    shutil.copytree(tmp_path / "n1", tmp_path / "n2")
    assert Group.of(original) == group
    assert Group.of(ReplicaDirectory(tmp_path / "n2" / "a.0.1.0")) == Group()
