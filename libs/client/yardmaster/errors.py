"""What a call of the client raises. Imports no models: commands that only read start fast."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from yardmaster_schemas.errors import YardmasterError

if TYPE_CHECKING:
    from yardmaster_schemas.api import Problem

#: Statuses after which the same call may succeed; 0: no answer came.
_PASSING: Final = (
    0,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
#: The longest pause that a gateway may ask for with `Retry-After`, in seconds.
LONGEST_ASKED_PAUSE_S: Final = 60.0


class ApiError(YardmasterError):
    """{detail}"""

    code = "api"

    def __init__(self, document: Mapping[str, Any], retry_after_s: float = 0.0) -> None:
        #: The problem document (RFC 9457): `status`, `code`, `detail`, `hint` and more.
        self.document = document
        #: How long the gateway asks to wait before the next try, in seconds.
        self.retry_after_s = retry_after_s
        super().__init__(detail=document["detail"])

    @property
    def status(self) -> int:
        """The HTTP status; 0 when no answer came."""
        return int(self.document["status"])

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later.

        A server that is stopping may answer 500 without a problem document.
        """
        if self.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return bool(self.document["code"] == "bad_answer")
        return self.status in _PASSING

    @property
    def problem(self) -> "Problem":
        """The problem document as a model."""
        from yardmaster_schemas.api import Problem

        return Problem.model_validate(self.document)


def no_answer(code: str, detail: str, *, status: int = 0) -> dict[str, Any]:
    """A problem document for a call that got no answer, or one that is no problem document."""
    return {
        "type": "about:blank",
        "title": code.replace("_", " "),
        "status": status,
        "detail": detail,
        "code": code,
        "hint": "check the server's address, and that it runs",
    }


def unreachable(server: str, error: Exception) -> ApiError:
    """The error for a gateway that gave no answer."""
    what = str(error) or type(error).__name__
    return ApiError(no_answer("unreachable", f"{server} cannot be reached: {what}"))


def refused(status: int, document: object, retry_after: str | None) -> ApiError:
    """The error for an answer that is not a success; `document` is its parsed body, if it is JSON.

    An answer without a problem document (a proxy's, say) gets one that names its status.
    """
    wanted = {"status": int, "title": str, "detail": str, "code": str}
    if not isinstance(document, dict) or any(
        not isinstance(document.get(key), kind) for key, kind in wanted.items()
    ):
        what = "JSON of the API" if status == HTTPStatus.OK else "problem document"
        found = f"status {status} and no {what}"
        document = no_answer("bad_answer", f"the answer is not understood: {found}", status=status)
    after_s = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    return ApiError(document, min(after_s, LONGEST_ASKED_PAUSE_S))
