"""All that the gateway itself refuses a caller; `problems` makes an answer of each.

```
GatewayError   Malformed  BadCursor  Unauthenticated  Forbidden  NotFound  WrongPhase  NotEnded
               InUse  PositionUnknown  VersionMismatch  AlreadyExists  TooLarge  WrongMediaType
               InvalidBody  IdempotencyMismatch  PreconditionRequired  RateLimited  ViewBehind
               Busy  TokenFileRefused  OwnRecordRefused
```
"""

from collections.abc import Sequence

from yardmaster_schemas.api import FieldError
from yardmaster_schemas.errors import YardmasterError


class GatewayError(YardmasterError):
    """The request was refused: {found}."""

    code = "refused"


class Malformed(GatewayError):
    """The request cannot be read: {found}."""

    code = "malformed"


class BadCursor(GatewayError):
    """The cursor is not one that a page gave. Start again without it."""

    code = "bad_cursor"


class Unauthenticated(GatewayError):
    """Who asks is not known: {found}."""

    code = "unauthenticated"


class Forbidden(GatewayError):
    """{user} may not {action}."""

    code = "forbidden"


class NotFound(GatewayError):
    """There is no {what}."""

    code = "not_found"


class WrongPhase(GatewayError):
    """{what} is {phase}: nothing of it can be changed any more."""

    code = "wrong_phase"


class NotEnded(GatewayError):
    """{what} is {phase}: what it runs is still needed. Cancel it, erase it when it has ended."""

    code = "wrong_phase"


class InUse(GatewayError):
    """{what} is in use: {found}."""

    code = "in_use"


class PositionUnknown(GatewayError):
    """Position {position} is not one of this log: {found}."""

    code = "position_unknown"


class VersionMismatch(GatewayError):
    """{what} was changed in between: its ETag is {etag} now."""

    code = "version_mismatch"


class AlreadyExists(GatewayError):
    """{what} exists already."""

    code = "already_exists"


class TooLarge(GatewayError):
    """The request is too large: {found}."""

    code = "too_large"


class WrongMediaType(GatewayError):
    """The body is {found}; send application/json."""

    code = "unsupported_media_type"


class InvalidBody(GatewayError):
    """The body is not what is asked for: {found}."""

    code = "invalid_spec"

    def __init__(self, errors: Sequence[FieldError], **fields: object) -> None:
        self.errors = tuple(errors)
        super().__init__(**fields)


class IdempotencyMismatch(GatewayError):
    """Idempotency key {key} was used for another job ({job_id})."""

    code = "idempotency_mismatch"


class PreconditionRequired(GatewayError):
    """Changing {what} needs the header If-Match with the ETag you saw (or * for any)."""

    code = "precondition_required"


class RateLimited(GatewayError):
    """Too many requests at once. Try again in {retry_s} s."""

    code = "rate_limited"

    @property
    def retry_s(self) -> int:
        """Seconds to wait."""
        found = self.fields.get("retry_s")
        return found if isinstance(found, int) else 1


class ViewBehind(GatewayError):
    """The views have not reached {position} yet; they are at {reached}. Try again."""

    code = "view_behind"


class Busy(GatewayError):
    """{limit} requests wait to be recorded already; nothing of this one was. Try again."""

    code = "busy"


class OwnRecordRefused(GatewayError):
    """Quota refused record {record} of this gateway, which was answered with 202: {reason}.

    The client must send the request again. The next start of the gateway writes under a name of its
    own.
    """

    code = "own_record_refused"


class TokenFileRefused(GatewayError):
    """Token file {path} is not used: {found}."""

    code = "token_file"
