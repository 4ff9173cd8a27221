"""An upgrade from the release before, process by process on real Kafka, back, and to its end.

`make former` installs that release into an environment of its own. Each step leaves both versions
in the cluster, in the order of docs/how-to/upgrade.md, and a job runs through it.
"""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.forks import fork
from yardmaster_core.rules import OLDEST_RULES, RULES
from yardmaster_localcluster.process import Running
from yardmaster_schemas.api import Phase
from yardmaster_schemas.events.decisions import Outcome
from yardmaster_schemas.events.machine import CycleCommittedV2, RulesEnabledV1

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300), pytest.mark.xdist_group("mixed")]

ROOT = Path(__file__).parents[2]
FORMER = ROOT / ".cache" / "former" / (ROOT / "tests/data/former_version").read_text().strip()
PYTHON = FORMER / "venv" / "bin" / "python"
NODES = ("n1", "n2")
MACHINES = ("scheduler", "quota")
REPLICAS = tuple(f"{service}-{number}" for service in MACHINES for number in (1, 2))


class Versions:
    """Starts each process in the version that it has now; a `Launch`."""

    def __init__(self) -> None:
        #: The processes of this version, by name; all others are of the release before.
        self.current: set[str] = {"setup"}

    def __call__(
        self, module: str, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path
    ) -> Running:
        python = sys.executable if stdout.stem in self.current else str(PYTHON)
        return fork(module, words, env=env, cwd=cwd, stdout=stdout, python=python)


class Upgrade:
    """A cluster whose processes run in one of two versions."""

    def __init__(self, cluster: Cluster, versions: Versions) -> None:
        self.cluster = cluster
        self.versions = versions

    def stop(self, *names: str) -> None:
        """Stop processes at once."""
        for name in names:
            self.cluster.service(name).ask()
        for name in names:
            self.cluster.terminate(name)

    def start(self, *names: str, former: bool = False) -> None:
        """Start processes in this version or the former one; wait until all are ready."""
        for name in names:
            (self.versions.current.discard if former else self.versions.current.add)(name)
            self.cluster.start(name, wait=False)
        for name in names:
            self.cluster.until_ready(name)

    def restart(self, *names: str, former: bool = False) -> None:
        """Stop processes, and start them in this version or the former one."""
        self.stop(*names)
        self.start(*names, former=former)

    def leader_and_standby(self, service: str) -> tuple[str, str]:
        """Wait until a replica leads; return its name and that of the other one."""
        first, second = f"{service}-1", f"{service}-2"
        leader = self.cluster.until(
            lambda: next((name for name in (first, second) if self._leads(service, name)), None),
            f"a replica of {service} leads",
        )
        return leader, second if leader == first else first

    def _leads(self, service: str, name: str) -> bool:
        try:
            url = f"{self.cluster.health_url(name)}/metrics"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return f'yard_{service}_leading{{cell="main"}} 1.0' in answer.read().decode()
        except OSError:
            return False

    def runs_a_job(self) -> None:
        """Tasks start on each node and succeed."""
        tasks = [task for other in NODES for task in self.cluster.submit(avoid_nodes=[other])]
        ended = self.cluster.until_ended(tasks)
        assert {ended[task].outcome for task in tasks} == {Outcome.SUCCEEDED}

    def rules(self, topic: str) -> int:
        """The rules of a topic's newest cycle."""
        commits = [e for e in self.cluster.events(topic) if isinstance(e, CycleCommittedV2)]
        return commits[-1].rules

    def yard(self, *words: str, python: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """Run `yard` of this version, or of the environment of `python`, on the cluster."""
        yard = Path(python or Path(sys.executable)).with_name("yard")
        kafka = self.cluster.kafka()
        env = {
            **os.environ,
            "YARD_SERVER": self.cluster.server,
            "YARD_TOKEN": self.cluster.token(),
            "YARD_KAFKA__SECURITY_PROTOCOL": kafka.security_protocol,
            "YARD_KAFKA__SASL_MECHANISM": kafka.sasl_mechanism,
            "YARD_KAFKA__SASL_USERNAME": str(kafka.sasl_username),
            "YARD_KAFKA__SASL_PASSWORD": str(kafka.sasl_password),
        }
        return subprocess.run(
            [str(yard), *words], env=env, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def upgrade(tmp_path: Path) -> Iterator[Upgrade]:
    if not PYTHON.exists():
        pytest.skip("the release before is not installed: make former")
    versions = Versions()
    cluster = Cluster(
        tmp_path, quotas=2, schedulers=2, views=1, gateways=1, agents=2, launch=versions
    )
    with cluster:
        yield Upgrade(cluster, versions)


def test_an_upgrade_runs_mixed_is_taken_back_and_ends_when_an_operator_says_so(
    upgrade: Upgrade,
) -> None:
    cluster = upgrade.cluster
    (kept,) = cluster.submit(["sleep", "600"], avoid_nodes=["n2"])
    upgrade.runs_a_job()
    # New leaders, followed by old standbys, serve old gateways, views and agents.
    led = []
    for service in MACHINES:
        leader, standby = upgrade.leader_and_standby(service)
        upgrade.restart(standby)
        upgrade.stop(leader)
        assert upgrade.leader_and_standby(service)[0] == standby
        upgrade.start(leader, former=True)
        led.append(standby)
    upgrade.runs_a_job()
    # An old standby leads again after a new leader.
    upgrade.stop(*led)
    for service, name in zip(MACHINES, led, strict=True):
        assert upgrade.leader_and_standby(service)[0] != name
    upgrade.runs_a_job()
    # The rest of the upgrade; one agent stays old.
    upgrade.start(*led)
    upgrade.restart(*({*REPLICAS} - {*led}))
    upgrade.restart("gateway-1", "views-1", "agent-n1")
    upgrade.runs_a_job()
    # Back, in the opposite order: the old version reads and proves all that the new one wrote. The
    # new agent stays and serves the old scheduler: the old agent does not read its ledger.
    upgrade.restart("views-1", "gateway-1", former=True)
    upgrade.restart(*REPLICAS, former=True)
    upgrade.runs_a_job()
    proof = upgrade.yard("replay", "verify", "--log", cluster.log_url, python=PYTHON)
    assert proof.returncode == 0, proof.stdout + proof.stderr
    # To the end, with an old standby each, which stops where the rules change.
    upgrade.stop(*REPLICAS)
    upgrade.start("scheduler-1", "quota-1")
    for service in MACHINES:
        assert upgrade.leader_and_standby(service)[0] == f"{service}-1"
    upgrade.restart("gateway-1", "views-1", "agent-n2")
    late = ("scheduler-2", "quota-2")
    upgrade.start(*late, former=True)
    upgrade.runs_a_job()
    assert (upgrade.rules("admissions"), upgrade.rules("decisions")) == (OLDEST_RULES, OLDEST_RULES)
    finished = upgrade.yard("upgrade", "finish", "--yes")
    assert finished.stdout == f"rules {RULES} are in force\n", finished.stderr
    for name in late:
        assert cluster.exit_code(name) != 0
        assert f"rules {RULES} decided cycle" in cluster.log(name)
    upgrade.restart(*late)
    upgrade.runs_a_job()
    for topic in ("admissions", "decisions"):
        assert cluster.events(topic).count(RulesEnabledV1(rules=RULES)) == 1
        assert upgrade.rules(topic) == RULES
    again = upgrade.yard("upgrade", "finish")
    assert f"rules {RULES} are in force, the newest" in again.stdout
    # A task ran through all of it, on an agent that was upgraded meanwhile.
    task = cluster.tasks()[kept]
    assert (task.phase, task.attempt) == (Phase.RUNNING, 1)
    cluster.client().cancel(kept)
    cluster.until_ended([kept])
    cluster.prove()
