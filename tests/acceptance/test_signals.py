"""Signals to every service of a cluster: each ends or continues as docs/how-to/operate.md says."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from yardmaster_schemas.api import Phase

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

SERVICES = ("gateway-1", "quota-1", "scheduler-1", "views-1", "agent-n1")
SOON_S = 60.0


def send(cluster: Cluster, number: signal.Signals, times: int = 1) -> None:
    """Send a signal to every service, one after the other."""
    for name in SERVICES:
        for _ in range(times):
            os.kill(cluster.pid(name), number)


def test_signals_end_services_or_let_them_continue_and_tasks_run_on(tmp_path: Path) -> None:
    with Cluster(tmp_path, quotas=1, schedulers=1, views=1, agents=1, slots=1) as cluster:
        (running,) = cluster.submit(["sleep", "600"])
        cluster.until_phases([running], Phase.RUNNING)

        pids = {name: cluster.pid(name) for name in SERVICES}
        send(cluster, signal.SIGSTOP)
        time.sleep(2.0)
        send(cluster, signal.SIGCONT)
        for name in SERVICES:
            cluster.until_ready(name)
        assert {name: cluster.pid(name) for name in SERVICES} == pids
        (task,) = cluster.submit(["true"], resources={"gpus": 0})
        cluster.until_phases([task], Phase.SUCCEEDED, limit_s=SOON_S)

        ways = [(signal.SIGTERM, 2, 0), (signal.SIGHUP, 1, 0), (signal.SIGUSR1, 1, -signal.SIGUSR1)]
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # the tests run under nohup
            ways = [each for each in ways if each[0] != signal.SIGHUP]
        for number, times, code in ways:
            send(cluster, number, times)
            codes = {name: cluster.exit_code(name) for name in SERVICES}
            assert codes == dict.fromkeys(SERVICES, code), (number, cluster.tails())
            for name in SERVICES:
                cluster.start(name, wait=False)
            for name in SERVICES:
                cluster.until_ready(name)
            (task,) = cluster.submit(["true"], resources={"gpus": 0})
            cluster.until_phases([task], Phase.SUCCEEDED, limit_s=SOON_S)

        shown = cluster.until_phases([running], Phase.RUNNING)[running]
        assert (shown.attempt, shown.restarts) == (1, 0)
        cluster.client().cancel(running)
        cluster.until_phases([running], Phase.CANCELLED, limit_s=SOON_S)
        cluster.prove()
