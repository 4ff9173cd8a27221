"""Run a cluster under load and faults: `python -m tests.chaos --minutes 10 --seed 7`.

Exits with 1 when a promise is broken; the folder of the run is then kept.
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import Faults
from tests.chaos.load import Users
from tests.chaos.plan import Kind, faults
from tests.chaos.verdict import judge
from tests.support.cluster import KAFKA, REDIS, Cluster
from yardmaster_schemas.events.requests import Fence, PolicyRef, PoolConfig

#: A node is lost after this time; its tasks are killed before.
NODE_TIMEOUT_S = 20
AGENTS = 4
NAMES = [
    *("quota-1", "quota-2", "scheduler-1", "scheduler-2", "views-1", "views-2"),
    *(f"agent-n{number + 1}" for number in range(AGENTS)),
    *("gateway-1", "gateway-2"),
]


def main() -> int:
    """Run, and print the seed, each fault, and every broken promise."""
    args = _arguments()
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    kinds = [Kind(name) for name in args.faults.split(",")]
    print(f"seed {args.seed}, {args.minutes} minutes, faults {args.faults}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="yard-chaos-"))
    witness = folder / "witness"
    anomalies: list[str] = []
    with Cluster(
        folder, gateways=2, agents=AGENTS, clocks=dict.fromkeys([*NAMES, KAFKA], 0)
    ) as cluster:
        assert [name for name in cluster.names if name not in (KAFKA, REDIS)] == NAMES
        pool = PoolConfig(
            policy=PolicyRef(name="priority"), node_timeout_s=NODE_TIMEOUT_S, fence=Fence.KILL
        )
        cluster.client().put_pool("default", pool)
        users = Users(cluster, witness, args.seed)
        inflicted = Faults(cluster)
        users.start()
        inflicted.start()
        over = time.monotonic() + args.minutes * 60
        for fault in faults(args.seed, cluster.names, kinds):
            if time.monotonic() + fault.after_s > over:
                break
            time.sleep(fault.after_s)
            inflicted.inflict(fault)
        inflicted.heal()
        users.stop()
        print(f"faults {dict(inflicted.done)}")
        print(f"ended by themselves and started again: {dict(inflicted.ended)}")
        print(f"answers {dict(users.answers)}", flush=True)
        anomalies += [*inflicted.anomalies, *users.anomalies]
        anomalies += [
            f"{job}: {why}"
            for job, why in users.missing.items()
            if job not in inflicted.removed.jobs
        ]
        anomalies += judge(cluster, users.acknowledged, witness, inflicted.removed)
    for anomaly in anomalies:
        print(f"ANOMALY {anomaly}")
    print(f"seed {args.seed}: {len(anomalies)} anomalies", flush=True)
    if anomalies:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--faults", default=",".join(Kind))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
