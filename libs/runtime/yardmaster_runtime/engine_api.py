"""The versions of the Docker Engine API that Yardmaster uses, and which one with an engine."""

from collections.abc import Mapping
from typing import Any, Final

Version = tuple[int, int]

#: The versions whose requests and answers the agent has. Docker 20.10 has the oldest. From 1.52 on,
#: `/events` chooses its format by the request's header.
OLDEST_API: Final[Version] = (1, 41)
NEWEST_API: Final[Version] = (1, 51)
#: The label of the agents' containers; its value is that of `containers.owner` in their data.
OWNER_LABEL: Final = "dev.yardmaster.owner"
#: The label with the folder of the containers in that data, which a copy of the data does not have.
FOLDER_LABEL: Final = "dev.yardmaster.folder"


class NoCommonVersion(ValueError):
    """The engine and the agent have no common version; the message says what to do."""


def agreed_version(said: Mapping[str, Any]) -> Version:
    """Return the newest version that the agent has, and the engine, by its answer to `/version`.

    Raises:
        NoCommonVersion.
        ValueError, KeyError, TypeError: it is not the answer of an engine.
    """
    newest, oldest = _version_of(said["ApiVersion"]), _version_of(said["MinAPIVersion"])
    if newest < OLDEST_API or oldest > NEWEST_API:
        change = "Docker" if newest < OLDEST_API else "Yardmaster on this node"
        raise NoCommonVersion(
            f"the engine has the API versions {text_of(oldest)} to {text_of(newest)}, and the "
            f"agent needs one of {text_of(OLDEST_API)} to {text_of(NEWEST_API)}: upgrade {change}"
        )
    return min(newest, NEWEST_API)


def text_of(version: Version) -> str:
    """Return a version as the API writes it, such as `1.41`."""
    return ".".join(map(str, version))


def _version_of(said: object) -> Version:
    major, _, minor = str(said).partition(".")
    return int(major), int(minor)
