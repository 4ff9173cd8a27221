"""Control groups (cgroups): limits of memory, CPUs and processes for replicas that are processes.

Each replica has a group of its own below a parent: the agent's own group, or one that a setting
names. Its runner stays in the group of the agent, so neither the limits nor a kill of the group
concern it; the runner moves the command to the group before the command starts, and removes the
group at the end. The paths of the group are in the file `groups` of the replica's directory, where
a later agent process finds them.

Version 2 has one hierarchy. A group with processes of its own cannot limit its children, so the
agent moves itself from the parent to the child `agent`. Version 1 has a hierarchy for each
controller, and no such rule.

Source: the kernel's documentation, admin-guide/cgroup-v2 and admin-guide/cgroup-v1.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, Self

from yardmaster_node_agent.agent_state import ReplicaKey
from yardmaster_node_agent.errors import CgroupsUnusable
from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.directory import ReplicaDirectory
from yardmaster_node_agent.executors.port import MAX_PIDS
from yardmaster_runtime.cgroup_mounts import UNIFIED, Hierarchy, hierarchies

#: Values of the setting `cgroups` that name no group. `auto`: limits where that is possible.
AUTO: Final = "auto"
OFF: Final = "off"
CONTROLLERS: Final = ("memory", "cpu", "pids")
#: The child group of version 2 to which the agent moves itself.
LEAF: Final = "agent"
#: The file of a replica's directory with the paths of its group.
GROUPS_FILE: Final = "groups"
#: The period of CPU limits and the least quota (µs).
PERIOD_US: Final = 100_000
LEAST_QUOTA_US: Final = 1_000

Version = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Group:
    """The group of a replica: a folder in each hierarchy, which may be gone; none without limits.

    A command of the agent's own user can make groups below it.
    """

    folders: tuple[Path, ...] = ()

    @classmethod
    def of(cls, directory: ReplicaDirectory) -> Self:
        """Return the group that is noted in a replica's directory; none if that is a copy.

        The group of a copy is that of the original's replica, which may be running.
        """
        noted = directory.read_json(GROUPS_FILE) or {}
        if noted.get("directory") != str(directory.path):
            return cls()
        folders = [Path(each) for each in noted.get("folders") or () if isinstance(each, str)]
        name = directory.path.name
        return cls(tuple(each for each in folders if each.name.endswith(f"-{name}")))

    def note(self, directory: ReplicaDirectory) -> None:
        """Write the paths to the replica's directory, before the folders are made."""
        draft = directory.path / f".{GROUPS_FILE}"
        noted = {"directory": str(directory.path), "folders": list(map(str, self.folders))}
        draft.write_text(json.dumps(noted), encoding="utf-8")
        draft.rename(directory.path / GROUPS_FILE)

    def processes(self) -> list[procfs.Seen]:
        """Return the living processes of the group."""
        return [
            seen
            for pid in sorted(self._pids())
            if (seen := procfs.look(pid)) is not None and not seen.ended and self._has(pid)
        ]

    def kill(self) -> None:
        """SIGKILL all present processes of the group."""
        for folder in self.folders:
            with suppress(OSError):
                _write(folder / "cgroup.kill", "1")
                return
        for seen in self.processes():
            procfs.kill(seen)

    def remove(self) -> bool:
        """Remove the folders; return False if processes are in one."""
        for folder in self.folders:
            for below in [*_tree(folder)][::-1]:
                with suppress(OSError):
                    below.rmdir()
        return not any(folder.exists() for folder in self.folders)

    def _pids(self) -> set[int]:
        found: set[int] = set()
        for top in self.folders:
            for folder in _tree(top):
                with suppress(OSError):
                    found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return found

    def _has(self, pid: int) -> bool:
        """Whether a process is still in the group: its pid may have been reused."""
        names = {folder.name for folder in self.folders}
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return False
        return any(not names.isdisjoint(line.split("/")) for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The parents of the replicas' groups, by controller.

    `owner` is in the names of the groups, so that an agent finds its own ones. `lacking` says why
    other controllers are not used.
    """

    version: Version
    parents: Mapping[str, Path]
    owner: str
    lacking: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        places = " and ".join(map(str, dict.fromkeys(self.parents.values())))
        said = f"{', '.join(self.parents)} by cgroups version {self.version} in {places}"
        return "; ".join((said, *(f"no {name}: {why}" for name, why in self.lacking.items())))

    def group(self, key: ReplicaKey) -> Group:
        """Return the group of a replica, which need not exist."""
        name = f"yard-{self.owner}-{key}"
        return Group(tuple(dict.fromkeys(parent / name for parent in self.parents.values())))

    def left(self) -> Group:
        """Return all groups of the owner's replicas together."""
        pattern = f"yard-{self.owner}-*"
        found = [path for parent in self.parents.values() for path in parent.glob(pattern)]
        return Group(tuple(dict.fromkeys(found)))

    def make(self, key: ReplicaKey, *, memory_mib: int, cpu_milli: int) -> Group:
        """Make the group of a replica with its limits; 0: memory or CPUs are not limited.

        Raises: OSError.
        """
        group = self.group(key)
        for folder in group.folders:
            folder.mkdir(exist_ok=True)
        for controller, parent in self.parents.items():
            folder = parent / group.folders[0].name
            if controller == "memory" and memory_mib:
                _limit_memory(folder, memory_mib * 2**20, self.version)
            elif controller == "cpu" and cpu_milli:
                quota_us = max(LEAST_QUOTA_US, cpu_milli * PERIOD_US // 1000)
                _limit_cpu(folder, quota_us, self.version)
            elif controller == "pids":
                _write(folder / "pids.max", str(MAX_PIDS))
        return group


def find_cgroups(
    setting: str, owner: str, *, proc: Path = Path("/proc")
) -> tuple[Cgroups | None, str]:
    """Return the cgroups that limit replicas, and an empty text; or None and a reason.

    Args:
        setting: `auto`, `off`, or the path of the parent, as `/proc/self/cgroup` names groups.
        owner: a text that differs between the agents of a machine.
        proc: where the files of the process are.

    Raises:
        CgroupsUnusable: the setting names a group, and it cannot limit anything.
    """
    if setting == OFF:
        return None, "the setting cgroups is off"
    named = None if setting == AUTO else setting.strip("/")
    owner = blake2b(owner.encode(), digest_size=4).hexdigest()
    try:
        mounted = hierarchies(proc / "self")
        in_first = {name: each for name, each in mounted.items() if name in CONTROLLERS}
        if in_first:
            parents = {name: _parent(each, named) for name, each in in_first.items()}
            found = Cgroups(version=1, parents=parents, owner=owner)
        elif UNIFIED in mounted:
            parent = _delegated(mounted[UNIFIED], named)
            held = (parent / "cgroup.subtree_control").read_text().split()
            parents = {name: parent for name in CONTROLLERS if name in held}
            found = Cgroups(version=2, parents=parents, owner=owner)
        else:
            raise _Unusable("no hierarchy of cgroups with the group of the agent is mounted")
        usable = _usable(found)
        if not usable.parents:
            said = (f"{name}: {why}" for name, why in usable.lacking.items())
            raise _Unusable("; ".join(said) or "the agent's group has none of the controllers")
    except (OSError, _Unusable) as error:
        if named is not None:
            raise CgroupsUnusable(group=setting, found=error) from None
        return None, str(error)
    return usable, ""


class _Unusable(Exception):
    """Cgroups cannot be used; the message says why."""


def _parent(hierarchy: Hierarchy, named: str | None) -> Path:
    """Return the parent of the replicas' groups; make the one that is named."""
    if named is None:
        return hierarchy.own
    folder = hierarchy.mounted / named
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _delegated(hierarchy: Hierarchy, named: str | None) -> Path:
    """Return the parent in version 2; it hands the controllers to its children.

    Raises: OSError, _Unusable.
    """
    if named is not None:
        parent = _parent(hierarchy, named)
        above = [parent, *parent.parents]
        for folder in above[above.index(hierarchy.mounted) : 0 : -1]:
            with suppress(OSError):
                _hand_down(folder)
    else:
        # A later agent of a service may be started in the child, as DelegateSubgroup says.
        parent = hierarchy.own.parent if hierarchy.own.name == LEAF else hierarchy.own
        # The root of all groups may have processes of its own.
        if parent == hierarchy.own and (parent / "cgroup.events").exists():
            pids = (parent / "cgroup.procs").read_text().split()
            if pids != [str(os.getpid())]:
                raise _Unusable(
                    f"other processes are in {parent}, the group of the agent: run the agent as a "
                    "service of its own with Delegate=yes"
                )
            (parent / LEAF).mkdir(exist_ok=True)
            _write(parent / LEAF / "cgroup.procs", str(os.getpid()))
    _hand_down(parent)
    return parent


def _hand_down(folder: Path) -> None:
    """Let a group of version 2 hand its controllers to its children; raises OSError."""
    held = (folder / "cgroup.controllers").read_text().split()
    if wanted := [f"+{name}" for name in CONTROLLERS if name in held]:
        _write(folder / "cgroup.subtree_control", " ".join(wanted))


def _usable(found: Cgroups) -> Cgroups:
    """Return only the controllers with which a group can be made, on trial."""
    usable: dict[str, Path] = {}
    lacking = {name: "not available" for name in CONTROLLERS if name not in found.parents}
    for name, parent in found.parents.items():
        one = Cgroups(version=found.version, parents={name: parent}, owner=found.owner)
        key = ReplicaKey("trial", os.getpid(), 0)
        try:
            one.make(key, memory_mib=1024, cpu_milli=1000)
        except OSError as error:
            lacking[name] = str(error)
        else:
            usable[name] = parent
        finally:
            one.group(key).remove()
    return Cgroups(version=found.version, parents=usable, owner=found.owner, lacking=lacking)


def _limit_memory(folder: Path, size: int, version: Version) -> None:
    """Limit memory, and memory with swap; a kernel may not account for swap."""
    if version == 2:
        _write(folder / "memory.max", str(size))
        _write_if_there(folder / "memory.swap.max", "0")
        return
    both = folder / "memory.memsw.limit_in_bytes"
    try:
        _write(folder / "memory.limit_in_bytes", str(size))
    except OSError as error:
        # A group that exists already has a lower limit of both, which must never be the lower one.
        if error.errno != errno.EINVAL:
            raise
        _write_if_there(both, str(size))
        _write(folder / "memory.limit_in_bytes", str(size))
    _write_if_there(both, str(size))


def _limit_cpu(folder: Path, quota_us: int, version: Version) -> None:
    if version == 2:
        _write(folder / "cpu.max", f"{quota_us} {PERIOD_US}")
        return
    _write(folder / "cpu.cfs_period_us", str(PERIOD_US))
    try:
        _write(folder / "cpu.cfs_quota_us", str(quota_us))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The parent has a lower limit, which holds for its children.


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write to a file of a group, which exists; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _tree(folder: Path) -> Iterator[Path]:
    """Yield a folder and those below it, parents first."""
    for path, _, _ in os.walk(folder):
        yield Path(path)
