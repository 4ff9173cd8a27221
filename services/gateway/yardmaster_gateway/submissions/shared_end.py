"""The end of a partition, requested once for all callers that wait for it.

A request that has begun may be answered with an end from before the call, and a record that the
caller knows of could then be missed. Therefore a caller shares only a request that began after its
own call: it waits for at most two requests, however many callers there are.
"""

import asyncio

from yardmaster_eventlog.errors import LogError
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.telemetry.port import Telemetry


class SharedEnd:
    """The end of one partition; the number of connections limits the waiting callers."""

    def __init__(self, log: EventLog, partition: Partition, telemetry: Telemetry) -> None:
        self._log = log
        self._partition = partition
        self._lock = asyncio.Lock()
        self._waiting = 0
        #: Requests that have begun, and the newest one that has an outcome.
        self._begun = 0
        self._finished = 0
        self._outcome: int | LogError = 0
        self._depth = telemetry.gauge(
            "end_requests_waiting", "Calls that wait for the end of `requests`"
        )
        self._requests = telemetry.counter("end_requests", "Requests for the end of `requests`")

    async def read(self) -> int:
        """Return an end that the log had at or after this call.

        Raises:
            LogError: the log cannot be read. All callers that share the request get the same error.
        """
        begun = self._begun
        self._waiting += 1
        self._depth.set(self._waiting)
        try:
            async with self._lock:
                if self._finished <= begun:
                    await self._request()
                outcome = self._outcome
        finally:
            self._waiting -= 1
            self._depth.set(self._waiting)
        if isinstance(outcome, LogError):
            raise outcome
        return outcome

    async def _request(self) -> None:
        """Request the end; after a cancellation, the next caller requests it again."""
        self._begun += 1
        self._requests.inc()
        try:
            self._outcome = await self._log.end(self._partition)
        except LogError as error:
            self._outcome = error
        self._finished = self._begun
