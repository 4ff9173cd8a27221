"""The errors that the client raises.

```
YardmasterError
  InputError    NoServer  TokenCommandFailed
  ApiError      WaitTimeout  NeverFits
```

This module imports no models, so that commands which only read start fast.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from yardmaster_schemas.errors import YardmasterError

if TYPE_CHECKING:
    from yardmaster_schemas.api import Problem, Task

#: Statuses after which the same call may succeed; 0 means that there was no answer.
_TRANSIENT: Final = (
    0,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
#: The upper bound of `Retry-After`, in seconds.
LONGEST_RETRY_AFTER_S: Final = 60.0


class ApiError(YardmasterError):
    """{detail}"""

    # The docstring above is the message. `status` and `document["code"]` tell the cause:
    #
    #     try:
    #         client.submit(spec)
    #     except yardmaster.ApiError as error:
    #         print(error.status, error.document["code"], error)

    code = "api"

    def __init__(self, document: Mapping[str, Any], retry_after_s: float = 0.0) -> None:
        #: The problem document (RFC 9457): `status`, `code`, `detail`, `hint` and more.
        self.document = document
        #: The pause that the gateway asks for before the next attempt, in seconds.
        self.retry_after_s = retry_after_s
        super().__init__(detail=document["detail"])

    @property
    def status(self) -> int:
        """The HTTP status; 0 if there was no answer."""
        return int(self.document["status"])

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later.

        A server that is stopping may answer 500 without a problem document.
        """
        if self.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return bool(self.document["code"] == "bad_answer")
        return self.status in _TRANSIENT

    @property
    def problem(self) -> "Problem":
        """The problem document as a model."""
        from yardmaster_schemas.api import Problem

        return Problem.model_validate(self.document)


class InputError(YardmasterError):
    """{shown}"""

    # A setting or file of the user cannot be used; no request was sent. Each problem has a line.

    code = "input"

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        #: What is wrong, and where: a line of a file, a key or a variable.
        self.problem = problem
        #: What to do; None if `problem` says it.
        self.hint = hint
        super().__init__(shown=f"{problem} ({hint})" if hint else problem)


class NoServer(InputError):
    """{shown}"""

    # The settings name no server, and no cluster runs on this machine.

    code = "no_server"


class TokenCommandFailed(InputError):
    """{shown}"""

    # The context's command that prints the token failed or took too long.

    code = "token_command"


class WaitTimeout(YardmasterError, TimeoutError):
    """Not {wanted} after {timeout_s:g} s: {tasks}. No task was changed."""

    code = "wait_timeout"

    def __init__(self, open_: "Sequence[Task]", wanted: str, timeout_s: float) -> None:
        #: The tasks that have not reached the phase; of a large job, only the first such tasks.
        self.tasks = open_
        names = ", ".join(f"{task.task_id} ({task.phase.value})" for task in open_)
        super().__init__(tasks=names or "the tasks", wanted=wanted, timeout_s=timeout_s)


class NeverFits(YardmasterError):
    """{task} can never fit: {reason}. It stays queued; cancel it, or see `explain`."""

    code = "never_fits"

    def __init__(self, task: "Task") -> None:
        #: One of the tasks; `task.wait` has the reason with its numbers.
        self.task = task
        #: The code of the wait reason.
        self.reason = task.wait.code if task.wait else "unschedulable"
        super().__init__(task=task.task_id, reason=self.reason)


def no_answer(code: str, detail: str, *, status: int = 0) -> dict[str, Any]:
    """A problem document for a call without an answer, or without a problem document."""
    return {
        "type": "about:blank",
        "title": code.replace("_", " "),
        "status": status,
        "detail": detail,
        "code": code,
        "hint": "check the address of the server and that it is running",
    }


def unreachable(server: str, error: Exception) -> ApiError:
    """The error for a gateway that gave no answer."""
    cause = str(error) or type(error).__name__
    return ApiError(no_answer("unreachable", f"{server} cannot be reached: {cause}"))


def refused(status: int, document: object, retry_after: str | None) -> ApiError:
    """The error for an answer that is not a success; `document` is its parsed JSON body, or None.

    For an answer without a problem document, for example from a proxy, a document is created from
    the HTTP status.
    """
    wanted = {"status": int, "title": str, "detail": str, "code": str}
    if not isinstance(document, dict) or any(
        not isinstance(document.get(key), kind) for key, kind in wanted.items()
    ):
        what = "API object" if status == HTTPStatus.OK else "problem document"
        found = f"status {status} and no {what}"
        document = no_answer("bad_answer", f"the answer cannot be parsed: {found}", status=status)
    after_s = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    return ApiError(document, min(after_s, LONGEST_RETRY_AFTER_S))
