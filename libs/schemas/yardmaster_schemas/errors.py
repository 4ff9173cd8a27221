"""The root of Yardmaster's exceptions, and the errors of decoding.

```
YardmasterError
  SchemaError   UnknownEventType  UnknownVersion  MalformedRecord
```

The docstring of an error is its message, with its fields filled in: what was wrong, and what to do.
"""

from typing import Any, ClassVar


class YardmasterError(Exception):
    """Something went wrong in Yardmaster."""

    #: A stable name for logs, quarantine entries and the API.
    code: ClassVar[str] = "error"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(" ".join((self.__doc__ or "").split()).format_map(_Fields(fields)))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle restores an exception by a call of its class with the message, which
        # these classes refuse. Without this method an error in a worker process could not be
        # reported.
        return _restored, (type(self), self.args), self.__dict__


def _restored(cls: type[YardmasterError], args: tuple[object, ...]) -> YardmasterError:
    """Return an error with its message; pickle restores the fields after that."""
    return cls.__new__(cls, *args)


class _Fields(dict[str, object]):
    """Fields for a message; a missing field is shown as `?` instead of hiding the error."""

    def __missing__(self, key: str) -> object:
        return "?"


class SchemaError(YardmasterError):
    """A record does not conform to its schema: {found}."""

    code = "schema"


class UnknownEventType(SchemaError):
    """Event type {type} is unknown to this version of Yardmaster. Upgrade the reader first."""

    code = "unknown_type"


class UnknownVersion(SchemaError):
    """Event {type} has version {version}, which is unknown to this reader. Upgrade the reader
    first.
    """

    code = "unknown_version"


class MalformedRecord(SchemaError):
    """The record cannot be decoded: {found}."""

    code = "malformed"
