"""The last renewal of the node's lease, where other processes read it (see `lease`).

What kills fenced replicas after the agent's end reads it: the runners of the process executor.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import TypeAdapter

from yardmaster_node_agent.errors import NotRenewed


@dataclass(frozen=True, slots=True)
class Renewal:
    """The last heartbeat of an incarnation that the log acknowledged.

    `acknowledged_s` is in the clock's monotonic seconds, which are valid for one boot.
    """

    boot_id: str
    incarnation: str
    acknowledged_s: float
    longest_gap_s: float


_RENEWAL: Final = TypeAdapter(Renewal)


class Renewals(Protocol):
    """Keeps the last renewal."""

    def store(self, renewal: Renewal) -> None:
        """Replace the last renewal.

        Raises:
            NotRenewed: it cannot be stored. The runners then kill the fenced replicas when the
                lease expires.
        """

    def last(self) -> Renewal | None:
        """Return the last renewal; None if there is none that can be read."""


class MemoryRenewals:
    """Renewals of a simulated host, whose replicas nothing fences after the agent's end."""

    def __init__(self) -> None:
        self._last: Renewal | None = None

    def store(self, renewal: Renewal) -> None:
        """Replace the last renewal."""
        self._last = renewal

    def last(self) -> Renewal | None:
        """Return the last renewal."""
        return self._last


class RenewalFile:
    """Renewals in a file, which need not be durable: a renewal is valid for one boot only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def store(self, renewal: Renewal) -> None:
        """Write the renewal, atomically."""
        draft = self._path.with_name(self._path.name + ".new")
        try:
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(asdict(renewal)), encoding="ascii")
            draft.rename(self._path)
        except OSError as error:
            raise NotRenewed(path=self._path, found=error) from None

    def last(self) -> Renewal | None:
        """Read the renewal that was stored last."""
        try:
            content = json.loads(self._path.read_text(encoding="ascii"))
            return _RENEWAL.validate_python(content)
        except (OSError, ValueError):
            return None
