"""Exponential back-off: how long to pause before each retry. Every room uses this one."""


class Backoff:
    """Pauses between attempts: each is twice the one before, from `first_s` up to `longest_s`."""

    __slots__ = ("first_s", "longest_s", "pause_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.first_s = first_s
        self.longest_s = longest_s
        #: The last pause; 0 before the first one.
        self.pause_s = 0.0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """Return the next pause in seconds; a server may ask for `at_least_s`."""
        doubled_s = max(2 * self.pause_s, self.first_s)
        self.pause_s = max(min(doubled_s, self.longest_s), at_least_s)
        return self.pause_s

    def reset(self) -> None:
        """Start again at the shortest pause, after a success."""
        self.pause_s = 0.0
