"""The broker's disk syncs slowly: requests take longer, and no lease or time limit ends."""

import threading
import time
from pathlib import Path

import pytest

from tests.support.cluster import KAFKA, Cluster
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import NodeLostV1, Outcome
from yardmaster_schemas.events.machine import TermStartedV1

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(500)]

JOBS = 3
SOON_S = 120.0


def terms(cluster: Cluster) -> int:
    """How often a replica of quota or of the scheduler began to lead."""
    topics = ("admissions", "decisions")
    return sum(isinstance(e, TermStartedV1) for topic in topics for e in cluster.events(topic))


@pytest.mark.parametrize("delay_s", [0.5, 2.0])
def test_while_the_disk_of_the_broker_is_slow_requests_wait_and_nothing_is_lost(
    tmp_path: Path, delay_s: float
) -> None:
    with Cluster(tmp_path, agents=2, slots=2, clocks={KAFKA: 0}) as cluster:
        (running,) = cluster.submit(["sleep", "600"], max_restarts=0)
        cluster.until_phases([running], Phase.RUNNING)
        led = terms(cluster)
        cluster.set_sync_delay(KAFKA, delay_s)

        tasks: list[str] = []
        began_s = time.monotonic()
        submits = [
            threading.Thread(
                target=lambda: tasks.extend(cluster.submit(["true"], resources={"gpus": 0}))
            )
            for _ in range(JOBS)
        ]
        for each in submits:
            each.start()
        for each in submits:
            each.join()
        assert time.monotonic() - began_s > delay_s, "the disk was not slow"
        ended = cluster.until_ended(tasks, SOON_S)
        assert [ended[task].outcome for task in tasks] == [Outcome.SUCCEEDED] * JOBS

        cluster.set_sync_delay(KAFKA, 0)
        assert terms(cluster) == led, "a leader lost its lease"
        lost = [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
        assert lost == []
        shown = cluster.tasks()[running]
        assert (shown.phase, shown.attempt) == (Phase.RUNNING, 1)
        cluster.prove()
