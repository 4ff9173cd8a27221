"""The choice of the users of tasks, and which of them are in use."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pydantic import ValidationError

from tests.support.task_users import users_of_test
from yardmaster_node_agent.agent_state import (
    AgentState,
    Head,
    Offer,
    Replica,
    ReplicaKey,
    TaskUser,
    lost_assignment,
)
from yardmaster_node_agent.errors import TaskUsersUnusable
from yardmaster_node_agent.executors.task_user import (
    BLOCK_IDS,
    FIRST_ID,
    TaskUsers,
    choose_users,
    claim,
)
from yardmaster_node_agent.settings import Settings
from yardmaster_node_agent.user_pool import UserPool
from yardmaster_schemas.run_as import RunAs

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may pass through; they cannot pass through those of pytest."""
    with TemporaryDirectory() as found:
        path = Path(found)
        path.chmod(0o711)
        yield path


# The choice of users


def choose(
    setting: str, folder: Path, *, node: str = "n1", at_once: int = 1124
) -> tuple[TaskUsers | None, str]:
    return choose_users(setting, folder / "data", node=node, at_once=at_once, group=None)


@ROOT
def test_by_default_each_node_has_users_of_its_own_where_they_reach_their_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    found, reason = choose("auto", folder)
    assert found is not None, reason
    assert (len(found.ids), found.first % BLOCK_IDS) == (2048, FIRST_ID % BLOCK_IDS)
    assert choose("auto", folder) == (found, "")
    other, _ = choose("auto", folder, node="n2", at_once=5000)
    assert other is not None
    assert len(other.ids) == 5001
    assert set(found.ids).isdisjoint(other.ids)
    assert max(*found.ids, *other.ids) < 2**31
    assert choose("same", folder)[0] is None
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    users, reason = choose("auto", closed)
    assert users is None
    assert str(closed) in reason


@ROOT
def test_named_users_are_used_if_each_replica_gets_one(folder: Path) -> None:
    users = users_of_test()
    setting = f"{users.first}-{users.last}"
    assert choose(setting, folder, at_once=len(users.ids) - 1) == (users, "")
    with pytest.raises(TaskUsersUnusable, match="these are 64 users, and the node may need 65"):
        choose(setting, folder, at_once=len(users.ids))


@ROOT
@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("1-4000", "1 is a user or group of this machine"),
        ("60000-70000", "65534 is a user or group of this machine"),
        ("2147480000-2147490000", "numbers of users end at 2147483647"),
    ],
)
def test_named_users_that_cannot_be_used_are_an_error(
    folder: Path, setting: str, found: str
) -> None:
    with pytest.raises(TaskUsersUnusable, match=found):
        choose(setting, folder)


@ROOT
def test_named_users_that_cannot_reach_their_files_are_an_error(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(TaskUsersUnusable, match="closed to them"):
        choose("3000000-3009999", closed)


@pytest.fixture
def without_root() -> Iterator[None]:
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    yield
    os.seteuid(own)


@pytest.mark.usefixtures("without_root")
def test_without_root_named_users_are_an_error(folder: Path) -> None:
    with pytest.raises(TaskUsersUnusable, match="not root"):
        choose("3000000-3009999", folder)


@pytest.mark.parametrize("text", ["10002", "ada", "9-3", "0-2000", "30000-", "root"])
def test_a_setting_that_is_no_range_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="30000-33999"):
        Settings(node="n1", data_dir=tmp_path, task_users=text)


def test_a_group_without_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="task_group has no effect"):
        Settings(node="n1", data_dir=tmp_path, task_users="same", task_group=4711)


@ROOT
def test_agents_of_one_machine_have_no_user_in_common() -> None:
    users = users_of_test()
    code = (
        "from yardmaster_node_agent.executors.task_user import *\n"
        f"claim(TaskUsers(first={users.last}, last={users.last + 9}))\n"
        "print('claimed', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(TaskUsersUnusable, match="another agent of this machine"):
            claim(users)
        other.communicate(b"\n")
    claim(users)
    claim(users)


# Which users are in use

ADA = RunAs(uid=500, gid=100)


def replica(number: int, *, gpu_milli: int = 0, user: TaskUser | None = None) -> Replica:
    assignment = lost_assignment(ReplicaKey("4kq7w2mz9c1f.0", 1, number), "x" * 8, number)
    return Replica(assignment=replace(assignment, gpu_milli=gpu_milli), user=user)


def state(*replicas: Replica) -> AgentState:
    offer = Offer(pool="p", node_type="t", gpus=0, cpu_milli=0, memory_mib=0)
    head = Head(node="n1", incarnation="0" * 12, epoch=1, offer=offer, host="0" * 64)
    return AgentState(head, replicas={each.key: each for each in replicas})


def pool(count: int, *replicas: Replica, by_mps: bool = False) -> UserPool:
    users = TaskUsers(first=1000, last=1000 + count, group=7)
    return UserPool(users, state(*replicas), Path("/"), by_mps=by_mps)


def given(users: UserPool, number: int, *, gpu_milli: int = 0) -> Replica:
    new = replica(number, gpu_milli=gpu_milli)
    assert users.give([new]) is None
    return new


def uid(replica: Replica) -> int:
    assert replica.user is not None
    return replica.user.uid


def test_a_user_is_given_again_when_its_replica_is_released_and_all_others_were_given() -> None:
    users = pool(3)
    first, second = given(users, 0), given(users, 1)
    assert first.user == TaskUser(uid=1001, gid=1001, groups=(7,))
    assert uid(second) == 1002
    users.release(first.user)
    assert uid(given(users, 2)) == 1003
    assert uid(given(users, 3)) == 1001
    assert users.give([replica(4)]) == (
        "each of the node's 3 users has a replica whose files are not removed"
    )


def test_the_replicas_of_an_attempt_share_a_user_until_the_last_is_released() -> None:
    users = pool(1)
    attempt = [replica(0), replica(1)]
    assert users.give(attempt) is None
    assert {each.user for each in attempt} == {
        TaskUser(uid=1001, gid=1001, groups=(7,), shared=True)
    }
    assert users.ended(attempt[0].user)
    users.release(attempt[0].user)
    assert users.give([replica(2)]) is not None
    assert users.ended(attempt[1].user)
    users.release(attempt[1].user)
    assert uid(given(users, 3)) == 1001


def test_the_users_in_the_ledger_are_in_use_until_their_files_are_removed() -> None:
    held = replica(0, user=TaskUser(uid=1001, gid=1001))
    removed = replica(1, user=TaskUser(uid=1002, gid=1002))
    removed.directory_removed = True
    users = pool(2, held, removed)
    assert uid(given(users, 2)) == 1002
    assert users.give([replica(3)]) is not None
    users.release(held.user)
    assert uid(given(users, 4)) == 1001


def test_tasks_with_fractions_under_mps_share_the_first_user() -> None:
    users = pool(1, by_mps=True)
    assert {uid(given(users, number, gpu_milli=500)) for number in range(3)} == {1000}
    assert uid(given(users, 3, gpu_milli=1000)) == 1001
    assert uid(given(pool(1), 4, gpu_milli=500)) == 1001


def test_without_users_replicas_have_none() -> None:
    users = UserPool(None, state(), Path("/"), by_mps=True)
    new = replica(0, gpu_milli=500)
    assert users.give([new]) is None
    assert new.user is None
    assert users.ended(None)
    users.release(None)


# Users that jobs name


def named(number: int, run_as: RunAs, *, gpu_milli: int = 0) -> Replica:
    new = replica(number, gpu_milli=gpu_milli)
    new.assignment = replace(new.assignment, run_as=run_as)
    return new


def test_a_user_that_jobs_name_is_not_of_the_pool_and_many_attempts_may_have_it() -> None:
    users = pool(2)
    both = [named(0, ADA), named(1, ADA)]
    assert [users.give([each]) for each in both] == [None, None]
    user = TaskUser(uid=500, gid=100, groups=(7,), shared=True, named=True)
    assert [each.user for each in both] == [user, user]
    assert uid(given(users, 2)) == 1001, "the node still gives its own users in turn"
    users.release(user)
    users.release(user)
    assert uid(given(users, 3)) == 1002
    held = replica(4, user=user)
    assert uid(given(pool(2, held), 5)) == 1001


@pytest.mark.parametrize("run_as", [RunAs(uid=1001, gid=100), RunAs(uid=500, gid=1000)])
def test_a_job_cannot_name_a_user_or_group_of_the_node(run_as: RunAs) -> None:
    new = named(0, run_as)
    assert pool(1).give([new]) == (
        f"this node cannot run it as {run_as} (run_as): the node gives that number to other tasks "
        "(YARD_AGENT_TASK_USERS)"
    )
    assert new.user is None


def test_an_agent_without_users_never_runs_a_job_that_names_one_as_itself() -> None:
    new = named(0, ADA)
    reason = UserPool(None, state(), Path("/"), by_mps=False).give([new])
    assert reason is not None
    assert reason.startswith("this node cannot run it as 500:100 (run_as): its tasks run as the ")
    assert new.user is None


def test_a_fraction_under_mps_has_no_user_that_its_job_names() -> None:
    reason = pool(1, by_mps=True).give([named(0, ADA, gpu_milli=500)])
    assert reason is not None
    assert "MPS serves one user" in reason
    assert pool(1, by_mps=True).give([named(0, ADA, gpu_milli=1000)]) is None
    assert pool(1).give([named(0, ADA, gpu_milli=500)]) is None


def test_a_user_that_cannot_reach_the_files_is_named_with_the_closed_folder(folder: Path) -> None:
    users = TaskUsers(first=1000, last=1001)
    closed = folder / "closed"
    (closed / "data").mkdir(parents=True)
    closed.chmod(0o700)
    reason = UserPool(users, state(), closed / "data", by_mps=False).give([named(0, ADA)])
    assert reason is not None
    assert f"{closed} is closed to it" in reason


@ROOT
def test_the_programs_of_a_user_that_a_job_named_outlive_its_last_replica() -> None:
    run_as = RunAs(uid=users_of_test().first, gid=100)
    users = UserPool(users_of_test(), state(), Path("/"), by_mps=False)
    new = named(0, run_as)
    assert users.give([new]) is None
    with subprocess.Popen(["sleep", "600"], user=run_as.uid) as foreign:
        assert users.ended(new.user)
        assert foreign.poll() is None
        foreign.kill()


@ROOT
def test_a_shared_user_ends_with_its_last_replica() -> None:
    own = users_of_test()
    users = UserPool(own, state(), Path("/"), by_mps=False)
    attempt = [replica(0), replica(1)]
    assert users.give(attempt) is None
    user = attempt[0].user
    assert user is not None
    with subprocess.Popen(["sleep", "600"], user=user.uid) as late:
        assert users.ended(user), "the other replica may use it"
        assert late.poll() is None
        users.release(user)
        assert not users.ended(user)
        assert late.wait() == -9
    assert users.ended(user)
