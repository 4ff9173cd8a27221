"""The explanation of a task from a log, at any time, in the form of a gateway's answer."""

import re
from typing import Any, Final

from yardmaster_cli.log.moments import parse_moment
from yardmaster_cli.log.source import log_source, on_log
from yardmaster_cli.session import Session
from yardmaster_cli.times import now_ms
from yardmaster_core.scheduling.state.tasks import Reservation
from yardmaster_eventlog.port import EventLog
from yardmaster_projections.units import with_units
from yardmaster_runtime.replay.explain import (
    AttemptSummary,
    Explanation,
    PoolWait,
    Request,
    TaskEnd,
    explain_at,
)
from yardmaster_schemas.instants import rfc3339

_WHOLE: Final = re.compile(r"^[0-9a-z]{12}(\.[0-9]{1,4})?$")


def explain_from_log(
    session: Session, ref: str, moment: str | None, file: str | None, cell: str | None
) -> dict[str, Any]:
    """Explain a task as of `moment`; None: as of the end of the log."""
    where = log_source(session, file, cell)
    if _WHOLE.match(ref):
        task_id = ref if "." in ref else f"{ref}.0"
    else:
        task_id = session.remote.one_task(ref)
    bounds: dict[str, Any] = {}
    if moment is not None:
        bound = parse_moment(moment, now_ms(), "--at")
        bounds = {"position": bound.position, "time_ms": bound.at_ms, "cycle": bound.cycle}

    async def work(log: EventLog) -> Explanation:
        return await explain_at(log, where.cell, task_id, partition=where.partition, **bounds)

    return _as_answer(on_log(where, work))


def _as_answer(found: Explanation) -> dict[str, Any]:
    """An explanation in the form of a gateway's answer."""
    newest = found.attempts[-1] if found.attempts else None
    stopping = newest is not None and newest.stop is not None and not newest.ended
    start = newest.start if newest is not None else None
    return {
        "task_id": found.task_id,
        "phase": found.phase,
        "wait_class": found.wait_class,
        "pools": [_wait(found.request, wait) for wait in found.waits if found.request],
        "reserved": None if found.reserved is None else _reserved(found.reserved),
        "unblock": None,
        "attempt": newest.number if newest is not None else 0,
        "start_rule": start.rule if start is not None else None,
        "start_numbers": dict(start.numbers) if start is not None else {},
        "stop": _stop(newest) if stopping and newest is not None else None,
        "last_stop": _stop(found.last_stop) if found.last_stop is not None else None,
        "end": None if found.end is None else _end(found.end),
        "refusal": None,
        "cycle": found.cycle,
        "cycle_at": rfc3339(found.at_ms),
        "nodes_without_share_limits": list(found.nodes_without_share_limits),
    }


def _reserved(found: Reservation) -> dict[str, Any]:
    by_node: dict[str, list[int]] = {}
    for placement in found.placements:
        by_node.setdefault(placement.node, []).extend(placement.slots)
    return {
        "pool": found.pool_name,
        "slots": [{"node": node, "slots": slots} for node, slots in by_node.items()],
        "until_at": rfc3339(found.until_ms) if found.until_ms else None,
        "reserved_at": rfc3339(found.since_ms),
    }


def _end(end: TaskEnd) -> dict[str, Any]:
    return {
        "outcome": end.outcome.value,
        "code": end.code.value,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "cycle": end.cycle,
        "ended_at": rfc3339(end.at_ms),
    }


def _wait(request: Request, wait: PoolWait) -> dict[str, Any]:
    return {
        "pool": wait.pool,
        "code": wait.wait.code.value,
        "wait_class": wait.wait_class.value,
        "asked_milli": request.gpu_milli,
        "numbers": with_units(
            wait.wait.code,
            wait.wait.about,
            wait.wait.numbers,
            request.replica,
            request.replicas,
        ),
        "about": wait.wait.about,
        "since_at": None if wait.since_ms is None else rfc3339(wait.since_ms),
        "cycle": wait.cycle,
    }


def _stop(attempt: AttemptSummary) -> dict[str, Any] | None:
    stop = attempt.stop
    if stop is None:
        return None
    return {
        "code": str(stop.code),
        "rule": stop.rule,
        "for_task": stop.for_task,
        "numbers": dict(stop.numbers),
        "about": stop.about,
        "deadline_at": None if attempt.deadline_ms is None else rfc3339(attempt.deadline_ms),
        "requested_at": None if attempt.stopped_ms is None else rfc3339(attempt.stopped_ms),
    }
