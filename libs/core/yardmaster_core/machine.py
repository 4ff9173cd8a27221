"""What a state machine is: pure functions over a state, driven by a shell that alone does I/O.

The shell (libs/runtime) takes records from the machine's input topics, refuses claims the machine
does not accept, applies the rest in the catalogue's order, asks it to decide, appends the decisions
with their CycleCommitted as one batch, reads that back and applies the decisions. Any reader of the
log does the same minus the deciding, and gets the same state.

Every reader runs a cycle as `begin_cycle`, `apply` for each input, `apply` for each decision,
`end_cycle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.machine import PolicyInUse
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import Topic

S = TypeVar("S")


@writes_slots
@dataclass(frozen=True, slots=True)
class Decision:
    """An event to append, what it is about, and the record it follows from (None: time alone)."""

    event: Event
    subject: str
    cause: str | None = None


@writes_slots
@dataclass(frozen=True, slots=True)
class Verdict:
    """What one cycle decided.

    `state_digest` is of the state with the decisions applied (64 hex digits). `complete` is false
    when the limit on decisions cut the cycle and more is to be decided from what is already
    applied. The observations it was given may come first among the decisions, or be left out.
    """

    decisions: Sequence[Decision]
    state_digest: str
    complete: bool = True


class Machine(Protocol[S]):
    """One kind of state machine: quota's or the scheduler's. Holds no state itself."""

    @property
    def name(self) -> str:
        """quota, scheduler: the first part of its records' `source`."""

    @property
    def output(self) -> Topic:
        """The topic it alone writes."""

    @property
    def inputs(self) -> tuple[Topic, ...]:
        """What it reads, in the order in which a cycle applies it."""

    @property
    def observations(self) -> tuple[type[Event], ...]:
        """Event classes of `output` that its shell observes; no input leads to them."""

    @property
    def rules(self) -> int:
        """The version of the rules by which it decides (`core.rules`)."""

    def initial(self, cell: str) -> S:
        """The state before any record."""

    def begin_cycle(self, state: S, cycle: int, now_ms: int) -> S:
        """Start a cycle: time goes on to `now_ms`, never back; what was due by then happens."""

    def refusal(self, state: S, envelope: Envelope[Event]) -> RefusalCode | None:
        """Why a claim cannot be believed in this state, or None; a machine's own records are never
        refused.
        """

    def apply(self, state: S, event: Event, record_id: str) -> S:
        """The state after an event; the state given is used up.

        Raises:
            ImpossibleEvent: log and state disagree (never for a claim that `refusal` let pass).
        """

    def decide(self, state: S, *, limit: int, observed: Sequence[Decision] = ()) -> Verdict:
        """What follows from the state as it is, after the observations; the state is left
        unchanged.

        `limit` bounds the decisions, observations included.
        """

    def unwritable(self, event: Event) -> Decision | None:
        """What to observe in the next cycle after a decision was larger than a record may be, so
        that the machine decides otherwise; None: there is no other way, the machine stops.
        """

    def end_cycle(self, state: S, *, complete: bool) -> S:
        """End a cycle: what was considered and still waits sleeps until an event wakes it."""

    def policies(self, state: S) -> tuple[PolicyInUse, ...]:
        """The policies that decide, by pool name."""

    def digest(self, state: S) -> str:
        """64 hex digits that any reader of the same records gets."""

    def due_ms(self, state: S) -> int | None:
        """When time alone next calls for a cycle; None when it never does."""

    def dump(self, state: S) -> Any:
        """The state as plain JSON, for a snapshot."""

    def load(self, cell: str, dump: Any) -> S:
        """The state that `dump` gave.

        Raises:
            SnapshotUnreadable: another version's, or not a dump.
        """


class Advancing(Machine[S], Protocol[S]):
    """A machine that can decide for good, for whoever is sure of the log that he writes."""

    def advance(
        self, state: S, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[S, Sequence[Decision], bool]:
        """The state after `apply` of each of the decisions that `decide` gives, the decisions, and
        whether they are all, at the cost of deciding alone; the state given is used up.

        The records in which the decisions are written are not known to the state: their repeats are
        not, either. What the state hashes to, `digest` tells whoever writes it down.
        """
