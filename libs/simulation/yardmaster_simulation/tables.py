"""Write the tasks of runs, and their projects over time, as rows of Parquet files.

The columns are described in docs/explanation/simulator.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from yardmaster_simulation.history import History
from yardmaster_simulation.metrics import (
    BE,
    TE,
    WINDOWS,
    ExecMs,
    exec_ms_of,
    lost_gpu_milli_ms,
    pools_over,
    project_shares,
    rescheduling_ms,
    slowdown,
    span,
    times_preempted,
)
from yardmaster_simulation.records import Task
from yardmaster_simulation.series import windows

if TYPE_CHECKING:
    import pyarrow

#: The columns that identify a run in a file of several runs: policy, seed, parameters.
Labels = Mapping[str, str | int]

#: The columns of the table of tasks: name, Arrow type and description. `*_at_ms` are milliseconds
#: since the epoch by the log's clock; other `*_ms` are durations.
COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("task_id", "string", "The job's id and the task's index"),
    ("job_id", "string", "The job"),
    ("project", "string", "Its project"),
    ("pool", "string", "The pool of its last attempt, else the first it may use"),
    ("kind", "string", "`te`: not preemptible; `be`: preemptible"),
    ("gpu_milli", "int64", "GPUs requested, all replicas together; 1000 is one GPU"),
    ("cpu_milli", "int64", "CPUs, all replicas together"),
    ("memory_mib", "int64", "Memory, all replicas together"),
    ("grace_s", "int64", "Its grace period"),
    ("outcome", "string", "`succeeded`, `failed`, `cancelled`; null: it has not ended"),
    ("submitted_at_ms", "int64", "Submission: quota's cycle that read the request"),
    ("started_at_ms", "int64", "The first allocation of slots; null: none"),
    ("ended_at_ms", "int64", "The end; null: it has not ended"),
    (
        "exec_ms",
        "int64",
        "Execution time without stops; if unknown, its work that was not lost",
    ),
    ("wait_ms", "int64", "Time pending, after submission and after each attempt"),
    ("completion_ms", "int64", "From submission to the end; null: it has not ended"),
    ("slowdown", "float64", "1 + wait / execution time; null if it has not ended or executed"),
    ("attempts", "int64", "How often slots were allocated to it"),
    ("preempted", "int64", "How often it was preempted"),
    ("ran_ms", "int64", "Time that its attempts worked, up to a request to stop"),
    ("lost_ms", "int64", "Part of `ran_ms` after the last checkpoint, when an attempt ended early"),
    ("preempted_lost_gpu_milli_ms", "int64", "Lost to preemption: gpu_milli x ms"),
    ("stopping_ms", "int64", "From requests to stop until the slots were free again"),
    ("rescheduling_ms", "list<int64>", "From each preemption's request to the next start"),
    ("held_gpu_milli_ms", "int64", "gpu_milli x ms held, of slots that it has released"),
    ("attempt_started_at_ms", "list<int64>", "Of each attempt: its allocation"),
    (
        "attempt_ended_at_ms",
        "list<int64>",
        "Of each attempt: all its slots free; null: not yet",
    ),
    (
        "attempt_end",
        "list<string>",
        "Of each: an outcome, `preempted`, `node_lost`, `stopped`, `never_started`",
    ),
)

#: The columns of the table of projects over time: name, Arrow type and description. Amounts are the
#: means of a window, in GPUs.
SHARE_COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("project", "string", "The project"),
    ("at_ms", "int64", "The begin of the window"),
    ("window_ms", "int64", "Its length"),
    ("deserved", "float64", "What the project deserves in all pools; all GPUs if unlimited"),
    ("share", "float64", "Its share, as the policy `quota` recorded it; 0 under other policies"),
    ("held", "float64", "Allocated to its tasks"),
    ("requested", "float64", "Requested by its pending tasks"),
)


def task_table(labels: Labels, history: History, exec_ms: ExecMs | None = None) -> "pyarrow.Table":
    """The tasks of a run in the order of admission: a column for each label, then `COLUMNS`."""
    rows = [_row(task, exec_ms) for task in history.tasks.values()]
    return _labeled(labels, COLUMNS, rows)


def share_table(labels: Labels, history: History) -> "pyarrow.Table":
    """The projects of a run, a row for each window: a column for each label, then
    `SHARE_COLUMNS`.
    """
    begin, end = span(history)
    edges = windows(begin, end, WINDOWS)
    rows = [
        (one.name, edge, edges[at + 1] - edge, *amounts)
        for one in project_shares(history, edges, pools_over(history, edges)[0])
        for at, (edge, *amounts) in enumerate(
            zip(edges[:-1], one.deserved, one.share, one.held, one.requested, strict=True)
        )
    ]
    return _labeled(labels, SHARE_COLUMNS, rows)


def _labeled(
    labels: Labels, columns: Sequence[tuple[str, str, str]], rows: Sequence[Sequence[object]]
) -> "pyarrow.Table":
    """A table of `rows`, with the labels as additional columns that are equal in each row."""
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "float64": pyarrow.float64(),
        "list<int64>": pyarrow.list_(pyarrow.int64()),
        "list<string>": pyarrow.list_(pyarrow.string()),
    }
    fields = [
        pyarrow.field(name, types[kind], metadata={"about": about}) for name, kind, about in columns
    ]
    values = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [
        pyarrow.array(each, type=field.type) for each, field in zip(values, fields, strict=True)
    ]
    names = []
    label_columns = []
    for name, value in labels.items():
        kind = pyarrow.int64() if isinstance(value, int) else pyarrow.string()
        names.append(pyarrow.field(name, kind))
        label_columns.append(pyarrow.repeat(pyarrow.scalar(value, kind), len(rows)))
    return pyarrow.table(label_columns + arrays, schema=pyarrow.schema(names + fields))


def write_tables(path: Path, tables: Iterable["pyarrow.Table"]) -> None:
    """Write the tables of runs into one Parquet file, one row group each.

    If the table of a run is missing, the file is deleted, because a file with only some runs looks
    like a complete file.
    """
    from pyarrow import parquet

    writer: Any = None
    try:
        for table in tables:
            if writer is None:
                writer = parquet.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        if writer is not None:
            writer.close()


def read_table(path: Path) -> "pyarrow.Table":
    """Read a table written by `write_tables`."""
    from pyarrow import parquet

    return parquet.read_table(path)


def _row(task: Task, exec_ms: ExecMs | None) -> tuple[object, ...]:
    job, runs = task.job, task.attempts
    execution = exec_ms_of(task, exec_ms)
    done = task.outcome is not None
    return (
        task.id,
        job.id,
        job.project.name,
        (runs[-1].pool if runs else job.pool).name,
        BE if job.preemptible else TE,
        job.gpu_milli,
        job.cpu_milli,
        job.memory_mib,
        job.grace_s,
        task.outcome.value if task.outcome is not None else None,
        job.submitted_ms,
        runs[0].allocated_ms if runs else None,
        task.ended_ms,
        execution,
        task.wait_ms,
        task.ended_ms - job.submitted_ms if task.ended_ms is not None else None,
        slowdown(task.wait_ms, execution) if done else None,
        len(runs),
        times_preempted(task),
        sum(run.ran_ms for run in runs),
        sum(run.lost_ms for run in runs),
        lost_gpu_milli_ms(task)[0],
        sum(
            run.closed_ms - run.stop_ms
            for run in runs
            if run.stop_ms is not None and run.closed_ms is not None
        ),
        rescheduling_ms(task),
        task.gpu_milli_ms,
        [run.allocated_ms for run in runs],
        [run.closed_ms for run in runs],
        [run.end for run in runs],
    )
