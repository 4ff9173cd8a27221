"""Events that every state machine writes in addition to decisions: terms, commits, snapshots."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    CLOSED,
    Code,
    Count,
    Digest,
    Incarnation,
    Millis,
    Name,
    Positive,
    RecordMarks,
    Signature,
)
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import ADMISSIONS, CUTS, DECISIONS

MAX_RANGES = 8
MAX_REFUSED = 4096


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """The records that a cycle took from one input partition: offsets from `first` to `next` - 1.

    `digest` covers the raw records (key, headers, value); `marks` has 16 hex digits per record.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    topic: Name
    partition: Count
    first: Count
    next: Count
    digest: Digest
    marks: RecordMarks


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRange:
    """Input records from `first` to `last` that were refused and changed nothing."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    topic: Name
    partition: Count
    first: Count
    last: Count
    code: RefusalCode


@writes_slots
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInUse:
    """The policy that decided for a pool in this cycle."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    pool: Name
    name: Name
    version: Positive


@event(ADMISSIONS, DECISIONS, name="TermStarted")
@dataclass(frozen=True, slots=True, kw_only=True)
class TermStartedV1(Event):
    """A leader took over. A term belongs to the first incarnation that wrote its TermStarted."""

    cell: Name
    machine: Code
    term: Positive
    incarnation: Incarnation


@event(ADMISSIONS, DECISIONS, name="CycleCommitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCommittedV1(Event):
    """The end of a cycle: it makes the decisions before it valid.

    `prev` is the chain's head: the digest of the commit before (and of a TermStarted in between).
    `state_digest` covers the state after this cycle's decisions. `complete` is false when the cycle
    ended at its limit with decisions left to make from the same inputs; `limit` is the most
    decisions that it could make (None: any number), which a replay needs to decide the same.
    `rules`: the version of the rules that decided the cycle.
    """

    cell: Name
    machine: Code
    term: Positive
    cycle: Positive
    now_ms: Millis
    inputs: Annotated[tuple[InputRange, ...], Field(max_length=MAX_RANGES)]
    refused: Annotated[tuple[RefusedRange, ...], Field(max_length=MAX_REFUSED)]
    policies: Annotated[tuple[PolicyInUse, ...], Field(max_length=1024)]
    decisions: Count
    decisions_digest: Digest
    decision_marks: RecordMarks
    state_digest: Digest
    prev: Digest
    complete: bool
    limit: Positive | None = None
    kid: Code | None = None
    sig: Signature | None = None
    rules: Positive


@event(ADMISSIONS, DECISIONS, name="RulesEnabled")
@dataclass(frozen=True, slots=True, kw_only=True)
class RulesEnabledV1(Event):
    """From this record on, this version of the rules decides, in a log that began with older rules.
    A program that knows only older rules must not lead from then on.

    Quota writes it as the verdict on a RulesRequested. Without a cause, it is an observation of the
    leader and applies to its whole cycle: the scheduler follows quota's rules, and a program
    replaces rules that it no longer has by its oldest ones.
    """

    rules: Positive


@event(ADMISSIONS, DECISIONS, name="SnapshotTaken")
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTakenV1(Event):
    """The runtime stored a snapshot of the state after `cycle`, which has this digest."""

    cycle: Positive
    state_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCycle:
    """The last cycle of a machine that a cut kept."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    machine: Code
    cycle: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRange:
    """A topic that was cut: its records before `end` were kept, those before `was` existed."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    topic: Name
    end: Count
    was: Count


@event(CUTS, name="LogCut")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogCutV1(Event):
    """An operator shortened the cell's log to a consistent state (`yard log cut`).

    The log is of generation `generation` from then on. Fences of earlier generations do not apply,
    and nodes join as new incarnations.
    """

    generation: Positive
    cycles: Annotated[tuple[KeptCycle, ...], Field(max_length=MAX_RANGES)]
    kept: Annotated[tuple[KeptRange, ...], Field(max_length=MAX_RANGES)]
