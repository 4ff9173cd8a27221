"""The standby: folds the log continuously, so that a takeover costs a new term and the tail."""

import asyncio
from typing import Any

from yardmaster_runtime.machine.election import Election
from yardmaster_runtime.machine.fold import Fold
from yardmaster_runtime.telemetry.machine_metrics import RuntimeMetrics
from yardmaster_runtime.waiting import first_of, together


async def stand_by(
    fold: Fold[Any], election: Election, metrics: RuntimeMetrics, *, idle_wait_s: float
) -> None:
    """Fold until the election is won; return between two cycles.

    Raises: the errors of `Fold.catch_up`.
    """
    won = asyncio.Event()

    async def watch() -> None:
        await election.won()
        won.set()

    async def follow() -> None:
        # Never cancelled within a cycle: inputs that were applied cannot be rolled back.
        while not won.is_set():
            await fold.catch_up()
            metrics.term.set(fold.reader.term)
            metrics.rules.set(fold.reader.rules)
            metrics.dropped.set(fold.reader.dropped)
            metrics.standby_lag.set(await fold.log.end(fold.own) - fold.reader.next)
            await first_of(fold.log.wait({fold.own: fold.cursor.end}, idle_wait_s), won.wait())

    await together(watch(), follow())
