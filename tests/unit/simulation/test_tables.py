"""The Parquet file of a run's tasks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.histories import a_cell, history_of
from yardmaster_core.testing import START_MS, Cell
from yardmaster_simulation.tables import COLUMNS, SHARE_COLUMNS, task_table, write_tables

DOCS = Path(__file__).parents[3] / "docs/explanation/simulator.md"


def test_a_row_says_what_became_of_a_task(tmp_path: Path) -> None:
    history = history_of(a_cell())
    path = tmp_path / "tasks.parquet"
    labels: dict[str, str | int] = {"policy": "priority", "seed": 7}
    write_tables(path, [task_table(labels, history), task_table({**labels, "seed": 8}, history)])
    read = parquet.read_table(path)
    assert read.column("seed").to_pylist() == [7, 7, 8, 8]
    assert parquet.ParquetFile(path).num_row_groups == 2
    done, waiting = read.to_pylist()[:2]
    at = START_MS
    assert done == {
        **{"policy": "priority", "seed": 7, "task_id": "a00000000000.0", "job_id": "a00000000000"},
        **{"project": "p", "pool": "main", "kind": "te", "gpu_milli": 2000, "cpu_milli": 0},
        **{"memory_mib": 0, "grace_s": 30, "outcome": "succeeded", "submitted_at_ms": at},
        **{"started_at_ms": at + 10_000, "ended_at_ms": at + 70_000, "exec_ms": 60_000},
        **{"wait_ms": 10_000, "completion_ms": 70_000, "slowdown": 1 + 10 / 60, "attempts": 1},
        **{"preempted": 0, "ran_ms": 60_000, "lost_ms": 0, "preempted_lost_gpu_milli_ms": 0},
        **{"stopping_ms": 0, "rescheduling_ms": [], "held_gpu_milli_ms": 2000 * 60_000},
        **{"attempt_started_at_ms": [at + 10_000], "attempt_ended_at_ms": [at + 70_000]},
        "attempt_end": ["succeeded"],
    }
    assert (waiting["kind"], waiting["outcome"], waiting["started_at_ms"]) == ("be", None, None)
    assert (waiting["slowdown"], waiting["attempt_end"]) == (None, [])


def test_a_file_of_no_tasks_has_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    write_tables(path, [task_table({"policy": "x"}, history_of(Cell()))])
    assert parquet.read_schema(path).names == ["policy", *(name for name, _, _ in COLUMNS)]


def test_a_file_that_is_not_written_to_its_end_is_not_left(tmp_path: Path) -> None:
    def tables() -> Iterator[pyarrow.Table]:
        yield task_table({"policy": "x"}, history_of(a_cell()))
        raise KeyboardInterrupt

    path = tmp_path / "tasks.parquet"
    with pytest.raises(KeyboardInterrupt):
        write_tables(path, tables())
    assert not path.exists()


def test_a_table_can_be_sent_to_another_process() -> None:
    table = task_table({"policy": "x"}, history_of(a_cell()))
    sent = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sent, table.schema) as stream:
        stream.write_table(table)
    assert pyarrow.ipc.open_stream(sent.getvalue()).read_all().equals(table)


def test_every_column_is_in_the_docs_with_its_meaning() -> None:
    text = DOCS.read_text()
    for name, kind, about in (*COLUMNS, *SHARE_COLUMNS):
        assert f"| `{name}` | {kind} | {about} |" in text


def test_what_only_a_simulation_needs_is_not_imported_before() -> None:
    code = (
        "import sys, yardmaster_simulation.report, yardmaster_simulation.tables; "
        "sys.exit(bool({'pyarrow', 'plotly', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
