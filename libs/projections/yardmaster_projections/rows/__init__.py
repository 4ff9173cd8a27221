"""The rows of the views: frozen and flat, with a kind for each type of object that readers request.

A row has a `key`, an `order` by which lists of its kind are sorted, and `facets` by which they are
filtered; a store reads nothing else of a row. Times are milliseconds since the epoch.
"""

from yardmaster_projections.rows.cell import (
    CountersRow,
    DepartmentRow,
    NodeRow,
    PoolRow,
    ProjectRow,
    SeenRow,
    WaitRow,
)
from yardmaster_projections.rows.jobs import (
    AttemptRow,
    Dropped,
    Ended,
    JobFacts,
    JobRow,
    OutputRow,
    Preparing,
    Refused,
    ReplicaRow,
    Reserved,
    Stopping,
    TaskRow,
)
from yardmaster_projections.rows.queue import QueueRow, RankRow
from yardmaster_projections.rows.records import CycleRow, HistoryRow, LogRow, RequestRow
from yardmaster_projections.rows.row import Facet, Order, R, Row
from yardmaster_projections.rows.shares import SharesRow

__all__ = [
    "AttemptRow",
    "CountersRow",
    "CycleRow",
    "DepartmentRow",
    "Dropped",
    "Ended",
    "Facet",
    "HistoryRow",
    "JobFacts",
    "JobRow",
    "LogRow",
    "NodeRow",
    "Order",
    "OutputRow",
    "PoolRow",
    "Preparing",
    "ProjectRow",
    "QueueRow",
    "R",
    "RankRow",
    "Refused",
    "ReplicaRow",
    "RequestRow",
    "Reserved",
    "Row",
    "SeenRow",
    "SharesRow",
    "Stopping",
    "TaskRow",
    "WaitRow",
]
