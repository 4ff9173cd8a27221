"""The errors of this package.

```
YardmasterError
  KubernetesError
    QuantityInvalid
    ConfigurationUnusable
    ApiUnavailable                              the server cannot answer now
    AnswerUnreadable  WatchBroken
    ApiRefused                                  the server refuses the request
      NotPermitted  ObjectMissing  Conflicting  VersionGone
```
"""

from yardmaster_schemas.errors import YardmasterError


class KubernetesError(YardmasterError):
    """Kubernetes: {found}."""

    code = "kubernetes"


class QuantityInvalid(KubernetesError):
    """{text!r} is no quantity of Kubernetes. Write a number with an optional suffix,
    as 500m or 2Gi.
    """

    code = "quantity_invalid"


class ConfigurationUnusable(KubernetesError):
    """The configuration {path} cannot be used: {found}."""

    code = "configuration_unusable"


class AnswerUnreadable(KubernetesError):
    """The answer to {request} cannot be read: {found}."""

    code = "answer_unreadable"


class WatchBroken(KubernetesError):
    """The API server ended {request}: {found}. List again."""

    code = "watch_broken"


class ApiUnavailable(KubernetesError):
    """The API server does not answer {request}: {found}. Try again later.

    The server may have done it: read the object before a write is repeated.
    """

    code = "api_unavailable"

    @property
    def retry_after_s(self) -> float:
        """The seconds that the server wants its client to wait; 0: it does not say."""
        wanted = self.fields.get("retry_after_s", 0.0)
        return wanted if isinstance(wanted, float) else 0.0


class ApiRefused(KubernetesError):
    """The API server refuses {request} with {status}: {found}."""

    code = "api_refused"


class NotPermitted(ApiRefused):
    """The API server does not permit {request}: {found}. Check the roles of this account."""

    code = "not_permitted"


class ObjectMissing(ApiRefused):
    """The API server knows no object of {request}: {found}."""

    code = "object_missing"


class Conflicting(ApiRefused):
    """{request} conflicts with the state of its object: {found}. Read it and decide again."""

    code = "conflicting"


class VersionGone(ApiRefused):
    """The API server no longer has the version of {request}: {found}. List again."""

    code = "version_gone"
