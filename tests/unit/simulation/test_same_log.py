"""The same seed makes the same log, byte for byte; and every such log is proved."""

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.support.simulated import job, node, ran
from yardmaster_simulation.workload import Behavior, NodeFaults, SimJob

RUN = """
import sys
from pathlib import Path
from tests.unit.simulation.test_same_log import write
write(Path(sys.argv[1]))
"""


def busy() -> list[SimJob]:
    """Jobs of several sizes, gangs among them, more than fit."""
    jobs = []
    for number in range(40):
        gang = number % 7 == 3
        jobs.append(
            job(
                17 * number,
                *[100 + 13 * (number % 11)] * (1 + number % 3),
                gpus=1 + number % 4,
                priority=10 + number % 5,
                preemptible=number % 6 != 0,
                replicas_min=2 if gang else 1,
                replicas_max=2 if gang else 1,
            )
        )
    return jobs


NODES = [node(f"node-{number}", 4) for number in range(3)]
FAULTS = NodeFaults(mean_up_ms=900_000, mean_down_ms=200_000)
BEHAVIOR = Behavior(checkpoint_every_ms=60_000, checkpoint_cost_ms=1_000, restart_cost_ms=2_000)


def write(path: Path) -> None:
    """A busy run's log as a file."""
    run = ran(busy(), NODES, faults=FAULTS, behavior=BEHAVIOR, seed=11, path=path)
    assert run.world.open == 0


async def test_the_log_of_a_run_with_failing_nodes_is_proved() -> None:
    run = ran(busy(), NODES, faults=FAULTS, behavior=BEHAVIOR, seed=11)
    report = await run.proved()
    assert report.ok, (report.findings, report.promises)
    assert sum(proved.decisions for proved in report.proved) > 100


def test_two_processes_with_other_hashes_write_the_same_file(tmp_path: Path) -> None:
    digests = set()
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.db"
        subprocess.run(
            [sys.executable, "-c", RUN, str(path)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            check=True,
            timeout=120,
        )
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1, "the files differ"


def test_another_seed_fails_other_nodes() -> None:
    one, other = (
        ran(busy(), NODES, faults=FAULTS, behavior=BEHAVIOR, seed=seed).records()["node-events"]
        for seed in (11, 12)
    )
    assert one != other
