"""Ports of servers and of gangs, which processes choose at the same time."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from yardmaster_localcluster import ports as ports_module
from yardmaster_localcluster.errors import NoGangPorts
from yardmaster_localcluster.ports import GangPorts

CHOOSE = """
import itertools, sys
from yardmaster_localcluster import ports
ports._turns = itertools.count()
print(*ports.free_ports(20), flush=True)
sys.stdin.read()
"""


CHOOSE_FOR_GANGS = """
import sys
from yardmaster_localcluster.ports import GangPorts
ports = GangPorts()
print(*(port for number in range(3) for port in ports.node(number)), flush=True)
sys.stdin.read()
"""


@contextmanager
def choosing(program: str = CHOOSE) -> Iterator[set[str]]:
    """The ports that another process has chosen, which lives while the context is active."""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield set(process.stdout.readline().split())
        process.communicate()


def test_no_two_processes_choose_the_same_port_also_while_nothing_listens_on_it() -> None:
    with choosing() as first, choosing() as second:
        assert len(first | second) == 40


def test_a_process_that_has_ended_holds_no_port() -> None:
    with choosing() as first:
        pass
    with choosing() as second:
        assert first & second


def test_clusters_of_one_machine_share_no_port_for_gangs() -> None:
    with choosing(CHOOSE_FOR_GANGS) as first, choosing(CHOOSE_FOR_GANGS) as second:
        assert len(first) == len(second) == 300
        assert not first & second


def test_nodes_of_one_cluster_share_no_port_for_gangs_and_keep_theirs() -> None:
    ports = GangPorts()
    ranges = [ports.node(number) for number in range(60)]
    assert len({port for found in ranges for port in found}) == 6_000
    assert [ports.node(number) for number in range(60)] == ranges


def test_a_cluster_is_refused_when_others_have_all_ports_for_gangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports_module, "_lock", lambda found: False)
    with pytest.raises(NoGangPorts, match="29600 to 65499") as refused:
        GangPorts().node(0)
    assert refused.value.hint == "stop another cluster of this machine, or start fewer nodes"
