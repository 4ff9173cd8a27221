"""The shares of a pool's queues that were recorded last (SharesDivided).

Only their digest is part of the state, because it is enough to tell whether something changed.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from yardmaster_schemas.events.decisions import QueueShare, SharesDividedV1

#: Shares of a pool are recorded at most so often (ms).
INTERVAL_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RecordedShares:
    """When the shares were recorded, and the digest of all of them."""

    at_ms: int
    cycle: int
    digest: str

    @property
    def next_ms(self) -> int:
        """When others may be recorded (ms)."""
        return self.at_ms + INTERVAL_MS


def extended(digest: str, queues: tuple[QueueShare, ...]) -> str:
    """Return the digest of the former parts, of which `digest` is, and of another one."""
    return blake2b(f"{digest}/{queues!r}".encode(), digest_size=16).hexdigest()


def with_part(
    before: RecordedShares | None, event: SharesDividedV1, now_ms: int, cycle: int
) -> RecordedShares:
    """Return what was recorded, after one more record of a cycle."""
    digest = before.digest if event.part and before is not None else ""
    return RecordedShares(now_ms, cycle, extended(digest, event.queues))
