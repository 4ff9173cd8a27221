"""The HTTP client of the gateway: one method per endpoint, typed answers, one exception."""

from collections.abc import Iterator, Sequence

from yardmaster.connection import quoted
from yardmaster.errors import ApiError
from yardmaster.job_calls import JobCalls, Piece
from yardmaster.operator_calls import OperatorCalls
from yardmaster.retry import backoff
from yardmaster.transport import Change, parse_events
from yardmaster_schemas.api import Cycle, EventRecord, List, Version, WhoAmI

__all__ = ["ApiError", "Change", "Client", "Piece"]


class Client(JobCalls, OperatorCalls):
    """A connection to one gateway, with the token of one user.

    Reads, and writes with an idempotency key or a condition, are retried after transient failures.
    A submission keeps its key in all retries, so the job is recorded once. Every failure is raised
    as `ApiError`.

    ```python
    with yardmaster.Client("http://127.0.0.1:7450", token) as client:
        spec = yardmaster.JobSpec.model_validate(
            {"project": "default", "resources": {"gpus": 1}, "run": {"command": ["nvidia-smi"]}}
        )
        submitted = client.submit(spec)
        for text in client.logs(submitted.task_ids[0], follow=True):
            print(text, end="")
        print(client.task(submitted.task_ids[0]).phase)
    ```

    Args:
        server: the URL of the gateway, `http://127.0.0.1:7450`.
        token: the bearer token; None sends no token.
        sleep: waits for a number of seconds between retries.
        new_key: returns an idempotency key of at least 16 characters.
        ca: a file with the certificate authorities to trust instead of the machine's.
        transport: replaces the HTTP transport, for tests.
        max_tries: the number of attempts of one call, including the first.
    """

    def events(self, *, after: str | None = None, limit: int = 100) -> List[EventRecord]:
        """Records of the log after a position, in the order in which they took effect."""
        return self._get("/v1/events", List[EventRecord], {"after": after, "limit": limit})

    def watch(
        self, kinds: Sequence[str] = ("task",), *, after: str | None = None
    ) -> Iterator[Change]:
        """A snapshot, and then every change, until the gateway closes the stream.

        Pass the last `id` as `after` to resume. After `wait_out_outages`, the client resumes by
        itself and the stream never ends; if the gateway no longer keeps the changes in between, a
        new snapshot comes first.
        """
        pauses = backoff()
        while True:
            headers = {} if after is None else {"Last-Event-ID": after}
            try:
                with self._transport.stream("/v1/watch", {"kinds": list(kinds)}, headers) as found:
                    for change in parse_events(found.iter_lines()):
                        after = change.id or after
                        pauses.reset()
                        yield change
                if self._transport.tolerance.listener is None:
                    return
            except ApiError as error:
                if not self._transport.tolerance.should_retry(error):
                    raise
            self._transport.pause(pauses.next_s())

    def cycle(self, cell: str, number: int) -> Cycle:
        """One committed cycle of the scheduler."""
        return self._get(f"/v1/cycles/{quoted(cell)}/{number}", Cycle, {})

    def whoami(self) -> WhoAmI:
        """The authenticated user and its roles."""
        return self._get("/v1/whoami", WhoAmI, {})

    def version(self) -> Version:
        """The version of the gateway, and the log that it serves."""
        return self._get("/v1/version", Version, {})
