"""GET requests to a gateway, answered as plain JSON, with the standard library alone.

`Client` returns typed models over httpx; importing both costs more processor time than most reads.
Commands that only print the answer of the gateway use a `Reader`.
"""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib import request as urllib
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode

from yardmaster.errors import refused, unreachable
from yardmaster.retry import ANSWER_S, MAX_TRIES, OutageTolerance, Params, encode_query, retry

#: The number of tasks in one page.
PAGE: Final = 1000
Json = dict[str, Any]


class Reader:
    """GET requests to one gateway.

    Args:
        server: the address of the gateway, `http://127.0.0.1:7450`.
        token: the bearer token; None sends none.
        sleep: waits between tries, in seconds.
        ca: a file of certificates to trust instead of those of the machine.
    """

    def __init__(
        self,
        server: str,
        token: str | None = None,
        *,
        sleep: Callable[[float], None],
        ca: str | None = None,
        max_tries: int = MAX_TRIES,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._server = server.rstrip("/")
        self._headers = {"User-Agent": "yardmaster-client", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._sleep = sleep
        self._max_tries = max_tries
        self._answer_s = answer_s
        self.tolerance = OutageTolerance()
        # There is no handler for redirects: the token must not reach another address.
        self._opener = urllib.OpenerDirector()
        for handler in (
            urllib.ProxyHandler(),
            urllib.HTTPHandler(),
            urllib.HTTPSHandler(context=trust(server, ca)),
            urllib.HTTPErrorProcessor(),
            urllib.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    def get(self, path: str, params: Params | None = None, *, wait_s: float = 0.0) -> Json:
        """The JSON object at a path; the gateway may delay its answer by `wait_s` seconds.

        Raises: ApiError.
        """
        parameters = urlencode(encode_query(params or {}))
        url = f"{self._server}{path}{'?' + parameters if parameters else ''}"
        request = urllib.Request(
            url, headers={**self._headers, **self.tolerance.headers(params or {})}
        )
        with self.tolerance.reporting_slowness(f"GET {path}", wait_s):
            return retry(
                lambda: self._once(request, wait_s),
                sleep=self._sleep,
                max_tries=self._max_tries,
                tolerance=self.tolerance,
            )

    def _once(self, request: urllib.Request, wait_s: float) -> Json:
        position: str | None = None
        try:
            with self._opener.open(request, timeout=self._answer_s + wait_s) as answer:
                found = json.loads(answer.read())
                position = answer.headers.get("Yard-Position")
        except HTTPError as error:
            with error:
                raise refused(error.code, _json(error), error.headers.get("Retry-After")) from None
        except URLError as error:
            cause = error.reason
            raise unreachable(
                self._server, cause if isinstance(cause, Exception) else error
            ) from None
        except (OSError, HTTPException) as error:
            raise unreachable(self._server, error) from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise refused(200, None, None)
        self.tolerance.record_answer(position)
        return found

    def jobs(self, **filters: str | int | bool | Sequence[str] | None) -> Json:
        """One page of jobs."""
        return self.get("/v1/jobs", filters)

    def job(self, job_id: str, *, min_position: str | None = None) -> Json:
        return self.get(f"/v1/jobs/{quote(job_id, safe='')}", {"min_position": min_position})

    def all_jobs(self, **filters: str | int | bool | Sequence[str] | None) -> Iterator[Json]:
        """Every job of all pages."""
        return self._each("/v1/jobs", filters)

    def tasks(self, **filters: str | int | bool | Sequence[str] | None) -> Json:
        """One page of tasks; the filters are those of `Client.tasks`."""
        return self.get("/v1/tasks", filters)

    def task_groups(self, **filters: str | int | bool | Sequence[str] | None) -> Json:
        """One page of groups of tasks; the filters are those of `Client.task_groups`."""
        return self.get("/v1/task-groups", filters)

    def all_tasks(self, **filters: str | int | bool | Sequence[str] | None) -> Iterator[Json]:
        """Every task of all pages; the filters are those of `Client.tasks`."""
        return self._each("/v1/tasks", filters)

    def _each(self, path: str, filters: Params) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self.get(path, {"limit": PAGE, **filters, "cursor": cursor})
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def queue(
        self, pool: str, **filters: str | int | bool | Sequence[str] | None
    ) -> Iterator[Json]:
        """Every item of the queue of a pool; the filters are those of `Client.queue`."""
        return self._each(f"/v1/pools/{quote(pool, safe='')}/queue", filters)

    def task(self, task_id: str, *, min_position: str | None = None) -> Json:
        return self.get(f"/v1/tasks/{quote(task_id, safe='')}", {"min_position": min_position})

    def named(self, kind: str, name: str) -> Json:
        """The node, pool or project (`kind`) with a name."""
        return self.get(f"/v1/{kind}s/{quote(name, safe='')}")

    def attempts(self, task_id: str) -> list[Json]:
        """A task's attempts, the newest first."""
        found: list[Json] = self.get(f"/v1/tasks/{quote(task_id, safe='')}/attempts")["items"]
        return found


def _json(answer: HTTPError) -> object:
    try:
        return json.loads(answer.read())
    except (OSError, HTTPException, ValueError):
        return None


def trust(server: str, ca: str | None) -> ssl.SSLContext:
    """The TLS settings with the certificates that a connection to `server` trusts.

    They are from the file `ca`, else from SSL_CERT_FILE or SSL_CERT_DIR, else those of Mozilla.
    """
    if server.startswith("http://"):
        # Plain HTTP needs no certificates, and loading them takes longer than most calls.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file, folder = ca or os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())
