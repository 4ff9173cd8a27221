"""Which processes a local cluster is made of, and that none of them is given a secret by value."""

import hashlib
import itertools
import json
import stat
from pathlib import Path

import pytest

from yardmaster_gateway.identity.authentication import digest_of, read_token_file
from yardmaster_localcluster.layout import DataLayout
from yardmaster_localcluster.plan import Counts, FixedPorts, Plan, Wanted, plan
from yardmaster_localcluster.ports import GangPorts

#: Of all clusters here, since a process that needs more ranges than there are shares its own.
GANG_PORTS = GangPorts()


def planned(tmp_path: Path, wanted: Wanted | None = None) -> dict[str, Plan]:
    data = DataLayout(tmp_path)
    wanted = wanted or Wanted()
    data.make(wanted.cells, [node for *_, node in wanted.nodes()])
    kafka, redis = "127.0.0.1:9092", "redis://127.0.0.1:6379/0"
    return plan(wanted, data, FixedPorts(), GANG_PORTS, kafka=kafka, redis=redis)


def test_by_default_there_are_one_gateway_two_of_each_machine_and_three_agents(
    tmp_path: Path,
) -> None:
    assert list(planned(tmp_path)) == [
        *("quota-1", "quota-2", "scheduler-1", "scheduler-2", "views-1", "views-2"),
        *("agent-n1", "agent-n2", "agent-n3", "gateway-1"),
    ]


def test_the_agents_divide_the_machine(tmp_path: Path) -> None:
    plans = planned(tmp_path, Wanted(counts=Counts(agent=5), cells=("main", "east"))).values()
    parts = [p.env["YARD_AGENT_MACHINE_AGENTS"] for p in plans if p.node is not None]
    assert parts == ["10"] * 10


def test_no_two_processes_listen_on_one_port_or_share_a_folder(tmp_path: Path) -> None:
    most = Wanted(
        counts=Counts(gateway=5, quota=10, scheduler=10, views=10, agent=30),
        cells=("main", "east"),
    )
    plans = planned(tmp_path, most).values()
    ports = [p.health_port for p in plans] + [p.port for p in plans if p.port is not None]
    assert len(set(ports)) == len(ports)
    ranges = sorted(
        (int(p.env["YARD_AGENT_PORT_FIRST"]), int(p.env["YARD_AGENT_PORT_LAST"]))
        for p in plans
        if p.node is not None
    )
    assert len(ranges) == 60
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
    folders = [p.env["YARD_AGENT_DATA_DIR"] for p in plans if p.node is not None]
    assert len(set(folders)) == 60


def test_gateways_and_nodes_belong_to_a_cell_and_machines_serve_all(tmp_path: Path) -> None:
    plans = planned(tmp_path, Wanted(counts=Counts(agent=1), cells=("main", "east")))
    assert plans["agent-east-n1"].env["YARD_CELL"] == "east"
    assert plans["agent-east-n1"].env["YARD_PARTITION"] == "1"
    assert plans["gateway-east-1"].env["YARD_CELL"] == "east"
    assert plans["scheduler-1"].env["YARD_CELLS"] == "main,east"


def test_gateways_read_the_snapshots_that_quota_writes(tmp_path: Path) -> None:
    plans = planned(tmp_path)
    names = ("gateway-1", "quota-1", "scheduler-1")
    folders = [plans[name].env["YARD_SNAPSHOTS"] for name in names]
    assert folders == [str(tmp_path / "snapshots")] * 3


def test_scaling_one_service_changes_no_other(tmp_path: Path) -> None:
    before = planned(tmp_path)
    after = planned(tmp_path, Wanted(counts=Counts(gateway=3)))
    assert [name for name in after if name not in before] == ["gateway-2", "gateway-3"]
    assert all(after[name] == before[name] for name in before)


def test_what_is_wanted_survives_its_file() -> None:
    wanted = Wanted(counts=Counts(gateway=2, agent=7), cells=("main", "east"), slots=8)
    assert Wanted.of_json(json.loads(json.dumps(wanted.json()))) == wanted


@pytest.mark.parametrize("secret", ["token", "credentials/kafka/quota", "credentials/redis/views"])
def test_secrets_are_files_of_their_owner_and_in_no_environment(
    tmp_path: Path, secret: str
) -> None:
    plans = planned(tmp_path)
    path = tmp_path / secret
    text = path.read_text().strip()
    assert len(text) > 30
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not [p.name for p in plans.values() if text in "\n".join(p.env.values())]
    planned(tmp_path)
    assert path.read_text().strip() == text


def test_gateways_know_the_token_by_its_digest_alone(tmp_path: Path) -> None:
    planned(tmp_path)
    token = DataLayout(tmp_path).token()
    content = (tmp_path / "tokens.json").read_text()
    assert token not in content
    assert hashlib.sha256(token.encode()).hexdigest() in content
    (user,) = read_token_file(tmp_path / "tokens.json")
    assert [one.digest for one in user.tokens] == [digest_of(token)]
    assert [role.name for role in user.roles] == ["main"]


def test_users_that_an_operator_has_added_stay_after_the_next_start(tmp_path: Path) -> None:
    planned(tmp_path)
    path = tmp_path / "tokens.json"
    tokens = json.loads(path.read_text())
    digest = hashlib.sha256(b"of-ana").hexdigest()
    tokens["tokens"].append({"id": "ana", "digest": digest, "user": "ana", "roles": []})
    path.write_text(json.dumps(tokens))
    planned(tmp_path)
    users = {user.name: user.tokens[0].digest for user in read_token_file(path)}
    assert users == {
        "ana": digest_of("of-ana"),
        "local": digest_of(DataLayout(tmp_path).token()),
    }
