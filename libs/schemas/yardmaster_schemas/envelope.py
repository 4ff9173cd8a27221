"""The envelope of every event: its writer, time, actor and cause.

The attributes of CloudEvents 1.0 go into the record's headers; the value holds the whole envelope,
so that a record is complete without its headers (and one whose headers differ is refused).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Generic, TypeVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.fields import (
    CLOSED,
    Code,
    Count,
    Millis,
    Names,
    PrincipalId,
    RecordId,
    Source,
    TraceParent,
)

SPEC_VERSION: Final = "1.0"


class Event:
    """Base of every event body; the decorator `events.event` fills in the class variables."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    TYPE: ClassVar[str]
    VERSION: ClassVar[int]
    TOPICS: ClassVar[tuple[str, ...]]
    #: The version of the rules that introduces this event version; 0: any rules.
    RULES: ClassVar[int] = 0


class ActorKind(StrEnum):
    """The kind of an actor."""

    USER = "user"
    SERVICE = "service"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The actor that requested the recorded change; ids are opaque, names are in `details`."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    kind: ActorKind
    id: PrincipalId


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """How the actor of a request was authenticated, when (`at_ms`), and with which `groups`."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    method: Code
    issuer: Code
    credential_id: PrincipalId
    groups: Names = ()
    at_ms: Millis | None = None


E_co = TypeVar("E_co", bound=Event, covariant=True)


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope(Generic[E_co]):
    """One record of the log: an event in its envelope.

    `source`, `epoch` (how often the source has started; a machine's term) and `seq` identify it, so
    that a repeat is detected. `cause` is the record that caused it; a decision that only time has
    caused has none. `subject` is the job, task, node, pool, project or cell that it concerns.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    type: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z]{1,40}$")]
    version: Annotated[int, Field(ge=1, le=999)]
    source: Source
    epoch: Count
    seq: Count
    subject: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,90}$")]
    time_ms: Millis
    actor: Actor
    cause: RecordId | None = None
    traceparent: TraceParent | None = None
    auth: Auth | None = None
    data: E_co

    @property
    def id(self) -> str:
        """The record's identity, `source/epoch/seq`."""
        return f"{self.source}/{self.epoch}/{self.seq}"
