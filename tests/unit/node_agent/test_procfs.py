"""Which process is which: a reused pid is never taken for ours."""

import os
import subprocess
from dataclasses import replace

from yardmaster_node_agent.executors import procfs
from yardmaster_node_agent.executors.procfs import ProcessIdentity


def identity(pid: int) -> ProcessIdentity:
    seen = procfs.look(pid)
    assert seen is not None
    return ProcessIdentity(boot_id=procfs.boot_id(), pid=pid, started=seen.started)


def test_a_process_is_known_by_boot_pid_and_start() -> None:
    own = identity(os.getpid())
    assert procfs.alive(own)
    assert not procfs.alive(replace(own, started=own.started + 1)), "another of its pid"
    other_boot = replace(own, boot_id="00000000-0000-0000-0000-000000000000")
    assert not procfs.alive(other_boot), "before the machine was started again"


def test_a_zombie_is_not_alive_and_still_found() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        known = identity(child.pid)
        os.kill(child.pid, 9)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not procfs.alive(known)
        assert procfs.find(known) is not None
    assert procfs.find(known) is None


def test_a_process_that_reuses_the_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        seen = procfs.look(child.pid)
        assert seen is not None
        assert not procfs.kill(replace(seen, started=seen.started - 1))
        assert child.poll() is None
        assert procfs.kill(seen)
        assert child.wait() == -9
    assert not procfs.kill(seen)


def test_a_process_that_left_group_and_session_is_found_by_its_environment() -> None:
    mark = b"YARD_STOP_FILE=/nowhere/one/stop.json\0"
    env = {**os.environ, "YARD_STOP_FILE": "/nowhere/one/stop.json"}
    other = {**os.environ, "YARD_STOP_FILE": "/nowhere/one/stop.json.not"}
    with (
        subprocess.Popen(["sleep", "100"], env=env, start_new_session=True) as ours,
        subprocess.Popen(["sleep", "100"], env=other, start_new_session=True) as stranger,
    ):
        assert [seen.pid for seen in procfs.members(None, None, mark)] == [ours.pid]
        ours.kill()
        stranger.kill()


def test_members_of_a_living_runner_are_only_its_descendants() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 100 & echo; wait"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        found = procfs.members(identity(parent.pid), None, b"none")
        assert len(found) == 1
        assert found[0].parent == parent.pid
        for seen in found:
            assert procfs.kill(seen)
        parent.wait()
