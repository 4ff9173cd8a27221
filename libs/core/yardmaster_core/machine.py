"""The protocol of a state machine: pure functions over a state. The shell does all I/O.

The shell (libs/runtime) consumes records from the machine's input topics, refuses claims that the
machine does not accept, and applies the others in the order of topics. Then the machine decides,
and the shell appends the decisions with their CycleCommitted as one batch, reads the batch back and
applies the decisions. Any other reader of the log does the same without deciding, and gets the same
state.

Every reader runs a cycle as `begin_cycle`, `apply` for each input, `apply` for each decision,
`end_cycle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from yardmaster_core.rules import RULES
from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.machine import PolicyInUse
from yardmaster_schemas.reasons import RefusalCode
from yardmaster_schemas.topics import Topic

S = TypeVar("S")


@writes_slots
@dataclass(frozen=True, slots=True)
class Decision:
    """An event to append, its subject, and the id of the record that caused it (None: a time)."""

    event: Event
    subject: str
    cause: str | None = None


@writes_slots
@dataclass(frozen=True, slots=True)
class CycleResult:
    """The decisions of one cycle.

    `state_digest` is the digest of the state after the decisions (64 hex digits). `complete` is
    false if the limit cut the cycle, so that the next cycle decides the rest from the same inputs.
    An observation that the shell gave either comes first among the decisions or is left out.
    """

    decisions: Sequence[Decision]
    state_digest: str
    complete: bool = True


class Machine(Protocol[S]):
    """A state machine, quota's or the scheduler's. It keeps no state itself."""

    @property
    def name(self) -> str:
        """`quota` or `scheduler`: the first part of the `source` of its records."""

    @property
    def output(self) -> Topic:
        """The topic to which only this machine writes."""

    @property
    def inputs(self) -> tuple[Topic, ...]:
        """The topics that the machine reads, in the order in which a cycle applies them."""

    @property
    def observations(self) -> tuple[type[Event], ...]:
        """Event classes of `output` that the shell observes; no machine decides them."""

    @property
    def rules(self) -> int:
        """The newest version of the rules by which the machine can decide (see `rules.py`)."""

    @property
    def oldest_rules(self) -> int:
        """The oldest version of the rules by which the machine can decide, and recompute."""

    def initial(self, cell: str) -> S:
        """The state before any record."""

    def begin_cycle(self, state: S, cycle: int, now_ms: int, rules: int = RULES) -> S:
        """Start a cycle: apply the deadlines up to `now_ms`.

        `now_ms` never decreases, and is not before the append of any record that the cycle takes.
        `rules` are in force until an applied event enables newer ones.
        """

    def calls_for_cycle(self, event: Event) -> bool:
        """Whether an event of another machine calls for a cycle.

        An event that calls for none waits for the next cycle, so that two machines that read each
        other's topics do not run cycles without end.
        """

    def refusal(self, state: S, envelope: Envelope[Event]) -> RefusalCode | None:
        """Why this claim is refused, or None. A machine's record is never refused."""

    def apply(self, state: S, event: Event, record_id: str, actor: str = "") -> S:
        """The state after `event`; the given state must not be used any more.

        `actor` is the id of the actor that the event's envelope names.

        Raises:
            ImpossibleEvent: log and state disagree (never for a claim that `refusal` accepted).
        """

    def decide(self, state: S, *, limit: int, observed: Sequence[Decision] = ()) -> CycleResult:
        """The decisions that follow from the state and the observations; changes no state.

        `limit` is the most decisions, including observations.
        """

    def unwritable(self, event: Event) -> Decision | None:
        """The observation for a decision that is larger than a record may be.

        After the observation, the next cycle decides otherwise. None: the machine has no
        alternative and stops.
        """

    def end_cycle(self, state: S, *, complete: bool) -> S:
        """End a cycle; `complete` is false if the limit cut it.

        Work that a complete cycle considered without a decision waits until an event concerns it.
        """

    def policies(self, state: S) -> tuple[PolicyInUse, ...]:
        """The policies of all pools, by pool name."""

    def digest(self, state: S) -> str:
        """64 hex digits, the same for every reader of the same records."""

    def committed_digest(self, state: S) -> str:
        """The digest before `end_cycle`, which the commit of the last cycle names.

        It may differ from `digest` if `end_cycle` changed a part that a snapshot does not keep.
        """

    def due_ms(self, state: S) -> int | None:
        """When a cycle is due without an input, in ms since the epoch; None: never."""

    def dump(self, state: S) -> Any:
        """The state for a snapshot, as a value that the caller encodes later (`plain.encode`)."""

    def load(self, cell: str, dump: Any) -> S:
        """The state that `dump` returned.

        Raises:
            SnapshotUnreadable: the value is from another version, or not a dump.
        """


class InPlaceMachine(Machine[S], Protocol[S]):
    """A machine that can decide in place; only for a process that is the log's sole writer."""

    def decide_in_place(
        self, state: S, *, limit: int, observed: Sequence[Decision] = ()
    ) -> tuple[S, Sequence[Decision], bool]:
        """The state after the decisions of `decide`, the decisions, and whether they are complete.

        The machine makes no draft; the given state must not be used any more. The new state does
        not know the ids of the decisions' records, so it does not recognize repeats of these
        records. No digest is computed; call `digest` for one.
        """
