"""Rows of the queue of a pool: jobs with pending tasks, and the ranks of claimants."""

from dataclasses import dataclass
from typing import ClassVar, Final

from yardmaster_core.scheduling.planner.policy import QueueTraits, Rank
from yardmaster_projections.rows.row import Facet, Order, Row
from yardmaster_schemas.events.decisions import Among


def section_of(traits: QueueTraits) -> str:
    """The name of the section of tasks with these traits."""
    flags = "".join(str(int(is_set)) for is_set in (traits.preemptible, traits.gpus, traits.failed))
    return f"{traits.priority}.{flags}"


def traits_of(section: str) -> QueueTraits:
    """The traits of the tasks of a section."""
    priority, _, flags = section.partition(".")
    return QueueTraits(int(priority), *(flag == "1" for flag in flags))


#: The claimants whose jobs are found by section.
_WITH_SECTIONS: Final = (Among.PROJECT, Among.USER)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow(Row):
    """A job in the queue of a pool: it has pending tasks of these traits.

    Its order does not depend on the policy; `queue_pages` merges sections as the policy says.
    """

    KIND: ClassVar[str] = "queue"

    pool: str
    job_id: str
    project: str
    #: The id of the user who submitted it; empty: not known.
    actor: str
    traits: QueueTraits
    submitted_at_ms: int
    #: The submission time by which the scheduler orders tasks, as in `JobRow`.
    queued_at_ms: int
    #: Offset of the job's TaskSubmitted in `requests`; jobs are admitted in the order of offsets.
    offset: int

    @property
    def key(self) -> str:
        """Pool and job; tasks of the job whose last starts failed have a row of their own."""
        return f"{self.pool}/{self.job_id}" + ("/failed" if self.traits.failed else "")

    @property
    def order(self) -> Order:
        """By submission, then by admission."""
        return (self.queued_at_ms, f"{self.offset:016d}", int(self.traits.failed))

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The section of the tasks in the pool, and their section within project and user."""
        section = section_of(self.traits)
        return (
            ("section", f"{self.pool}/{section}"),
            *((each, f"{self.pool}/{self.claimant(each)}/{section}") for each in _WITH_SECTIONS),
        )

    def claimant(self, among: Among) -> str:
        """The claimant to which the tasks belong, as a `ClaimantRank` names it."""
        if among is Among.JOB:
            return self.job_id
        return self.actor or f"project/{self.project}" if among is Among.USER else self.project


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow(Row):
    """The rank of a claimant in the queue of a pool, as the scheduler recorded it."""

    KIND: ClassVar[str] = "rank"

    pool: str
    among: Among
    claimant: str
    rank: Rank

    @property
    def key(self) -> str:
        """The pool, the kind of its claimants, and the claimant."""
        return f"{self.pool}/{self.among}/{self.claimant}"

    @property
    def order(self) -> Order:
        """By rank, then by name."""
        rest = ".".join(f"{number:016d}" for number in self.rank[1:])
        return (self.rank[0] if self.rank else 0, f"{rest}/{self.claimant}", len(self.rank))

    @property
    def facets(self) -> tuple[Facet, ...]:
        """The pool, and the kind of its claimants."""
        return (("pool", f"{self.pool}/{self.among}"),)
