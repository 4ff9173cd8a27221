"""The shares of a pool's queues that were recorded last (SharesDivided).

Only their digest is part of the state, because it is enough to tell whether something changed.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from yardmaster_schemas.events.decisions import QueueShare, SharesDividedV1

#: The pause after the first record of a pool's shares, and after a quiet time (ms).
FIRST_PAUSE_MS: Final = 5_000
#: The longest pause (ms): while shares keep changing, each pause is twice the one before.
LONGEST_PAUSE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RecordedShares:
    """When the shares were recorded, the digest of all of them, and the pause after it."""

    at_ms: int
    cycle: int
    digest: str
    pause_ms: int

    @property
    def next_ms(self) -> int:
        """The earliest time for the next record (ms)."""
        return self.at_ms + self.pause_ms

    def pause_after(self, now_ms: int) -> int:
        """The pause after a record that follows this one at `now_ms`.

        Users look when something changes after a quiet time, so then the pauses are short again.
        """
        if now_ms >= self.next_ms + LONGEST_PAUSE_MS:
            return FIRST_PAUSE_MS
        return min(2 * self.pause_ms, LONGEST_PAUSE_MS)


def extended(digest: str, queues: tuple[QueueShare, ...]) -> str:
    """Extend a digest of parts by one more part."""
    return blake2b(f"{digest}/{queues!r}".encode(), digest_size=16).hexdigest()


def with_part(
    before: RecordedShares | None, event: SharesDividedV1, now_ms: int, cycle: int
) -> RecordedShares:
    """Return the recorded shares after one more record of a cycle."""
    digest = before.digest if event.part and before is not None else ""
    if before is None:
        pause_ms = FIRST_PAUSE_MS
    elif before.cycle == cycle:  # a further part, or a record that is repeated
        pause_ms = before.pause_ms
    else:
        pause_ms = before.pause_after(now_ms)
    return RecordedShares(now_ms, cycle, extended(digest, event.queues), pause_ms)
