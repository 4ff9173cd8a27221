"""How many requests a caller may make: a token bucket each, by the clock."""

from collections import OrderedDict
from math import ceil

from yardmaster_gateway.errors import RateLimited
from yardmaster_runtime.clock import Clock


class RateLimit:
    """A bucket of `burst` requests a caller, filled with `per_s` a second."""

    def __init__(self, clock: Clock, *, burst: int, per_s: float, callers: int) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._callers = callers
        #: (what is left, when that was true), the longest quiet first.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one request.

        Raises:
            RateLimited: the bucket is empty; `retry_s` says when it is not.
        """
        now = self._clock.monotonic_s()
        left, since = self._left.pop(caller, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_s)
        if left < 1:
            self._left[caller] = (left, now)
            raise RateLimited(retry_s=max(1, ceil((1 - left) / self._per_s)))
        self._left[caller] = (left - 1, now)
        while len(self._left) > self._callers:
            self._left.popitem(last=False)
