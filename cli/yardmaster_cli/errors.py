"""Errors of `yard`, and its exit codes.

```
0    done (waiting: all tasks succeeded)      103  conflict
1    a check failed, output not written       104  refused at admission
2    bad usage or file, nothing sent          105  can never fit
100  internal                                 106  unreachable
101  not found, ambiguous                     107  cancelled, or failed without an exit code
102  not signed in, not allowed               124  timeout     130  interrupted
```

A command that waits for tasks otherwise exits with their highest exit code; signal N is 128 + N.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from yardmaster.errors import InputError, NoServer, TokenCommandFailed

if TYPE_CHECKING:
    from pydantic import ValidationError


class Exit(IntEnum):
    """The exit codes of the public interface."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    INTERNAL = 100
    NOT_FOUND = 101
    NOT_ALLOWED = 102
    CONFLICT = 103
    REFUSED = 104
    NEVER_FITS = 105
    UNREACHABLE = 106
    CANCELLED = 107
    TIMEOUT = 124
    INTERRUPTED = 130


class CliError(Exception):
    """An error for the user: `message` says what is wrong and where, `hint` what to do."""

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)
        self.hint = hint

    def lines(self) -> list[str]:
        """The lines for stderr."""
        shown = [f"error: {self.message}"]
        if self.hint:
            shown.append(f"hint: {self.hint}")
        return shown


class BadUsage(CliError):
    """The command line or a file is wrong; no request was sent."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, exit_code=Exit.USAGE, hint=hint)


def input_error(error: InputError) -> CliError:
    """The error to show for wrong settings or a wrong file; each problem has a line of its own."""
    code = Exit.USAGE
    if isinstance(error, NoServer):
        code = Exit.UNREACHABLE
    elif isinstance(error, TokenCommandFailed):
        code = Exit.NOT_ALLOWED
    return CliError(error.problem.replace("\n", "\nerror: "), exit_code=code, hint=error.hint)


def first_error(error: "ValidationError") -> str:
    """The first error of a validation in one line: `weight: Input should be ...`."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {str(first['msg']).removeprefix('Value error, ')}"


def bad_setting(error: "ValidationError") -> BadUsage:
    """The first error of settings, with the name of its variable."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = "YARD_" + "__".join(str(part) for part in first["loc"]).upper()
    return BadUsage(f"{name}: {first['msg']}")


#: problem+json `code` -> exit code; for other codes the HTTP status decides.
_BY_CODE: Final[Mapping[str, Exit]] = {
    "malformed": Exit.USAGE,
    "invalid_spec": Exit.USAGE,
    "bad_cursor": Exit.USAGE,
    "too_large": Exit.USAGE,
    "invalid_package": Exit.USAGE,
    "no_packages": Exit.USAGE,
    "unauthenticated": Exit.NOT_ALLOWED,
    "forbidden": Exit.NOT_ALLOWED,
    "not_found": Exit.NOT_FOUND,
    "position_unknown": Exit.NOT_FOUND,
    "wrong_phase": Exit.CONFLICT,
    "in_use": Exit.CONFLICT,
    "version_mismatch": Exit.CONFLICT,
    "already_exists": Exit.CONFLICT,
    "precondition_required": Exit.CONFLICT,
    "idempotency_mismatch": Exit.CONFLICT,
    "rate_limited": Exit.UNREACHABLE,
    "view_behind": Exit.UNREACHABLE,
    "views_unavailable": Exit.UNREACHABLE,
    "log_unavailable": Exit.UNREACHABLE,
    "packages_unavailable": Exit.UNREACHABLE,
    "outcome_unknown": Exit.UNREACHABLE,
    # The answer is not from a gateway but from a proxy or another server.
    "bad_answer": Exit.UNREACHABLE,
}

_BY_STATUS: Final[Mapping[int, Exit]] = {
    400: Exit.USAGE,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    405: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    410: Exit.NOT_FOUND,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    422: Exit.USAGE,
    428: Exit.CONFLICT,
    429: Exit.UNREACHABLE,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}


#: problem+json `code` -> the hint for a user of `yard`, if the gateway's hint is for programs.
_HINTS: Final[Mapping[str, str]] = {
    "unauthenticated": "yard config shows where the token comes from; use another one with yard "
    "login, or set YARD_TOKEN",
}
#: The commands that list the objects that a request may name.
_LISTS: Final[Mapping[str, str]] = {
    **{kind: f"yard {kind}s" for kind in ("department", "node", "pool", "project", "user")},
    **dict.fromkeys(("job", "task"), "yard ls -A"),
}


def list_hint(kind: str) -> str:
    """The hint that names the command which lists the objects of a kind."""
    return f"list them with: {_LISTS[kind]}"


def _where_listed(detail: str) -> str | None:
    """The hint for `There is no project nlp.`; None for another detail."""
    kind = detail.removeprefix("There is no ").partition(" ")[0]
    # The detail of an unknown attempt or replica already lists the ones that the task has.
    return list_hint(kind) if detail.startswith("There is no ") and kind in _LISTS else None


def exit_of_problem(status: int, code: str | None) -> Exit:
    """The exit code for an error response."""
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status, Exit.INTERNAL)


def exit_of_end(phase: str, *, code: str | None, exit_code: int | None, signal: int | None) -> int:
    """The exit code for one task that ended.

    `phase` is final; `code` is the end code; at most one of `exit_code` and `signal` is set.
    """
    if phase == "succeeded":
        return Exit.DONE
    if phase == "rejected":
        return Exit.REFUSED
    if phase == "cancelled":
        return Exit.CANCELLED
    if code == "unschedulable":
        return Exit.NEVER_FITS
    if signal is not None:
        return 128 + signal
    if exit_code:
        return exit_code
    return Exit.CANCELLED


def exit_of_all(codes: Iterable[int]) -> int:
    """The exit code for several tasks: the highest."""
    return max(codes, default=int(Exit.DONE))


def problem_error(status: int, problem: Mapping[str, Any]) -> CliError:
    """The error to show for a problem+json body, which may be incomplete."""
    code = problem.get("code")
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
    places = [
        f"{str(item.get('pointer', '')).strip('#/').replace('/', '.') or 'request'}: "
        f"{item.get('detail') or item.get('code')}"
        for item in problem.get("errors") or ()
        if isinstance(item, Mapping)
    ]
    message = "; ".join(places) if places else detail
    hint = _HINTS.get(str(code)) or problem.get("hint") or _where_listed(detail)
    trace = problem.get("trace_id")
    if exit_of_problem(status, code) is Exit.INTERNAL and trace:
        message = f"{message} (trace {trace})"
    return CliError(
        message,
        exit_code=exit_of_problem(status, code if isinstance(code, str) else None),
        hint=str(hint) if hint else None,
    )
