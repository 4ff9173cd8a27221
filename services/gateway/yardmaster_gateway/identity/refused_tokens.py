"""Counts refused tokens, and names where they come from: someone may be guessing."""

from collections import Counter
from typing import Final

from yardmaster_runtime.clock import Clock
from yardmaster_runtime.telemetry.port import Telemetry

#: Seconds between two lines.
LINE_S: Final = 60.0
#: The most addresses that are counted for one line.
MAX_ADDRESSES: Final = 1000


class RefusedTokens:
    """Counts each request with a token that is unknown, was revoked or has expired.

    The first one is logged at once (`tokens_refused`), the later ones in one line a minute. A token
    has 256 random bits, so guesses are not slowed down: they find none.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._counter = telemetry.counter(
            "tokens_refused", "Requests whose token is unknown, was revoked or has expired"
        )
        #: By address, since the last line.
        self._since: Counter[str] = Counter()
        self._others = 0
        self._next_s = 0.0

    def add(self, address: str) -> None:
        """Count a request from an address, which may be that of a proxy."""
        self._counter.inc()
        if address in self._since or len(self._since) < MAX_ADDRESSES:
            self._since[address] += 1
        else:
            self._others += 1
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        ((most, count),) = self._since.most_common(1)
        self._telemetry.warn(
            "tokens_refused",
            requests=self._since.total() + self._others,
            addresses=len(self._since),
            address=most,
            of_address=count,
        )
        self._since.clear()
        self._others = 0
        self._next_s = now_s + LINE_S
