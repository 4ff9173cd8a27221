"""Detect that the host stalled during a measurement, so that the test measures again."""

import asyncio
import time
from types import TracebackType
from typing import Self

TICK_S = 0.01
#: When the event loop runs this late, a measurement on this host says nothing.
STALL_S = 0.1
#: Attempts per measurement, each after a stall.
TRIES = 3


class Stalls:
    """Measures the longest stall of this event loop during the block."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @property
    def any(self) -> bool:
        """Whether the loop stalled."""
        return self.longest_s > STALL_S

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s - TICK_S)
