"""The HTTP client of the gateway: one method per endpoint, typed answers, one exception."""

from collections.abc import Iterator, Sequence

from yardmaster.artifact_calls import ArtifactCalls
from yardmaster.connection import quoted
from yardmaster.errors import ApiError
from yardmaster.job_calls import Piece
from yardmaster.operator_calls import OperatorCalls
from yardmaster.transport import Change, event_lines, parse_steps
from yardmaster.waiting import Waits
from yardmaster_schemas.api import Cycle, EventRecord, List, Version, WhoAmI

__all__ = ["ApiError", "Change", "Client", "Piece"]


class Client(Waits, ArtifactCalls, OperatorCalls):
    """A connection to one gateway, with the token of one user.

    Reads, and writes with an idempotency key or a condition, are retried after transient failures.
    A submission keeps its key in all retries, so the job is recorded once. Waits and streams
    continue after a restart of the gateway. Every failure of a call is raised as `ApiError`.

    ```python
    with yardmaster.Client.from_env() as client:
        submitted = client.submit({"resources": {"gpus": 1}, "run": {"command": ["nvidia-smi"]}})
        (task,) = client.wait(submitted)
        print(task.phase, "".join(client.logs(task.task_id)))
    ```

    Args:
        server: the URL of the gateway, `http://127.0.0.1:7450`.
        token: the bearer token; None sends no token.
        project: the project of a submitted job that names none.
        sleep: waits for a number of seconds between retries.
        monotonic_s: a clock for timeouts, in seconds.
        new_key: returns an idempotency key of at least 16 characters.
        ca: a file with the certificate authorities to trust instead of the machine's.
        transport: an HTTP transport that tests use instead of the real one.
        max_tries: the number of attempts of one call, including the first.
        longest_outage_s: the longest outage that waits and streams survive, in seconds.

    Raises:
        InputError: `server` is not the URL of a server, or an HTTP header cannot contain `token`.
    """

    def events(self, *, after: str | None = None, limit: int = 100) -> List[EventRecord]:
        """One page of log records after a position, in the order in which they took effect."""
        return self._get("/v1/events", List[EventRecord], {"after": after, "limit": limit})

    def watch(
        self,
        kinds: Sequence[str] = ("task",),
        *,
        after: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Change]:
        """Yield a snapshot, then every change, in order, without loss and without repeats.

        The watch resumes by itself after the gateway closed the stream or restarted: the pauses
        between attempts double from 0.2 s to 5 s, and after `longest_outage_s` without an answer
        the watch fails. If the gateway no longer keeps the changes in between, a new snapshot comes
        first; it replaces all earlier changes.

        A step of the log may have several changes, and a snapshot has several parts. They arrive
        together, and only the last one has a new `id`. Pass the `id` of the last change that was
        handled as `after` to resume in another process.

        Args:
            kinds: the kinds of objects to watch: task, job, node, pool, project, department.
            after: the `id` after which to begin, without a snapshot if the gateway keeps the
                changes since then.
            timeout_s: the watch ends after this many seconds, at the next change or bookmark; None:
                it does not end.

        Raises:
            ApiError: the gateway refused the watch, never answered, or the outage was too long.
        """
        deadline = self._transport.deadline(timeout_s)
        reconnection = self._transport.reconnection(deadline)
        params = {"kinds": list(kinds)}
        while deadline.left_s() > 0:
            # A restarted gateway answers only once its views cover what this watch has seen.
            resume = {"Last-Event-ID": after, "Yard-Min-Position": after} if after else {}
            try:
                with self._transport.stream("/v1/watch", params, resume, deadline) as found:
                    for step in parse_steps(event_lines(found), after):
                        after = step[-1].id
                        reconnection.record_answer()
                        yield from step
                        if deadline.left_s() == 0:
                            return
            except ApiError as error:
                if deadline.left_s() > 0:
                    reconnection.pause(error)
            else:
                reconnection.pause()

    def cycle(self, cell: str, number: int) -> Cycle:
        """One committed cycle of the scheduler."""
        return self._get(f"/v1/cycles/{quoted(cell)}/{number}", Cycle, {})

    def whoami(self) -> WhoAmI:
        """The authenticated user and its roles."""
        return self._get("/v1/whoami", WhoAmI, {})

    def version(self) -> Version:
        """The version of the gateway, and the log that it serves."""
        return self._get("/v1/version", Version, {})
