"""Where the hierarchies of control groups (cgroups) are mounted, and a process is in them."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: The name of the one hierarchy of version 2; those of version 1 have the names of controllers.
UNIFIED = ""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where a hierarchy is mounted, and the folder of a process's group in it."""

    mounted: Path
    own: Path


def hierarchies(process: Path = Path("/proc/self")) -> dict[str, Hierarchy]:
    """Return the hierarchies by name, without those where the group is outside of what is mounted.

    `process` is the folder of a process in /proc. Raises: OSError.
    """
    groups: dict[str, str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    found: dict[str, Hierarchy] = {}
    for line in (process / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = {UNIFIED} if kind == "cgroup2" else set(options.split(","))
        for name in groups.keys() & names - found.keys():
            group = PurePosixPath(groups[name])
            if ".." not in group.parts and group.is_relative_to(root):
                found[name] = Hierarchy(Path(point), Path(point) / group.relative_to(root))
    return found
