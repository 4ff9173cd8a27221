"""`yard replay at|verify`: show the cluster at any time, and verify every decision.

Both commands read the log itself, without a service.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from yardmaster_cli.errors import BadUsage, Exit
from yardmaster_cli.log.moments import parse_moment
from yardmaster_cli.log.options import log_options, snapshots_option
from yardmaster_cli.log.proving import SMALL_LOG, chains, count_records, verified
from yardmaster_cli.log.source import LogSource, log_source, needing_every_record, on_log
from yardmaster_cli.output.cells import Gpus, When
from yardmaster_cli.output.columns import wait_words
from yardmaster_cli.output.formats import Column, Output
from yardmaster_cli.progress import share_bar
from yardmaster_cli.session import Session, YardCommand, YardGroup
from yardmaster_cli.times import now_ms
from yardmaster_core.commit import CountedCycle
from yardmaster_core.scheduling.machine import SchedulerMachine
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.node_status import status_of
from yardmaster_core.scheduling.state.nodes import Node
from yardmaster_core.scheduling.state.tasks import Task
from yardmaster_eventlog.port import EventLog, Partition
from yardmaster_runtime.machine.beginning import expired_records
from yardmaster_runtime.replay import rebuild
from yardmaster_runtime.replay.report import (
    ChainProof,
    Finding,
    MachineProof,
    Report,
    RulesRange,
)
from yardmaster_runtime.replay.verify import together
from yardmaster_schemas.counts import count_of
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.instants import rfc3339
from yardmaster_schemas.plain import dump as plain_json
from yardmaster_schemas.reasons import WaitCode

_AGO: Final = re.compile(r"^-[0-9]")


class _AtCommand(YardCommand):
    """Reads `-2h` as a moment, not as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ago = [word for word in args if _AGO.match(word)]
        rest = [word for word in args if not _AGO.match(word)]
        return super().parse_args(ctx, [*rest, "--", *ago] if ago else rest)


@click.group("replay", cls=YardGroup)
def replay() -> None:
    """Show the cluster at any time; verify every decision."""


@replay.command("at", cls=_AtCommand)
@click.argument("moment", metavar="[T]", required=False)
@log_options
@snapshots_option
@click.option("--all", "everything", is_flag=True, help="Show tasks that ended in the cycle too.")
@click.option("--nodes", "nodes_only", is_flag=True, help="Show only the nodes.")
def at(
    session: Session,
    moment: str | None,
    file: str | None,
    cell: str | None,
    snapshots: str | None,
    everything: bool,
    nodes_only: bool,
) -> None:
    """Show the state of the scheduler at T.

    T is a time (2026-01-31 or 2026-01-31T12:00:00Z), an age (2h and -2h both mean 2 hours ago), a
    log position (main@d3021) or a cycle (cycle:88121). Without T, the end of the log is shown.
    Tasks that ended before T are only counted; `yard explain TASK --at T` says how one ended.
    """
    bound, bounds = None, {}
    if moment is not None:
        bound = parse_moment(moment, now_ms(), "T")
        bounds = bound.bounds

    where = log_source(session, file, cell, snapshots)

    ended: Counter[str] = Counter()

    def count(accepted: Sequence[Envelope[Event]], counted: CountedCycle) -> None:
        for _, decision in counted.decisions:
            if isinstance(decision.data, TaskEndedV1):
                ended[decision.data.outcome.value] += 1

    async def work(source: EventLog) -> rebuild.Replayed[ClusterState]:
        return await rebuild.state_at(
            source,
            SchedulerMachine(),
            where.cell,
            partition=where.partition,
            listeners=[count],
            snapshots=where.store,
            **bounds,
        )

    found = on_log(where, work)
    if bound is not None and (missed := bound.missed(found.cycle, now_ms())):
        session.out.note(missed)
    _show_state(session.out, found, ended, everything=everything, nodes_only=nodes_only)


def _show_state(
    out: Output,
    found: rebuild.Replayed[ClusterState],
    ended: Mapping[str, int],
    *,
    everything: bool,
    nodes_only: bool,
) -> None:
    state = found.state
    nodes = [_node_row(node, status_of(node, state.enrolled)) for node in state.nodes.values()]
    tasks = [
        _task_row(task)
        for _, task in sorted(state.tasks.items(), key=lambda item: item[1].key)
        if everything or not task.phase.final
    ]
    document = {
        "position": str(found.position),
        "cycle": found.cycle,
        "from_cycle": found.from_cycle,
        "now_at": rfc3339(found.now_ms),
        "state_digest": state.digest(),
        "ended": dict(sorted(ended.items())),
        "nodes": nodes,
        "tasks": [] if nodes_only else tasks,
    }

    def text() -> list[str]:
        counted: dict[str, int] = {}
        for task in state.tasks.values():
            name = task.phase.name.lower()
            counted[name] = counted.get(name, 0) + 1
        phases, ends = (
            ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            for counts in (counted, ended)
        )
        since = f"since cycle {found.from_cycle}" if found.from_cycle else "so far"
        lines = [
            f"{document['position']}   cycle {found.cycle}   {document['now_at']}",
            f"state {document['state_digest']}",
            f"tasks: {phases or 'none'}",
            *([f"ended {since}: {ends}"] if ends else []),
            *_grid(out, _NODES, nodes),
        ]
        if tasks and not nodes_only:
            lines += _grid(out, _TASKS, tasks)
        return lines

    out.one(document, text, "position")


def _grid(out: Output, columns: tuple[Column, ...], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return out.table(
        [column.title for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
        right=" ".join(column.title for column in columns if column.right),
    )


_NODES = (
    Column("NODE", lambda row: row["name"]),
    Column("POOL", lambda row: row["pool"]),
    Column("STATE", lambda row: row["state"]),
    Column("GPUS", lambda row: row["gpus"], right=True),
    Column("FREE", lambda row: Gpus(row["gpu_milli_free"], 1), right=True),
    Column("TASKS", lambda row: ",".join(row["tasks"]) or None),
)
_TASKS = (
    Column("ID", lambda row: row["task_id"]),
    Column("PROJECT", lambda row: row["project"]),
    Column("PHASE", lambda row: row["phase"]),
    Column("PRIORITY", lambda row: row["priority"], right=True),
    Column("ATTEMPT", lambda row: row["attempt"], right=True),
    Column("NODES", lambda row: ",".join(row["nodes"]) or None),
    Column("SUBMITTED", lambda row: When(row["submitted_at"])),
    Column("REASON", lambda row: row["reason"]),
)


def _node_row(node: Node, status: str) -> dict[str, Any]:
    return {
        "name": node.name,
        "pool": node.pool_name,
        "state": status,
        "gpus": node.gpus,
        "gpu_milli_free": sum(node.free.slots),
        "tasks": sorted({task.id for task in node.open.values()}),
    }


def _task_row(task: Task) -> dict[str, Any]:
    run = task.run
    reason = None
    if run is not None and run.stop is not None:
        reason = str(run.stop.code)
    elif task.reserved is not None:
        reason = _reason({task.reserved.pool_name: task.reserved.wait.code})
    elif task.group is not None and task.group.waits:
        reason = _reason({pool: wait.code for pool, (wait, _, _) in task.group.waits.items()})
    elif task.paused:
        reason = "paused"
    elif task.outcome_code:
        reason = task.outcome_code
    return {
        "task_id": task.id,
        "project": task.job.project.name,
        "phase": task.phase.name.lower(),
        "priority": task.job.priority,
        "attempt": task.attempt,
        "nodes": list(run.nodes) if run is not None else [],
        "submitted_at": rfc3339(task.job.submitted_ms),
        "reason": reason,
        "checkpoint": plain_json(task.checkpoint) if task.checkpoint is not None else None,
    }


def _reason(codes: Mapping[str, WaitCode]) -> str:
    """The reason as `yard ls` shows it; it names the pools if the task waits in several."""
    words = {
        pool: wait_words({"code": code.value, "wait_class": code.wait_class.value})
        for pool, code in sorted(codes.items())
    }
    if len(words) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{text} in {pool}" for pool, text in words.items())


@replay.command("verify")
@log_options
@snapshots_option
@click.option(
    "--chain",
    is_flag=True,
    help="Check only that no record was changed: the hash chain, without recomputing decisions.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of processes, of which at most three have work (default: all cores; one for a "
    "small log).",
)
@click.option(
    "--views", is_flag=True, help="Compare the views that gateways read with the log instead."
)
@click.option("--redis", metavar="URL", help="Redis of the views (also: YARD_REDIS__URL).")
def verify(
    session: Session,
    file: str | None,
    cell: str | None,
    snapshots: str | None,
    chain: bool,
    workers: int | None,
    views: bool,
    redis: str | None,
) -> int:
    """Recompute every decision and check the log.

    The command recomputes every decision from its recorded input, compares it with the recorded
    one, checks the hash chain, and audits the guarantees. With --chain it checks the hash chain
    alone, which takes about a sixth of the time. With --views it instead computes the views from
    the log and compares them with every row in Redis. The exit code is 1 if it finds a difference.
    Services may run meanwhile.

    If the start of the log has expired, decisions are recomputed from a snapshot on, and the
    guarantees are not audited; the command says so.
    """
    if views and (chain or workers is not None):
        raise BadUsage("--views compares the views alone, without --chain and --workers")
    if redis is not None and not views:
        raise BadUsage("--redis has no effect without --views")
    where = log_source(session, file, cell, snapshots)
    started = time.monotonic()
    if views:
        return _verify_views(session, where, redis, started)
    small = count_records(where) < SMALL_LOG
    workers = workers or (1 if small else os.cpu_count() or 1)
    with share_bar(session.out, "verifying", shown=not small) as bar:
        proof = chains(where, workers, bar) if chain else verified(where, workers, bar)
    took_s = time.monotonic() - started
    if isinstance(proof, Report):
        ok = proof.ok
        document, lines = _report_json(proof, where.shown, took_s), _report_lines(proof, took_s)
    else:
        ok = all(one.finding is None for one in proof)
        document, lines = _chain_json(proof, where.shown, took_s), _chain_lines(proof, took_s)
    session.out.one(document, lambda: lines, "ok")
    return int(Exit.DONE if ok else Exit.CHECK_FAILED)


def _chain_json(checked: Sequence[ChainProof], shown: str, took_s: float) -> dict[str, Any]:
    return {
        "ok": all(one.finding is None for one in checked),
        "log": shown,
        "seconds": round(took_s, 3),
        "findings": [_finding_json(one.finding) for one in checked if one.finding is not None],
        "machines": [
            {
                "machine": one.machine,
                "terms": one.terms,
                "cycles": one.cycles,
                "decisions": one.decisions,
                "inputs": one.inputs,
                "dropped": one.dropped,
                "from_cycle": one.from_cycle,
                "last_cycle": one.last_cycle,
                "last_at": rfc3339(one.now_ms),
                "head": one.head,
            }
            for one in checked
        ],
        "unproved": _unproved_json(together([one.unproved for one in checked])),
    }


def _chain_lines(checked: Sequence[ChainProof], took_s: float) -> list[str]:
    findings = [one.finding for one in checked if one.finding is not None]
    lines = [f"DIFFERS: {finding}" for finding in findings]
    for one in checked:
        begun = f" after the snapshot of cycle {one.from_cycle}" if one.from_cycle else ""
        ended = " (up to the record that differs)" if one.finding is not None else ""
        dropped = (
            f", {count_of(one.dropped, 'record')} of fenced leaders dropped" if one.dropped else ""
        )
        lines.append(
            f"{one.machine}: {count_of(one.cycles, 'cycle')}{begun} of "
            f"{count_of(one.terms, 'term')}, {count_of(one.inputs, 'input')}, "
            f"{count_of(one.decisions, 'decision')}, head {one.head}{dropped}{ended}"
        )
    if not findings:
        lines += _unproved_lines(together([one.unproved for one in checked]))
    verdict = "NOT ok" if findings else "ok: no record was changed; no decision was recomputed"
    return [*lines, f"{verdict} ({took_s:.2f} s)"]


def _verify_views(session: Session, where: LogSource, redis: str | None, started: float) -> int:
    # Imported here: the views service is needed only for --views.
    from yardmaster_cli.commands import views

    found = views.redis_settings(session, where, redis)
    with needing_every_record("the comparison of views", views.NOT_REBUILT):
        done = on_log(where, lambda source: views.compare(source, where, found))
    took_s = time.monotonic() - started
    ok = all(one.ok for one in done)
    document = {
        "ok": ok,
        "log": where.shown,
        "redis": found.url,
        "seconds": round(took_s, 3),
        "views": views.compared_json(done),
    }

    def text() -> list[str]:
        verdict = "ok: the views show what the log says" if ok else "NOT ok"
        return [*views.compared_lines(done), f"{verdict} ({took_s:.2f} s)"]

    session.out.one(document, text, "ok")
    return int(Exit.DONE if ok else Exit.CHECK_FAILED)


def _report_json(report: Report, path: str, took_s: float) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "log": path,
        "seconds": round(took_s, 3),
        "findings": [_finding_json(one) for one in report.findings],
        "promises": [str(one) for one in report.promises],
        "audited": not report.expired,
        "expired": [
            {"topic": place.topic, "partition": place.number, "first": first}
            for place, first in report.expired.items()
        ],
        "machines": [
            {
                "machine": one.machine,
                "terms": one.terms,
                "cycles": one.cycles,
                "decisions": one.decisions,
                "inputs": one.inputs,
                "refused": one.refused,
                "unreadable_then": one.unreadable_then,
                "dropped": one.dropped,
                "from_cycle": one.from_cycle,
                "last_cycle": one.last_cycle,
                "last_at": rfc3339(one.now_ms),
                "rules": [
                    {
                        "rules": each.rules,
                        "first_cycle": each.first_cycle,
                        "last_cycle": each.last_cycle,
                        "derived": each.derived,
                    }
                    for each in one.ranges
                ],
            }
            for one in report.proved
        ],
        "unproved": _unproved_json(report.unproved),
        "details_checked": report.details_checked,
        "details_gone": report.details_gone,
        "details_unnamed": report.details_unnamed,
    }


def _finding_json(one: Finding) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
        "found": one.found,
        "machine": one.machine or None,
    }


def _unproved_json(unproved: Mapping[Partition, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"topic": place.topic, "partition": place.number, "first": first, "end": end}
        for place, (first, end) in unproved.items()
    ]


def _unproved_lines(unproved: Mapping[Partition, tuple[int, int]]) -> list[str]:
    return [
        f"not checked: {count_of(end - start, 'record')} of {place.topic} from offset {start} on, "
        "which no cycle has read yet; this is normal"
        for place, (start, end) in unproved.items()
    ]


def _range_line(one: RulesRange) -> str:
    proof = (
        "every decision recomputed"
        if one.derived
        else "chain, digests, states and invariants checked; decisions of old rules not recomputed"
    )
    return f"  cycles {one.first_cycle} to {one.last_cycle} (rules {one.rules}): {proof}"


def _report_lines(report: Report, took_s: float) -> list[str]:
    lines = []
    first = report.first
    if first is not None:
        lines.append(f"DIFFERS: {first}")
        lines += [f"   also: {one}" for one in report.findings[1:]]
    lines += [f"BROKEN: {one}" for one in report.promises]
    for one in report.proved:
        lines += _machine_lines(one, first)
    if first is None:
        lines += _unproved_lines(report.unproved)
    checked = f"{count_of(report.details_checked, 'detail')} checked against what requests recorded"
    gone = f", {report.details_gone} erased" if report.details_gone else ""
    unnamed = report.details_unnamed
    vouched = f", {unnamed} that no request names, so not proved" if unnamed else ""
    if unnamed and report.expired:
        vouched = f", {unnamed} that no proved request names"
    lines.append(f"{checked}{gone}{vouched}")
    if report.expired:
        lines.append(
            f"NOT AUDITED: {expired_records(report.expired)}, and the audit of the guarantees "
            "needs every record"
        )
    lines.append(f"{_verdict(report)} ({took_s:.2f} s)")
    return lines


def _machine_lines(one: MachineProof, first: Finding | None) -> list[str]:
    """The lines about one machine; its ranges are listed unless all were recomputed."""
    ended = " (up to the record that differs)" if first and first.machine == one.machine else ""
    refused = f", {count_of(one.refused, 'claim')} refused" if one.refused else ""
    if one.unreadable_then:
        refused += f" ({one.unreadable_then} unknown to the version that decided)"
    dropped = (
        f", {count_of(one.dropped, 'record')} of fenced leaders dropped" if one.dropped else ""
    )
    derived = " recomputed" if all(each.derived for each in one.ranges) else ""
    begun = f" after the snapshot of cycle {one.from_cycle}" if one.from_cycle else ""
    line = (
        f"{one.machine}: {count_of(one.cycles, 'cycle')}{begun} of "
        f"{count_of(one.terms, 'term')}, {count_of(one.inputs, 'input')}, "
        f"{count_of(one.decisions, 'decision')}{derived}"
        f"{refused}{dropped}{ended}"
    )
    return [line] if derived else [line, *map(_range_line, one.ranges)]


def _verdict(report: Report) -> str:
    if not report.ok:
        return "NOT ok"
    whole = all(each.derived for one in report.proved for each in one.ranges)
    which = "every recorded decision" if whole else "every decision of the current rules"
    begun = "".join(
        f", of {one.machine} after cycle {one.from_cycle}"
        for one in report.proved
        if one.from_cycle
    )
    return f"ok: {which}{begun} was reproduced"
