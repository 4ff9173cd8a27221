"""Describe in words how the processes of a task ended."""

import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any


def signal_words(number: int) -> str:
    """Return `signal 11 (SIGSEGV)`; without a name where this machine has none for the number."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def killed_after_grace(attempt: Mapping[str, Any]) -> str | None:
    """Return that the agent killed the attempt at the end of its grace period; None if it did not.

    The log has the deadline of the stop, and the signal and the time of each replica's exit. The
    agent measures the grace period from when it reads the stop, so it kills after the deadline.
    """
    stop = attempt.get("stop")
    if stop is None or stop.get("deadline_at") is None:
        return None
    deadline = datetime.fromisoformat(stop["deadline_at"])
    for replica in attempt["replicas"]:
        if replica["signal"] != signal.SIGKILL or replica["exited_at"] is None:
            continue
        if datetime.fromisoformat(replica["exited_at"]) >= deadline:
            grace = deadline - datetime.fromisoformat(stop["requested_at"])
            return f"killed after its grace period of {round(grace.total_seconds())} s"
    return None
