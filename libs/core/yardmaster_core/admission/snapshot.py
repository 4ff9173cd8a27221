"""Quota's state as plain JSON and back, for snapshots.

A snapshot is a cache: a snapshot of another format is refused, not converted, and the reader folds
the log instead.
"""

from collections.abc import Iterable
from sys import intern
from typing import Any, Final

from yardmaster_core.access import User
from yardmaster_core.admission.state import (
    AdmissionState,
    Cell,
    Department,
    Enrolled,
    Job,
    LastRecord,
    Log,
    Node,
    Pending,
    Pool,
    Project,
)
from yardmaster_core.errors import SnapshotUnreadable
from yardmaster_schemas import plain
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.errors import SchemaError
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.events.requests import (
    CellConfig,
    DepartmentConfig,
    Enrollment,
    PoolConfig,
    ProjectConfig,
)
from yardmaster_schemas.events.users import RoleInScope, TokenRecord

#: The version of the format. Increase it when the dump or the text of a digest changes.
FORMAT: Final = 8


def dump(state: AdmissionState) -> dict[str, Any]:
    """The whole state; equal states at the same position of the log give equal dumps."""
    return {
        "form": FORMAT,
        "cell": state.cell,
        "cycle": state.cycle,
        "now_ms": state.now_ms,
        "rules": state.rules,
        "taken": state.taken,
        "judged": state.judged,
        "own": None if state.own is None else [state.own.epoch, state.own.seq],
        "logs": [[row.log_id, row.mode] for _, row in state.logs.items()],
        "cells": _dump_configs(state.cells.items()),
        "pools": _dump_configs(state.pools.items()),
        "departments": _dump_configs(state.departments.items()),
        "projects": _dump_configs(state.projects.items()),
        "nodes": {name: row.deadline_at_ms for name, row in state.nodes.items()},
        "enrolled": {
            name: [plain.dump(row.config), row.revision, row.revoked]
            for name, row in state.enrolled.items()
        },
        "users": {name: _dump_user(row) for name, row in state.users.items()},
        "jobs": {name: _dump_job(row) for name, row in state.jobs.items()},
        "judged_ids": state.judged_ids.dump(),
        "sources": {name: [row.epoch, row.seq] for name, row in state.sources.items()},
        "work": [_dump_pending(pending) for pending in state.work],
    }


def load(cell: str, dumped: Any) -> AdmissionState:
    """The state that `dump` returned.

    Raises:
        SnapshotUnreadable: the value is of another format or cell, or not a dump.
    """
    try:
        if (dumped["form"], dumped["cell"]) != (FORMAT, cell):
            found = f"format {dumped['form']} of {dumped['cell']}, not format {FORMAT} of {cell}"
            raise SnapshotUnreadable(found=found)
        return _load(cell, dumped)
    except SnapshotUnreadable:
        raise
    except (SchemaError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotUnreadable(found=f"{type(error).__name__} {error}") from None


def _load(cell: str, dumped: dict[str, Any]) -> AdmissionState:
    state = AdmissionState(cell)
    state.cycle = int(dumped["cycle"])
    state.now_ms = int(dumped["now_ms"])
    state.rules = int(dumped["rules"])
    state.taken = int(dumped["taken"])
    state.judged = int(dumped["judged"])
    state.own = None if dumped["own"] is None else LastRecord(*map(int, dumped["own"]))
    for log_id, mode in dumped["logs"]:
        state.logs.put(cell, Log(log_id, mode))
    for config, revision in dumped["cells"].values():
        state.put_cell(Cell(plain.load(CellConfig, config), int(revision)))
    for name, (config, revision) in dumped["pools"].items():
        state.put_pool(name, Pool(plain.load(PoolConfig, config), int(revision)))
    for name, (config, revision) in dumped["departments"].items():
        state.put_department(name, Department(plain.load(DepartmentConfig, config), int(revision)))
    for name, (config, revision) in dumped["projects"].items():
        state.put_project(name, Project(plain.load(ProjectConfig, config), int(revision)))
    for name, deadline in dumped["nodes"].items():
        state.nodes.put(name, Node(deadline))
    for name, (config, revision, revoked) in dumped["enrolled"].items():
        enrollment = plain.load(Enrollment, config)
        state.put_enrolled(name, Enrolled(enrollment, int(revision), revoked is True))
    for name, row in dumped["users"].items():
        state.put_user(name, _load_user(row))
    for name, row in dumped["jobs"].items():
        state.put_job(name, _load_job(state, row))
    state.judged_ids.load(dumped["judged_ids"])
    for name, (epoch, seq) in dumped["sources"].items():
        state.sources.put(name, LastRecord(int(epoch), int(seq)))
    state.work.extend(_load_pending(row) for row in dumped["work"])
    if len(state.work) != state.taken - state.judged:
        raise ValueError(
            f"{len(state.work)} requests are pending, not {state.taken - state.judged}"
        )
    return state


def _dump_configs(
    rows: Iterable[tuple[str, Cell | Pool | Department | Project]],
) -> dict[str, list[Any]]:
    return {name: [plain.dump(row.config), row.revision] for name, row in rows}


def _dump_user(user: User) -> list[Any]:
    roles = [plain.dump(role) for role in user.roles]
    return [roles, [plain.dump(token) for token in user.tokens], user.removed]


def _load_user(row: list[Any]) -> User:
    roles, tokens, removed = row
    return User(
        tuple(plain.load(RoleInScope, role) for role in roles),
        tuple(plain.load(TokenRecord, token) for token in tokens),
        removed is True,
    )


def _dump_job(job: Job) -> list[Any]:
    numbers = [job.tasks, job.priority, job.revision]
    return [
        *(job.project, list(job.pools), *numbers),
        *(job.body.hex(), f"{job.paused:x}", f"{job.cancelled:x}", f"{job.ended:x}", job.user),
    ]


def _load_job(state: AdmissionState, row: list[Any]) -> Job:
    project, pools, tasks, priority, revision, body, paused, cancelled, ended, user = row
    return Job(
        project=intern(project),
        pools=state.interned(tuple(pools)),
        tasks=int(tasks),
        priority=int(priority),
        revision=int(revision),
        body=bytes.fromhex(body),
        paused=int(paused, 16),
        cancelled=int(cancelled, 16),
        ended=int(ended, 16),
        user=intern(user),
    )


def _dump_pending(pending: Pending) -> dict[str, Any]:
    event = pending.event
    return {
        "type": event.TYPE,
        "version": event.VERSION,
        "record_id": pending.record_id,
        "taken_ms": pending.taken_ms,
        "actor": pending.actor,
        "data": plain.dump(event),
    }


def _load_pending(row: dict[str, Any]) -> Pending:
    cls: type[Event] = EVENTS[row["type"], row["version"]]
    event = plain.load(cls, row["data"])
    return Pending(event, str(row["record_id"]), int(row["taken_ms"]), str(row["actor"]))
