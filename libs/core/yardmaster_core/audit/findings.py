"""What the audit says: findings, and where they were made."""

from dataclasses import dataclass
from typing import Any

from yardmaster_schemas.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that the log breaks: which (`S1` to `S11`), at which record, expected and found."""

    predicate: str
    topic: str
    offset: int
    message: str

    def __str__(self) -> str:
        return f"{self.predicate} {self.topic}/{self.offset}: {self.message}"


@dataclass(slots=True)
class Seen:
    """A record as it was fed; `envelope` is None when it could not be decoded.

    `batch_end` is the offset of the commit that makes it count; None while there is none.
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

    def add(self, predicate: str, seen: Seen, message: str) -> None:
        """Note that `seen` breaks a predicate."""
        self.findings.append(Finding(predicate, seen.topic, seen.offset, message))
