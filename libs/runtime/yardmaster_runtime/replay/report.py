"""The report of `verify` on a log."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from yardmaster_core import audit
from yardmaster_eventlog.port import Partition


@dataclass(frozen=True, slots=True)
class Finding:
    """A record that contradicts the rest of the log, and how it differs."""

    topic: str
    partition: int
    offset: int
    found: str
    #: The machine whose proof ended here; empty for `details`.
    machine: str = ""

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition} offset {self.offset}: {self.found}"


@dataclass(frozen=True, slots=True)
class RulesRange:
    """Consecutive cycles decided by the same rules."""

    rules: int
    first_cycle: int
    last_cycle: int
    #: Whether the decisions were recomputed; if not, chain, digests and states were checked.
    derived: bool


@dataclass(frozen=True, slots=True)
class MachineProof:
    """The proved part of one machine's topic."""

    machine: str
    ranges: tuple[RulesRange, ...]
    terms: int
    cycles: int
    decisions: int
    inputs: int
    refused: int
    #: Of these, claims whose type or version was unknown to the program that decided, and is known
    #: to this one. That refusal is taken as recorded.
    unreadable_then: int
    #: Records of fenced leaders; they do not count.
    dropped: int
    #: The cycle of the snapshot whose state was taken as given; 0: the proof starts with the log.
    from_cycle: int
    last_cycle: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`; `ok` when nothing that was checked is wrong."""

    findings: tuple[Finding, ...]
    #: Broken guarantees, found by the audit.
    promises: tuple[audit.Finding, ...]
    proved: tuple[MachineProof, ...]
    #: By partition: the first unproved offset and the end; only partitions with such records.
    unproved: Mapping[Partition, tuple[int, int]]
    details_checked: int
    #: Details that a request names and that were erased, or belonged to a refused repeat.
    details_gone: int
    #: Details that no proved request names, so that nothing proves their content.
    details_unnamed: int
    #: By partition: the first offset, where earlier records have expired. Then nothing was audited.
    expired: Mapping[Partition, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing differs and no guarantee is broken."""
        return not self.findings and not self.promises

    @property
    def first(self) -> Finding | None:
        """The first finding; None if nothing differs."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True, slots=True)
class ChainProof:
    """The checked part of one machine's chain; `head` is the head of the chain at its end."""

    machine: str
    terms: int
    cycles: int
    decisions: int
    inputs: int
    #: Records of fenced leaders; they do not count.
    dropped: int
    #: The cycle of the snapshot where the check began; 0: it began with the log.
    from_cycle: int
    last_cycle: int
    now_ms: int
    head: str
    #: The record that ended the check; None if the chain is intact.
    finding: Finding | None
    #: By partition: the first offset that no cycle has read, and the end.
    unproved: Mapping[Partition, tuple[int, int]]
