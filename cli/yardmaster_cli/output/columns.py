"""The columns of each list."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from yardmaster_cli.output.cells import (
    Age,
    Cell,
    Gpus,
    Percent,
    Span,
    When,
    clock_time,
    mebibytes,
    span,
)
from yardmaster_cli.output.exits import signal_words
from yardmaster_cli.output.formats import Column, Row
from yardmaster_cli.times import now_ms, parse_time

#: Phases in the order of lists: running, waiting, ended.
PHASE_ORDER: Final = (
    *("running", "starting", "stopping", "pending", "submitted"),
    *("succeeded", "failed", "cancelled", "rejected"),
)


def _key(name: str) -> Any:
    return lambda row: row.get(name)


def _when(name: str) -> Any:
    return lambda row: When(row.get(name))


def _gpus(name: str, digits: int | None = None) -> Any:
    return lambda row: Gpus(row.get(name), digits)


def _requested(task: Row) -> Cell:
    resources = task.get("resources") or {}
    memory_mib = resources.get("gpu_memory_mib")
    if not memory_mib:
        return Gpus(task.get("gpu_milli"))
    count = resources["gpus"] * task.get("replicas_min", 1)
    return f"{count} x {mebibytes(memory_mib)}" if count > 1 else mebibytes(memory_mib)


def _joined(name: str) -> Any:
    return lambda row: ",".join(row.get(name) or ()) or None


def reason(task: Row) -> str | None:
    """The reason for the phase of a task, the last column of `yard ls`; None: there is none."""
    phase = task["phase"]
    if phase == "stopping" and task.get("stop"):
        return f"{task['stop']['code']}{_left(task['stop'].get('deadline_at'))}"
    if phase in ("pending", "submitted"):
        wait = task.get("wait")
        if wait is None:
            return "paused" if task.get("paused") else None
        return wait_words(wait)
    if phase == "rejected" and task.get("refusal"):
        return str(task["refusal"]["code"])
    if phase in ("failed", "cancelled") and task.get("end"):
        return ended(task["end"])
    return None


def wait_words(wait: Mapping[str, Any]) -> str:
    """The code of a wait as text: `insufficient_free`, `never: exceeds_pool`."""
    return f"never: {wait['code']}" if wait["wait_class"] == "never" else str(wait["code"])


def ended(end: Mapping[str, Any]) -> str:
    """The end of a task: `exit 3`, `signal 9 (SIGKILL)`, `restarts_exhausted, exit 3`."""
    parts = [] if end["code"] in ("exit", "signal") else [str(end["code"])]
    if end.get("exit_code") is not None:
        parts.append(f"exit {end['exit_code']}")
    elif end.get("signal") is not None:
        parts.append(signal_words(end["signal"]))
    return ", ".join(parts) or str(end["code"])


def counted(phases: Mapping[Any, int], most: int | None = None) -> str:
    """`332 tasks: 8 running, 300 pending`; a count of `most` is a lower bound, `300+`."""
    counts = [(phase, phases[phase]) for phase in PHASE_ORDER if phases.get(phase)]
    total = sum(count for _, count in counts)
    more = "+" if any(count == most for _, count in counts) else ""
    noun = "task" if total == 1 else "tasks"
    parts = [f"{count}{'+' if count == most else ''} {phase}" for phase, count in counts]
    return f"{total}{more} {noun}: {', '.join(parts)}" if parts else f"0 {noun}"


def _left(deadline_at: str | None) -> str:
    at_ms = parse_time(deadline_at) if deadline_at else None
    if at_ms is None:
        return ""
    return f", {span(max(0, at_ms - now_ms()) / 1000)} left"


def _ran(task: Row) -> Cell:
    started, ended_at = task.get("started_at"), task.get("ended_at")
    first = parse_time(started) if started else None
    if first is None:
        return None
    last = parse_time(ended_at) if ended_at else now_ms()
    return Span(max(0.0, ((last or first) - first) / 1000))


def _progress(task: Row) -> Cell:
    permille = task.get("progress_permille")
    return None if permille is None else Percent(permille)


def _labels(row: Row) -> Cell:
    return (
        ",".join(f"{key}={value}" for key, value in sorted(row.get("labels", {}).items())) or None
    )


def _params(row: Row) -> Cell:
    return ",".join(f"{key}={value}" for key, value in (row.get("params") or {}).items()) or None


TASKS: Final = (
    Column("ID", _key("task_id")),
    Column("NAME", _key("name"), narrow=((1, 20), (3, 12), (8, 8))),
    Column("PROJECT", _key("project"), narrow=((5, 0),)),
    Column("PHASE", _key("phase")),
    Column("GPUS", _requested, right=True, narrow=((11, 0),)),
    Column(
        "POOL",
        lambda row: row.get("pool") or next(iter(row.get("pools") or ()), None),
        narrow=((9, 0),),
    ),
    Column("NODES", _joined("nodes"), narrow=((4, 12), (10, 0))),
    Column(
        "AGE",
        lambda row: Age(row.get("submitted_at")),
        exact="SUBMITTED",
        right=True,
        narrow=((7, 0),),
    ),
    Column("PROGRESS", _progress, exact="PROGRESS_PERCENT", right=True, narrow=((6, 0),)),
    Column("REASON", reason),
    Column("ATTEMPT", _key("attempt"), wide=True, right=True),
    Column("PRIORITY", _key("priority"), wide=True, right=True),
    Column("USER", _key("user"), wide=True),
    Column("RAN", _ran, exact="RAN_S", wide=True, right=True),
    Column(
        "CHECKPOINT", lambda row: (row.get("checkpoint") or {}).get("step"), wide=True, right=True
    ),
    Column("PARAMS", _params, wide=True),
    Column("LABELS", _labels, wide=True),
)


#: The fields in which the tasks of a group differ, with the empty values that a group shows.
_OF_ONE_TASK: Final[Row] = {
    **{"nodes": (), "params": None, "progress_permille": None, "attempt": None},
    **{"started_at": None, "checkpoint": None},
}


def grouped(row: Row) -> Row:
    """The row of a group of tasks: the first task's row without the fields that differ.

    Its label, such as `ID.[3-299]`, is not an id, because the tasks of a group change.
    """
    first: Row = row["first"]
    if row["count"] == 1:
        return {**first, "count": 1}
    # Tasks between the first and the last may be in another phase and therefore in another row.
    whole = row["last_index"] - first["index"] + 1 == row["count"]
    to = "-" if whole else ",..,"
    label = f"{first['job_id']}.[{first['index']}{to}{row['last_index']}]"
    return {**first, **_OF_ONE_TASK, "task_id": label, "count": row["count"]}


#: The columns of a group: the tasks of a job in the same phase. GPUS is the GPUs of one task.
GROUPS: Final = (
    *TASKS[:4],
    Column("TASKS", lambda row: row.get("count", 1), right=True, narrow=((2, 0),)),
    *TASKS[4:],
)


def without_one_pool(columns: Sequence[Column], rows: Sequence[Row]) -> Sequence[Column]:
    """Leave out the column POOL if all rows have the same pool."""
    (pool,) = (column for column in columns if column.title == "POOL")
    if len({pool.cell(row) for row in rows}) > 1:
        return columns
    return [column for column in columns if column is not pool]


def of_job(columns: Sequence[Column], rows: Sequence[Row]) -> Sequence[Column]:
    """The columns for the tasks of one job: no name and project; PARAMS if a task has some."""
    found = []
    for column in columns:
        if column.title == "PARAMS" and any(row.get("params") for row in rows):
            found.append(replace(column, wide=False, narrow=((4, 24), (8, 12))))
        elif column.title not in ("NAME", "PROJECT"):
            found.append(column)
    return found


def _phases(row: Row) -> Cell:
    counts = row["phases"]
    return ", ".join(f"{counts[p]} {p}" for p in PHASE_ORDER if counts.get(p)) or None


JOBS: Final = (
    Column("ID", _key("job_id")),
    Column("NAME", _key("name")),
    Column("PROJECT", _key("project")),
    Column("TASKS", _key("tasks"), right=True),
    Column("PHASES", _phases),
    Column("AGE", lambda row: Age(row.get("submitted_at")), exact="SUBMITTED", right=True),
    Column("KIND", _key("kind"), wide=True),
    Column("PRIORITY", _key("priority"), wide=True, right=True),
    Column("USER", _key("user"), wide=True),
    Column("POOLS", lambda row: ",".join((row.get("spec") or row["asked"])["pools"]), wide=True),
    Column("LABELS", _labels, wide=True),
)


def _node_reason(row: Row) -> Cell:
    parts = [row["reason"]] if row.get("reason") else []
    if row["state"] == "lost" and row.get("seen_at"):
        parts.append(f"silent since {clock_time(row['seen_at'])}Z")
    if row.get("deadline_at") and row["state"] != "drained":
        parts.append(f"until {row['deadline_at'][11:16]}")
    if row.get("disabled_slots"):
        why = f": {row['disabled_reason']}" if row.get("disabled_reason") else ""
        slots = row["disabled_slots"]
        word = "slot" if len(slots) == 1 else "slots"
        parts.append(f"{word} {','.join(map(str, slots))} disabled{why}")
    return ", ".join(parts) or None


def _fraction_limits(row: Row) -> Cell:
    """The name of what enforces fractions of the node's GPUs; None for a node without GPUs."""
    limits = row.get("fraction_limits") if row["gpus"] else None
    return "not_enforced" if limits == "none" else limits


NODES: Final = (
    Column("NAME", _key("name")),
    Column("POOL", _key("pool")),
    Column("STATE", _key("state")),
    Column("TYPE", _key("node_type")),
    Column("GPUS", _key("gpus"), right=True),
    Column("USED", _gpus("gpu_milli_used", 1), right=True),
    Column("FREE", _gpus("gpu_milli_free", 1), right=True),
    Column("TASKS", lambda row: len(row.get("tasks") or ()), right=True),
    Column("SEEN", _when("seen_at"), exact="SEEN_AT", right=True),
    Column("REASON", _node_reason),
    Column("CPUS", lambda row: row["cpu_milli"] // 1000, wide=True, right=True),
    Column("MEMORY", lambda row: f"{row['memory_mib'] // 1024}Gi", wide=True, right=True),
    Column("RESERVED", _gpus("gpu_milli_reserved", 1), wide=True, right=True),
    Column("ADDRESS", _key("address"), wide=True),
    Column("ISOLATION", _key("isolation"), wide=True),
    Column("FRACTIONS", _fraction_limits, wide=True),
    Column("RUNS", lambda row: ",".join(row.get("executors") or ()) or None, wide=True),
    Column(
        "ENROLLED", lambda row: (row.get("enrollment") or {}).get("gpus"), wide=True, right=True
    ),
    Column("JOINED", _when("joined_at"), wide=True, right=True),
)


def _policy(row: Row) -> Cell:
    policy = row["config"]["policy"]
    return f"{policy['name']}/{policy.get('version', 1)}"


def _options(row: Row) -> Cell:
    options = row["config"]["policy"].get("options") or {}
    return ",".join(f"{key}={str(value).lower()}" for key, value in sorted(options.items())) or None


POOLS: Final = (
    Column("NAME", _key("name")),
    Column("POLICY", _policy),
    Column("OPTIONS", _options),
    Column("NODES", _key("nodes"), right=True),
    Column("GPUS", _gpus("gpu_milli"), right=True),
    Column("USED", _gpus("gpu_milli_used", 1), right=True),
    Column("PENDING", _key("pending"), right=True),
    Column("REVISION", _key("revision"), wide=True, right=True),
    Column("PLACEMENT", lambda row: row["config"].get("placement"), wide=True),
)


def _usage(row: Row, pool: str | None) -> Mapping[str, Any]:
    """The used and pending GPUs and the limit of `row` in `pool`; None: in all pools together."""
    usages = [usage for usage in row.get("pools") or () if pool in (None, usage["pool"])]
    if pool is None:
        return {
            "used": row.get("used_milli"),
            "pending": row.get("pending_milli"),
            "limit": row["config"].get("limit_milli"),
        }
    limits = [usage["limit_milli"] for usage in usages if usage.get("limit_milli") is not None]
    return {
        "used": sum(usage["used_milli"] for usage in usages),
        "pending": sum(usage["pending_milli"] for usage in usages),
        "limit": sum(limits) if limits else row["config"].get("limit_milli"),
    }


def _usage_column(title: str, pool: str | None) -> Column:
    return Column(title, lambda row: Gpus(_usage(row, pool)[title.lower()]), right=True)


def _quota(row: Row, pool: str | None) -> Mapping[str, Any]:
    """The quota of `row` in `pool`, with the GPUs in use."""
    return next((each for each in row.get("pools") or () if each["pool"] == pool), {})


def deserved(quota: Mapping[str, Any]) -> Cell:
    """The GPUs that a quota deserves."""
    if quota.get("deserved_unlimited"):
        return "unlimited"
    return Gpus(quota.get("deserved_milli"))


def _quota_state(row: Row, pool: str | None) -> Cell:
    usage, quota = _usage(row, pool), _quota(row, pool)
    if usage["limit"] is not None and usage["used"] >= usage["limit"]:
        return "at_limit"
    if quota.get("deserved_unlimited"):
        return "in_quota"
    if quota.get("deserved_milli"):
        return "over_quota" if usage["used"] > quota["deserved_milli"] else "in_quota"
    return "no_limit" if usage["limit"] is None else "below_limit"


def _deserved_column(pool: str | None) -> Sequence[Column]:
    of_pool = Column("DESERVED", lambda row: deserved(_quota(row, pool)), right=True)
    return () if pool is None else (of_pool,)


def _weight_column(pool: str) -> Column:
    return Column("WEIGHT", lambda row: _quota(row, pool).get("over_quota_weight"), right=True)


def project_columns(pool: str | None) -> Sequence[Column]:
    """The columns of projects, with their numbers in `pool`; None: in all pools together.

    In a pool, WEIGHT is the over-quota weight; in all pools the weight in fair sharing.
    """
    fair = Column("WEIGHT", lambda row: row["config"].get("weight"), right=True)
    return (
        Column("NAME", _key("name")),
        Column("DEPARTMENT", _key("department")),
        *_deserved_column(pool),
        _usage_column("USED", pool),
        _usage_column("PENDING", pool),
        _usage_column("LIMIT", pool),
        fair if pool is None else _weight_column(pool),
        Column("STATE", lambda row: _quota_state(row, pool)),
        Column("RANK", lambda row: row["config"].get("rank"), wide=True, right=True),
        Column("REVISION", _key("revision"), wide=True, right=True),
    )


def department_columns(pool: str | None) -> Sequence[Column]:
    """The columns of departments, with their numbers in `pool`; None: in all pools together."""
    of_pool = () if pool is None else (_usage_column("LIMIT", pool), _weight_column(pool))
    return (
        Column("NAME", _key("name")),
        Column("PARENT", lambda row: row["config"].get("parent")),
        Column("PROJECTS", _joined("projects")),
        *_deserved_column(pool),
        _usage_column("USED", pool),
        _usage_column("PENDING", pool),
        *of_pool,
        Column("RANK", lambda row: row["config"].get("rank"), wide=True, right=True),
        Column("REVISION", _key("revision"), wide=True, right=True),
    )


def _memory(name: str) -> Any:
    return lambda row: None if row.get(name) is None else mebibytes(row[name])


#: The columns of quotas; a row is the quota of one department or project in one pool.
QUOTAS: Final = (
    Column("KIND", _key("kind")),
    Column("NAME", _key("name")),
    Column("POOL", _key("pool")),
    Column("DESERVED", deserved, right=True),
    Column("USED", _gpus("used_milli"), right=True),
    Column("PENDING", _gpus("pending_milli"), right=True),
    Column("LIMIT", _gpus("limit_milli"), right=True),
    Column("WEIGHT", _key("over_quota_weight"), right=True),
    Column("OVER_QUOTA", lambda row: "on" if row.get("over_quota") else "off"),
    Column("CPUS", _gpus("deserved_cpu_milli"), wide=True, right=True),
    Column("MEMORY", _memory("deserved_memory_mib"), wide=True, right=True),
    Column("LIMIT_CPUS", _gpus("limit_cpu_milli"), wide=True, right=True),
    Column("LIMIT_MEMORY", _memory("limit_memory_mib"), wide=True, right=True),
)


#: The title and the field of each amount of a queue.
_AMOUNTS: Final = (
    ("DESERVED", "deserved"),
    ("LIMIT", "limit"),
    ("SHARE", "fair_share"),
    ("HELD", "held"),
    ("RESERVED", "reserved"),
    ("REQUESTED", "requested"),
)


def share_columns(depths: Mapping[tuple[str, str], int]) -> Sequence[Column]:
    """The columns of a pool's queues; names are indented by `depths`, keyed by level and name."""

    def queue(row: Row) -> Cell:
        return "  " * depths.get((row["level"], row["name"]), 0) + str(row["name"])

    def column(title: str, field: str, amount: str, show: Any) -> Column:
        # A missing limit is shown as empty. A missing bound on the deserved amount means
        # everything, so it is shown as a word.
        nothing = "unlimited" if field == "deserved" else None

        def cell(row: Row) -> Cell:
            found = row[field][amount]
            return nothing if found is None else show(found)

        return Column(title, cell, wide=amount != "gpu_milli", right=True)

    return (
        Column("QUEUE", queue),
        Column("LEVEL", _key("level"), wide=True),
        Column("PARENT", _key("parent"), wide=True),
        *(column(title, field, "gpu_milli", Gpus) for title, field in _AMOUNTS),
        Column("USAGE", _gpus("usage_milli"), right=True),
        *(column(f"{title}_CPUS", field, "cpu_milli", Gpus) for title, field in _AMOUNTS),
        *(column(f"{title}_MEMORY", field, "memory_mib", mebibytes) for title, field in _AMOUNTS),
    )
