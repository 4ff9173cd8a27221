"""A network partition between agents and the broker: reliability.md, section 1.

Without a fence, tasks keep running, their node is lost after `node_timeout_s`, they are started on
another node, and their old processes are killed when the node is back. With `fence: kill`, the old
processes are dead before that, whatever happens to their agent.

SAFETY: S1 to S11 over the log; at most one start of an attempt; no slot held twice; under a fence
no two attempts of a task at once, which the locks of the tasks prove.
"""

import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.log_gateway import LogGateway
from tests.support.tcp_proxy import Mode, TcpProxy
from tests.support.witness import Start, assert_witness_clean, read_witness
from tests.support.witness import command as witnessed
from yardmaster_core.fencing import fence_of
from yardmaster_localcluster.ports import free_ports
from yardmaster_schemas.events.decisions import LossCause, NodeLostV1, Outcome, SlotsAllocatedV1
from yardmaster_schemas.events.node_events import NodeJoinedV1, TaskExitedV1
from yardmaster_schemas.events.requests import Fence, PolicyRef, PoolConfig

#: How long no message passes: longer than any time limit of an agent or of the scheduler.
PARTITION_S = 60.0
NODE_TIMEOUT_S = 15
SLOTS = 2
#: Nodes behind a proxy: only cut off; with a killed agent; with a stopped agent; without a fence.
CUT, KILLED, STOPPED, OPEN = "n1", "n2", "n3", "n5"
#: Behind another proxy: its records arrive at the broker, the replies are dropped.
UNHEARD = "n7"
FENCED = {CUT, KILLED, STOPPED, UNHEARD}
#: Nodes that always reach the broker: in the pool with a fence, in the pool without one.
WELL, OPEN_WELL = "n4", "n6"

#: Runs until a file exists, with a child in a separate session. Both processes hold the locks.
TASK = """
trap '' TERM
setsid sh -c 'while [ ! -e "$1" ]; do sleep 0.5; done' orphan "$1" &
while [ ! -e "$1" ]; do sleep 0.2; done
"""

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("kafka")]


def alive(start: Start) -> bool:
    """Whether the process of `start` still runs; its environment identifies the task."""
    try:
        environ = Path(f"/proc/{start.pid}/environ").read_bytes()
    except OSError:
        return False
    return f"YARD_TASK_ID={start.task}\0".encode() in environ


def attempts(folder: Path, number: int) -> dict[str, Start]:
    found = read_witness(folder).starts
    return {start.task: start for start in found if start.attempt == number}


def lost(cluster: Cluster) -> dict[str, LossCause]:
    found = [e for e in cluster.events("decisions") if isinstance(e, NodeLostV1)]
    return {e.node: e.cause for e in found}


def joins(cluster: Cluster, node: str) -> list[str]:
    found = [e for e in cluster.events("node-events") if isinstance(e, NodeJoinedV1)]
    return list(dict.fromkeys(e.incarnation for e in found if e.node == node))


def test_a_partition_of_a_minute(tmp_path: Path) -> None:
    behind, proxied, one_way_behind, one_way = free_ports(4)
    env = {
        "agent": {"YARD_AGENT_HEARTBEAT_S": "1"},
        **{
            f"agent-{node}": {"YARD_AGENT_LOG": f"kafka://127.0.0.1:{proxied}"}
            for node in (CUT, KILLED, STOPPED, OPEN)
        },
        f"agent-{UNHEARD}": {"YARD_AGENT_LOG": f"kafka://127.0.0.1:{one_way}"},
        f"agent-{WELL}": {"YARD_AGENT_GPUS": "12"},
        f"agent-{OPEN_WELL}": {"YARD_AGENT_GPUS": "8"},
    }
    for node in (OPEN, OPEN_WELL):
        env[f"agent-{node}"] = {**env.get(f"agent-{node}", {}), "YARD_AGENT_POOL": "open"}
    cluster = Cluster(
        tmp_path,
        gateways=0,
        views=0,
        quotas=1,
        schedulers=1,
        agents=7,
        slots=SLOTS,
        env=env,
        kafka_proxied={"PROXIED": (behind, proxied), "ONEWAY": (one_way_behind, one_way)},
    )
    with TcpProxy(behind, proxied) as proxy, TcpProxy(one_way_behind, one_way) as unheard, cluster:
        _partition(cluster, proxy, unheard, tmp_path)


def _partition(cluster: Cluster, proxy: TcpProxy, unheard: TcpProxy, folder: Path) -> None:
    gateway = LogGateway(cluster)
    gateway.pool("default", node_timeout_s=NODE_TIMEOUT_S, fence=Fence.KILL)
    gateway.pool("open", node_timeout_s=NODE_TIMEOUT_S)
    go = folder / "go"
    fenced_folder, open_folder = folder / "fenced", folder / "open"

    def command(witness: Path) -> list[str]:
        return witnessed(witness, "sh", "-c", TASK, "task", str(go))

    fenced = gateway.submit(command(fenced_folder), tasks=len(FENCED) * SLOTS + 1)
    unfenced = gateway.submit(command(open_folder), pool="open", tasks=SLOTS)

    def all_run() -> bool:
        seen = (read_witness(fenced_folder), read_witness(open_folder))
        return [len(each.starts) for each in seen] == [len(fenced), len(unfenced)]

    cluster.until(all_run, "all tasks run")
    first = attempts(fenced_folder, 1)
    cut_off = {t: s for t, s in first.items() if s.node != WELL}
    assert {s.node for s in cut_off.values()} == FENCED
    open_first = attempts(open_folder, 1)
    assert {s.node for s in open_first.values()} == {OPEN}, "the fullest node is taken first"

    began = time.monotonic()
    proxy.set(Mode.BLACKHOLE)
    unheard.set(Mode.UP_ONLY)
    time.sleep(3)  # the agents are killed and stopped within the partition, not at its start
    cluster.kill9(f"agent-{KILLED}")
    cluster.stop(f"agent-{STOPPED}")
    # All processes are dead before their nodes are lost; their tasks run elsewhere soon after.
    cluster.until(lambda: not any(map(alive, cut_off.values())), "the fence kills", look_s=0.1)
    dead_s = time.monotonic() - began
    assert all(map(alive, open_first.values())), "without a fence they keep running"

    def run_again() -> dict[str, Start] | None:
        found = attempts(fenced_folder, 2)
        return found if found.keys() == cut_off.keys() else None

    again = cluster.until(run_again, "they run elsewhere")
    again_s = time.monotonic() - began
    assert {start.node for start in again.values()} == {WELL}
    cluster.until(
        lambda: attempts(open_folder, 2).keys() == open_first.keys(),
        "those without a fence were started elsewhere too",
    )
    assert lost(cluster) == dict.fromkeys({*FENCED, OPEN}, LossCause.SILENT)
    assert all(map(alive, open_first.values())), (
        "and they run twice: no message reaches their nodes"
    )
    time.sleep(max(0.0, PARTITION_S - (time.monotonic() - began)))

    proxy.set(Mode.PASS)
    unheard.set(Mode.PASS)
    cluster.cont(f"agent-{STOPPED}")
    cluster.start(f"agent-{KILLED}", wait=False)
    healed = time.monotonic()

    def all_back() -> bool:
        return all(len(joins(cluster, node)) >= 2 for node in {*FENCED, OPEN})

    cluster.until(all_back, "the nodes join again")
    back_s = time.monotonic() - healed
    assert not any(map(alive, open_first.values())), "processes left on a lost node are killed"
    go.touch()
    ends = cluster.until_ended([*fenced, *unfenced])
    assert {end.outcome for end in ends.values()} == {Outcome.SUCCEEDED}
    _judge(cluster, fenced_folder, open_folder)
    print(
        f"dead after {dead_s:.1f} s, run elsewhere after {again_s:.1f} s, all nodes back "
        f"{back_s:.1f} s after the partition"
    )
    assert dead_s < NODE_TIMEOUT_S


def _judge(cluster: Cluster, fenced: Path, unfenced: Path) -> None:
    cluster.prove()
    assert_witness_clean(fenced)
    seen = read_witness(unfenced)
    # The locks detect two attempts at once: they did for the pool without a fence.
    assert any("runs twice at once" in problem for problem in seen.problems())
    assert not [p for p in seen.problems() if "runs twice at once" not in p]
    decided = [e for e in cluster.events("decisions") if isinstance(e, SlotsAllocatedV1)]
    fence_s = fence_of(
        PoolConfig(
            policy=PolicyRef(name="priority"), node_timeout_s=NODE_TIMEOUT_S, fence=Fence.KILL
        )
    )
    assert {e.fence_s for e in decided if e.pool == "default"} == {fence_s}
    assert {e.fence_s for e in decided if e.pool == "open"} == {None}
    exits = [e for e in cluster.events("node-events") if isinstance(e, TaskExitedV1)]
    assert {(e.exit_code, e.signal) for e in exits} == {(0, None)}, (
        "a kill by the fence is not reported as an exit"
    )
