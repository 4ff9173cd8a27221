"""The broker's clock is a day ahead for a while: no acknowledged request is lost."""

from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from yardmaster_localcluster.fleet import KAFKA
from yardmaster_schemas.events.machine import CycleCommittedV1

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

DAY_S = 86_400
SOON_S = 90.0
NO_GPUS = {"gpus": 0}
QUOTA = ("quota-1", "quota-2")


def test_requests_are_judged_that_a_gateway_recorded_after_the_brokers_clock_was_ahead(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, gateways=2, agents=1, clocks={KAFKA: 0}) as cluster:
        # Quota is away, so only the append times in `requests` say that the clock was ahead.
        for name in QUOTA:
            cluster.kill9(name)
        cluster.set_clock(KAFKA, DAY_S)
        tasks = [cluster.submit(["true"], gateway="gateway-2", resources=NO_GPUS)]
        cluster.restart("gateway-1")
        tasks.append(cluster.submit(["true"], gateway="gateway-1", resources=NO_GPUS))
        cluster.set_clock(KAFKA, 0)
        tasks += [
            cluster.submit(["true"], gateway="gateway-1", resources=NO_GPUS) for _ in range(10)
        ]
        for name in QUOTA:
            cluster.start(name)
        ended = cluster.until_ended([task for (task,) in tasks], SOON_S)
        assert {event.outcome for event in ended.values()} == {"succeeded"}
        refused = [
            one.code
            for event in cluster.events("admissions")
            if isinstance(event, CycleCommittedV1)
            for one in event.refused
        ]
        assert refused == []

        def shown() -> bool:
            # A gateway finds out at its own appends that the broker's clock was set back.
            tasks.append(cluster.submit(["true"], gateway="gateway-1", resources=NO_GPUS))
            return DAY_S - 600 < cluster.client().cell().time_ahead_s < DAY_S + 60

        cluster.until(shown, "the time of the cell is shown to be ahead", SOON_S, look_s=1.0)
        cluster.until_ended([task for (task,) in tasks], SOON_S)
        cluster.prove()
