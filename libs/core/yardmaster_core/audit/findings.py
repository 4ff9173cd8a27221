"""Findings of the audit and the records that they refer to."""

from dataclasses import dataclass
from typing import Any

from yardmaster_schemas.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken guarantee: predicate (`S1` to `S11`), record, and the expected and found values."""

    predicate: str
    topic: str
    offset: int
    message: str

    def __str__(self) -> str:
        return f"{self.predicate} {self.topic}/{self.offset}: {self.message}"


@dataclass(slots=True)
class FedRecord:
    """A record of the log; `envelope` is None if it could not be decoded.

    `batch_end` is the offset of the commit that makes it count; None: no such commit yet.
    """

    topic: str
    offset: int
    envelope: Envelope[Any] | None
    digest: bytes
    batch_end: int | None = None


class Report:
    """Collects findings."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, predicate: str, fed: FedRecord, message: str) -> None:
        """Add a finding at the record `fed`."""
        self.findings.append(Finding(predicate, fed.topic, fed.offset, message))
