"""The folders of a node that containers may get: the operator's list, by name."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from yardmaster_schemas.events.details import FolderMount


class HostFolder(BaseModel):
    """A folder of the node; containers may write to it if it is not `read_only`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    read_only: bool = True


class MountRefused(ValueError):
    """A mount that this node does not allow; the message says why."""


def grants_of(folders: Mapping[str, HostFolder]) -> tuple[str, ...]:
    """Return the folders as a node states them: `datasets`, and `scratch:rw` if it is writable."""
    return tuple(
        name if folder.read_only else f"{name}:rw" for name, folder in sorted(folders.items())
    )


def check_folders(folders: Mapping[str, HostFolder], guarded: Iterable[Path]) -> None:
    """Check that no container can reach a path of the agent or the engine through a folder.

    Raises: ValueError.
    """
    for name, folder in folders.items():
        if not folder.path.is_absolute():
            raise ValueError(f"mount {name}: {folder.path} is not an absolute path")
        path = folder.path.resolve()
        for each in guarded:
            kept = each.resolve()
            if path == kept or path in kept.parents or kept in path.parents:
                raise ValueError(
                    f"mount {name}: containers could reach {each}, which is for the agent only, "
                    f"through {folder.path}"
                )


def mounts_of(
    wanted: Iterable[FolderMount], folders: Mapping[str, HostFolder]
) -> list[dict[str, object]]:
    """Return the engine's description of the folders that a job mounts.

    Raises: MountRefused.
    """
    found: list[dict[str, object]] = []
    for mount in wanted:
        folder = folders.get(mount.source)
        if folder is None:
            raise MountRefused(
                f"this node has no mount {mount.source}: its YARD_AGENT_MOUNTS has "
                + (", ".join(sorted(folders)) or "none")
            )
        if folder.read_only and not mount.read_only:
            raise MountRefused(f"mount {mount.source} of this node is read-only")
        if not folder.path.is_dir():
            raise MountRefused(f"the folder of mount {mount.source} is missing on this node")
        found.append(
            {
                "Type": "bind",
                "Source": str(folder.path),
                "Target": mount.target,
                "ReadOnly": mount.read_only,
            }
        )
    return found
