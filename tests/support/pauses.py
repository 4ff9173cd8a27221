"""Pauses for what a test cannot observe.

A test waits for an event where there is one. These functions name the cases without one.
"""

import asyncio


async def let_wait_begin(seconds: float = 0.05) -> None:
    """Give a wait of another task time to begin.

    The ports of logs, stores and groups do not tell which waits have begun. If the wait begins
    later, it finds what it waits for, and the test passes too; it then covers less.
    """
    await asyncio.sleep(seconds)
