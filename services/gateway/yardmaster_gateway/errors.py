"""The errors that the gateway itself raises; `problems` turns each into an answer.

```
GatewayError   Malformed  BadCursor  Unauthenticated  Forbidden  NotFound  WrongPhase  NotEnded
               InUse  PositionUnknown  PositionExpired  VersionMismatch  AlreadyExists  TooLarge
               WrongMediaType  InvalidBody  IdempotencyMismatch  PreconditionRequired  RateLimited
               ViewBehind  Busy  NotReady  TokenFileRefused  OwnRecordRefused
               InvalidPackage  NoPackages  PackageStoreUnavailable
               NoArtifactStore  ArtifactStoreUnavailable
```
"""

from collections.abc import Sequence

from yardmaster_schemas.api import FieldError, Phase
from yardmaster_schemas.errors import YardmasterError


class GatewayError(YardmasterError):
    """The request was refused: {found}."""

    code = "refused"


class Malformed(GatewayError):
    """The request is malformed: {found}."""

    code = "malformed"


class BadCursor(GatewayError):
    """The cursor is invalid: it is not the next_cursor of an earlier page."""

    code = "bad_cursor"


class Unauthenticated(GatewayError):
    """Not authenticated: {found}."""

    code = "unauthenticated"


class Forbidden(GatewayError):
    """User {user} is not allowed to {action}."""

    code = "forbidden"


class NotFound(GatewayError):
    """There is no {what}."""

    code = "not_found"


class WrongPhase(GatewayError):
    """{what} has already {ended} and can no longer be changed."""

    code = "wrong_phase"

    def __init__(self, *, what: str, phase: Phase) -> None:
        passive = phase in (Phase.CANCELLED, Phase.REJECTED)
        super().__init__(what=what, ended=f"been {phase}" if passive else str(phase))


class NotEnded(GatewayError):
    """{what} is {phase}: only an ended job can be erased. Cancel it, and erase it afterwards."""

    code = "wrong_phase"


class InUse(GatewayError):
    """{what} is in use by {found}."""

    code = "in_use"


class PositionUnknown(GatewayError):
    """This log does not contain position {position}: {found}."""

    code = "position_unknown"


class PositionExpired(GatewayError):
    """Records after position {position} have expired. Those after {oldest} are still in the log."""

    code = "position_expired"


class VersionMismatch(GatewayError):
    """{what} was modified by someone else: {found}."""

    code = "version_mismatch"


class AlreadyExists(GatewayError):
    """{what} already exists."""

    code = "already_exists"


class TooLarge(GatewayError):
    """The request is too large: {found}."""

    code = "too_large"


class WrongMediaType(GatewayError):
    """The Content-Type of the body is {found}; it must be application/json."""

    code = "unsupported_media_type"


class InvalidBody(GatewayError):
    """The request body is invalid: {found}."""

    code = "invalid_spec"

    def __init__(self, errors: Sequence[FieldError], **fields: object) -> None:
        self.errors = tuple(errors)
        super().__init__(**fields)


class IdempotencyMismatch(GatewayError):
    """Idempotency key {key} was already used for a different job ({job_id})."""

    code = "idempotency_mismatch"


class PreconditionRequired(GatewayError):
    """To change {what}, send If-Match with its ETag, or with * for any version."""

    code = "precondition_required"


class RateLimited(GatewayError):
    """Too many requests. Try again in {retry_s} s."""

    code = "rate_limited"

    @property
    def retry_s(self) -> int:
        """Seconds to wait before the next request."""
        found = self.fields.get("retry_s")
        return found if isinstance(found, int) else 1


class ViewBehind(GatewayError):
    """The views have reached position {reached}, but not yet {position}."""

    code = "view_behind"


class Busy(GatewayError):
    """The gateway is overloaded: {limit} requests are waiting already. This one was refused."""

    code = "busy"


class NotReady(GatewayError):
    """The gateway cannot authenticate callers now: {found}."""

    code = "not_ready"


class OwnRecordRefused(GatewayError):
    """Quota refused record {record}, which this gateway had answered with 202: {reason}.

    The answer to a read of its job says so. The client must send the request again.
    """

    code = "own_record_refused"


class InvalidPackage(GatewayError):
    """The package was not stored. {found}"""

    code = "invalid_package"


class NoPackages(GatewayError):
    """This gateway stores no packages: its setting YARD_PACKAGES is empty."""

    code = "no_packages"


class PackageStoreUnavailable(GatewayError):
    """The store of packages is unavailable at the moment."""

    code = "packages_unavailable"


class NoArtifactStore(GatewayError):
    """This gateway reads no artifacts: its setting YARD_ARTIFACTS is empty."""

    code = "no_artifacts"


class ArtifactStoreUnavailable(GatewayError):
    """The store of artifacts is unavailable at the moment, or damaged."""

    code = "artifacts_unavailable"


class TokenFileRefused(GatewayError):
    """Token file {path} cannot be used: {found}."""

    code = "token_file"
