"""The root of Yardmaster's exceptions, and the errors of decoding.

```
YardmasterError
  SchemaError   UnknownEventType  UnknownVersion  MalformedRecord
```

The docstring of an error is its message, with its fields filled in: what happened, and what to do.
"""

from typing import Any, ClassVar


class YardmasterError(Exception):
    """Something went wrong in Yardmaster."""

    #: A stable name for logs, quarantine entries and the API.
    code: ClassVar[str] = "error"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(" ".join((self.__doc__ or "").split()).format_map(_Shown(fields)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle calls the class of an exception with its message, which these do not take. Without
        # it an error of another process would not come back, and nobody learn what it was.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(cls: type[YardmasterError], args: tuple[object, ...]) -> YardmasterError:
    """An error that says what it said; its fields are put back after."""
    return cls.__new__(cls, *args)


class _Shown(dict[str, object]):
    """Fields for a message; one that was not given shows as `?` instead of hiding the error."""

    def __missing__(self, key: str) -> object:
        return "?"


class SchemaError(YardmasterError):
    """A record does not hold what the schemas allow: {found}."""

    code = "schema"


class UnknownEventType(SchemaError):
    """Event type {type} is not known to this version of Yardmaster. Upgrade the reader first."""

    code = "unknown_type"


class UnknownVersion(SchemaError):
    """Event {type} has version {version}, unknown to this reader. Upgrade the reader first."""

    code = "unknown_version"


class MalformedRecord(SchemaError):
    """The record cannot be decoded: {found}."""

    code = "malformed"
