"""Philly's virtual cluster 0e4a51: the published average completion times, to the digit.

The jobs from the first one on or after 2017-10-01, for 60 days, 23 hours and 59 minutes; 10 nodes
of 8 GPUs, one node per job, the fitting node with the fewest free GPUs, a strict queue, no
preemption. Source of the trace: tests/data/traces/README.md.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from yardmaster_schemas.events.requests import PolicyRef
from yardmaster_simulation.history import History
from yardmaster_simulation.traces import equal_nodes, philly
from yardmaster_simulation.workload import DEFAULT, Listed, pool
from yardmaster_simulation.world import START_MS, World

TRACE = Path(__file__).parents[1] / "data" / "traces" / "philly_jobs.csv.gz"


@pytest.mark.parametrize(
    ("policy", "completion_s"), [("fifo", "359140.745"), ("sjf", "166164.040")]
)
def test_the_average_completion_time_is_the_known_one(policy: str, completion_s: str) -> None:
    workload = philly(TRACE, cluster="0e4a51", since="2017-10-01", until="2017-12-06T07:32:46")
    workload = replace(workload, nodes=equal_nodes(10, gpus=8), cadence_ms=0)
    assert len(workload.jobs) == 1294
    history = History()
    pools = {DEFAULT: replace(pool(), policy=PolicyRef(name=policy))}
    world = World(workload, pools, None, Listed(workload.jobs), watch=history.see)
    world.run()
    took_ms = 0
    for task in history.tasks.values():
        assert task.ended_ms is not None, f"{task.id} did not end"
        took_ms += task.ended_ms - START_MS - workload.jobs[int(task.job.id)].submit_ms
    assert f"{took_ms / 1000 / 1294:.3f}" == completion_s
