"""Rate limiting: a token bucket per caller."""

from collections import OrderedDict
from math import ceil

from yardmaster_gateway.errors import RateLimited
from yardmaster_runtime.clock import Clock


class RateLimit:
    """Allows each caller `burst` requests at once and `per_s` more per second.

    The buckets of at most `callers` callers are kept; the least recently active one is dropped.
    """

    def __init__(self, clock: Clock, *, burst: int, per_s: float, callers: int) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._callers = callers
        #: By caller: the tokens that were left at a time, and this time in seconds. The least
        #: recently active caller is first.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Take one token from the caller's bucket.

        Raises:
            RateLimited: the bucket is empty; `retry_s` is the time until the next token.
        """
        now = self._clock.monotonic_s()
        left, since = self._buckets.pop(caller, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_s)
        if left < 1:
            self._buckets[caller] = (left, now)
            raise RateLimited(retry_s=max(1, ceil((1 - left) / self._per_s)))
        self._buckets[caller] = (left - 1, now)
        while len(self._buckets) > self._callers:
            self._buckets.popitem(last=False)
