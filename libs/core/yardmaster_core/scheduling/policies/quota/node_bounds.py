"""How much could be free on one node at most, if the tasks of some projects were preempted and
others moved: a bound that refuses a search for victims without a search.

All of it follows from what is free on the nodes and from the preemptible tasks there. It is brought
up to date at a read, at the cost of a step per node that changed, and per node with tasks of a
project that joined or left the set of projects.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Project

#: The sets of projects for which bounds are kept.
MAX_TABLES: Final = 8
#: More gpu_milli than any pool has.
UNBOUNDED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class _Row:
    """One node: the gpu_milli that will be free, and those that preemptible tasks hold.

    `complex`: a gang is among the tasks, which also frees slots of other nodes, or a task whose
    request by GPU memory is a smaller part of a larger GPU. So no sum bounds what can be moved.
    """

    free: int
    held: tuple[tuple[Project, int], ...]
    complex: bool


#: What could be free on a node without its tasks that may be preempted or moved; and the part of it
#: that needs no free slots of other nodes, apart from what is free on the node.
_Pair = tuple[int, int]


@dataclass(slots=True)
class _Table:
    """The nodes by their pair, for a set of projects that lose tasks."""

    losing: frozenset[Project]
    #: The most gpu_milli of a task that other nodes have free slots for.
    largest: int
    #: How much of the log of changed nodes is included.
    followed: int = 0
    pairs: dict[int, _Pair] = field(default_factory=dict)
    nodes: Counter[_Pair] = field(default_factory=Counter)

    def update(self, ordinal: int, row: _Row | None) -> None:
        """Compute the pair of a node again."""
        nodes = self.nodes
        before = self.pairs.pop(ordinal, None)
        if before is not None:
            nodes[before] -= 1
            if not nodes[before]:
                del nodes[before]
        if row is not None:
            pair = self.pairs[ordinal] = self._pair(row)
            nodes[pair] += 1

    def _pair(self, row: _Row) -> _Pair:
        losing, largest, everything = self.losing, self.largest, row.complex
        lost = moved = 0
        for project, milli in row.held:
            if project in losing:
                lost += milli
            elif everything or milli <= largest:
                moved += milli
        return row.free + lost + moved, UNBOUNDED if everything else lost

    def most(self, total: int) -> int:
        """Return the most that one node could have free, with `total` free on all nodes."""
        return max((min(gained, lost + total) for gained, lost in self.nodes), default=0)


class NodeBounds:
    """The bounds of the nodes of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._topology = -1
        self._rows: dict[int, _Row] = {}
        #: The nodes by what is free on them, the tasks by what they hold on a node, and the nodes
        #: with preemptible tasks of a project.
        self._free: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        self._nodes_of: dict[Project, Counter[int]] = {}
        #: The nodes that changed, in order.
        self._log: list[int] = []
        #: The table used last is the last one.
        self._tables: list[_Table] = []

    def most_on_one_node(self, losing: frozenset[Project]) -> int:
        """Return the most gpu_milli that could be free on one node without the tasks of these
        projects, if other preemptible tasks were moved to free slots of other nodes.

        A task that is moved fits on what some node has free, and all that are moved fit on what all
        other nodes have free. Tasks that this cycle placed count too, because a later cycle may
        preempt them.
        """
        self._follow()
        return self._table(losing).most(self._pool.future.free_milli)

    def _follow(self) -> None:
        """Bring the rows of all nodes that changed up to date."""
        pool = self._pool
        changed: Iterable[int]
        if self._topology != pool.topology or pool.future.touched is None:
            self._topology = pool.topology
            self._tables.clear()
            self._log.clear()
            changed = dict.fromkeys((*self._rows, *pool.nodes))
        else:
            changed = pool.future.touched
        for ordinal in changed:
            self._update(ordinal)
        self._log += changed
        pool.future.touched = {}
        if len(self._log) > 1024 + 4 * len(self._rows):
            for table in self._tables:
                self._bring_up_to_date(table)
                table.followed = 0
            self._log.clear()

    def _update(self, ordinal: int) -> None:
        before, now = self._rows.pop(ordinal, None), self._row(ordinal)
        if now is not None:
            self._rows[ordinal] = now
        for row, sign in (before, -1), (now, 1):
            if row is None:
                continue
            _count(self._free, row.free, sign)
            for project, milli in row.held:
                _count(self._sizes, milli, sign)
                nodes = self._nodes_of.get(project)
                if nodes is None:
                    nodes = self._nodes_of[project] = Counter()
                _count(nodes, ordinal, sign)
                if not nodes:
                    del self._nodes_of[project]

    def _row(self, ordinal: int) -> _Row | None:
        """Return what a node has; None: it takes no tasks."""
        capacity, node = self._pool.future.capacities.get(ordinal), self._pool.nodes.get(ordinal)
        if capacity is None or node is None or not capacity.available:
            return None
        held: list[tuple[Project, int]] = []
        complex_ = False
        for (_, replica), task in node.open.items():
            run, job = task.run, task.job
            if run is None or run.stop is not None or not job.spec.preemptible:
                continue
            placement = run.placements[replica]
            milli = placement.gpu_milli * len(placement.slots)
            if milli:
                held.append((job.project, milli))
                complex_ |= len(run.placements) > 1 or bool(job.shape.gpu_memory_mib)
        return _Row(capacity.gpu_milli, tuple(held), complex_)

    def _table(self, losing: frozenset[Project]) -> _Table:
        """Return the table of a set of projects, made from the most similar one."""
        free = max(self._free, default=0)
        largest = max((size for size in self._sizes if size <= free), default=0)
        alike = [table for table in self._tables if table.largest == largest]
        base = min(alike, key=lambda table: len(table.losing ^ losing), default=None)
        if base is not None and base.losing == losing:
            self._bring_up_to_date(base)
            self._tables.remove(base)
            self._tables.append(base)
            return base
        changed: dict[int, None] = dict.fromkeys(self._rows)
        table = _Table(losing, largest, len(self._log))
        if base is not None:
            of = [self._nodes_of.get(project, ()) for project in base.losing ^ losing]
            if sum(map(len, of)) < len(self._rows) // 2:
                self._bring_up_to_date(base)
                table.pairs, table.nodes = dict(base.pairs), Counter(base.nodes)
                changed = dict.fromkeys(ordinal for nodes in of for ordinal in nodes)
        for ordinal in changed:
            table.update(ordinal, self._rows[ordinal])
        self._tables.append(table)
        del self._tables[:-MAX_TABLES]
        return table

    def _bring_up_to_date(self, table: _Table) -> None:
        for ordinal in dict.fromkeys(self._log[table.followed :]):
            table.update(ordinal, self._rows.get(ordinal))
        table.followed = len(self._log)


def _count(counter: Counter[int], key: int, change: int) -> None:
    """Add to a count; a count of 0 is removed."""
    counter[key] += change
    if not counter[key]:
        del counter[key]
