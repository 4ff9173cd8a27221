"""Whether the machine stood still while something was timed, so that it can be timed anew."""

import asyncio
import time
from types import TracebackType
from typing import Self

TICK_S = 0.01
#: A loop whose turn came so late says nothing about how fast anything else is.
STALL_S = 0.1
#: How often what was held up is tried.
TRIES = 3


class Stalls:
    """Notes the longest time that this loop was held up while the block lasts."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @property
    def any(self) -> bool:
        """Whether it was held up."""
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
