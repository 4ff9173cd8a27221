"""Ports for servers of tests, which processes choose at the same time."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CHOOSE = """
import itertools, sys
from yardmaster_localcluster import ports
ports._turns = itertools.count()
print(*ports.free_ports(20), flush=True)
sys.stdin.read()
"""


@contextmanager
def choosing() -> Iterator[set[str]]:
    """The ports that another process has chosen, which lives while the context is active."""
    command = [sys.executable, "-c", CHOOSE]
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
