"""Exponential back-off: how long to pause before each retry. All retries of Yardmaster use it."""


class Backoff:
    """Pauses between attempts: each is twice as long as the last, `first_s` up to `longest_s`."""

    __slots__ = ("first_s", "longest_s", "pause_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.first_s = first_s
        self.longest_s = longest_s
        #: The last pause; 0 before the first one.
        self.pause_s = 0.0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Return the next pause in seconds; at least `at_least_s`, which a server may request."""
        doubled_s = max(2 * self.pause_s, self.first_s)
        self.pause_s = max(min(doubled_s, self.longest_s), at_least_s)
        return self.pause_s

    def reset(self) -> None:
        """Start again at the shortest pause, after a success."""
        self.pause_s = 0.0
