"""Calls of an agent that is killed while it waits."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any

import pytest

#: A connection that is given up while it is opened is left to the collector.
LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@coroutine
def killed_at(call: Coroutine[Any, Any, Any], number: int) -> Generator[Any, Any, bool]:
    """Run a call until it waits for the `number`-th time, then abandon it as a kill of the agent
    does; return whether it ended before.
    """
    waits = 0
    try:
        while True:
            killed_now = waits == number + 1
            waits += 1
            yield call.throw(asyncio.CancelledError()) if killed_now else call.send(None)
    except StopIteration:
        return waits <= number + 1
    except asyncio.CancelledError:
        return False
