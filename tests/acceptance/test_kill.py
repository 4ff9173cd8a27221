"""kill -9 of the embedded process at random moments: no task is lost, no attempt starts twice.

SAFETY: S1 to S11 over the log; at most one start of a replica of an attempt; no slot held twice.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.promises import (
    DEADLINE_S,
    Promise,
    Proof,
    Users,
    all_ended,
    assert_resumed_where_saved,
    proof_of,
    workload,
)
from tests.support.witness import assert_witness_clean
from tests.support.witness import command as witness_command
from tests.support.yard_cli import Dev, until
from yardmaster_eventlog.sqlite.log import SqliteLog
from yardmaster_localcluster.ports import free_ports
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.events.decisions import TaskEndedV1
from yardmaster_schemas.events.machine import TermStartedV1

KILLS = 20
#: Longest time from readiness to the kill, in seconds.
LIFE_S = 2.0
#: Time between two looks whether the process serves.
LOOK_S = 0.02

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("kill")]


def _seed() -> int:
    """A new seed for each run; `YARDMASTER_KILL_SEED` repeats the moments of an earlier run."""
    given = os.environ.get("YARDMASTER_KILL_SEED")
    return int(given) if given else random.SystemRandom().randrange(1 << 32)


@contextmanager
def killed(folder: Path, *, nodes: int = 3, slots: int = 2) -> Iterator[Dev]:
    """An embedded process that is not started; at the end nothing of it runs."""
    dev = Dev(folder, nodes=nodes, slots=slots, port=free_ports(1)[0])
    try:
        yield dev
    finally:
        dev.close()


def run_to_end(dev: Dev, promises: list[Promise]) -> None:
    """Serve until every acknowledged task has ended, then kill the process once more."""
    wanted = {task for promise in promises for task in promise.task_ids}
    dev.launch()

    def ended() -> bool:
        dev.let_live(0.3)
        return all_ended(dev.data / "log.db", wanted)

    until(ended, "every task has ended", dev.words, limit_s=DEADLINE_S)
    dev.kill()


async def prove(dev: Dev, promises: list[Promise]) -> Proof:
    """Check every promise against the log; fail when one is broken."""
    log = await SqliteLog.open(dev.data / "log.db", SystemClock(), create=False)
    try:
        return await proof_of(log, promises, dev.kills[:-1])
    finally:
        await log.close()


def test_twenty_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    seed = _seed()
    print(f"YARDMASTER_KILL_SEED={seed}")
    chance = random.Random(seed)
    folder = tmp_path / "witness"
    with killed(tmp_path) as dev:
        users = Users(dev, workload(folder, random.Random(seed + 1)), every_s=0.25)
        users.start()
        for number in range(KILLS):
            dev.launch()
            if number % 4:
                until(dev.serves, "it serves", dev.words, limit_s=DEADLINE_S, look_s=LOOK_S)
            # Every fourth process may be killed before it serves.
            dev.let_live(chance.uniform(0.0, LIFE_S))
            dev.kill()
            assert users.failed is None, users.failed
        dev.launch()
        promises = users.done()
        dev.kill()
        run_to_end(dev, promises)
        found = asyncio.run(prove(dev, promises))
        said = dev.yard("replay", "verify", code=None)
        assert said.code == 0, f"seed {seed}: {said.out}{said.err}"
    testimony = assert_witness_clean(folder)
    resumed = assert_resumed_where_saved(folder, found.allocated)
    at_kills: Counter[str] = sum(found.phases, Counter())
    terms = sum(isinstance(e, TermStartedV1) for e in found.decided)
    print(
        f"{len(promises)} jobs, {sum(p.tries for p in promises)} calls, {terms} terms, "
        f"{len(testimony.starts)} starts, {resumed} resumed; at the kills: {dict(at_kills)}"
    )
    print(said.out)
    # The kills met tasks in every phase.
    assert len(dev.kills) >= KILLS
    assert {"pending", "running", "stopping"} <= set(at_kills), at_kills
    assert resumed > 0


#: The first file of each stage in a replica's directory: created by the agent, runner started,
#: start recorded by the runner, process of the command known.
STAGES = ("bell", "runner.log", "start", "process")


#: Directory scans between two checks whether all tasks have ended.
LOOKS = 2000


def at_stage(dev: Dev, stage: str, seen: set[Path], over: Callable[[], bool]) -> bool:
    """Wait until a new replica reaches a stage; False when all tasks have ended.

    Scans without a pause, because a stage lasts only milliseconds.
    """
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for _ in range(LOOKS):
            found = set(dev.data.glob(f"nodes/*/*/*/{stage}")) - seen
            if found:
                seen.update(found)
                return True
        if over():
            return False
    raise AssertionError(f"no further replica starts: {dev.words()}")


def test_a_kill_during_a_start_starts_no_attempt_twice(tmp_path: Path) -> None:
    seed = _seed()
    print(f"YARDMASTER_KILL_SEED={seed}")
    chance = random.Random(seed)
    folder = tmp_path / "witness"
    many = Promise(
        "many",
        {
            "project": "default",
            "tasks": {"count": 60},
            "resources": {"gpus": 1},
            "run": {"command": witness_command(folder, "true")},
        },
    )
    gangs = Promise("gangs", {**many.body, "replicas": 2, "tasks": {"count": 15}})
    killed_at: Counter[str] = Counter()
    seen: set[Path] = set()
    with killed(tmp_path, nodes=2) as dev:
        dev.launch()
        users = Users(dev, iter([many, gangs]), every_s=0.01)
        users.start()

        def over() -> bool:
            wanted = {*many.task_ids, *gangs.task_ids}
            return bool(gangs.task_ids) and all_ended(dev.data / "log.db", wanted)

        for stage in 4 * STAGES:
            if not at_stage(dev, stage, seen, over):
                break
            killed_at[stage] += 1
            dev.let_live(chance.choice([0.0, 0.0, 0.002, 0.01]))
            dev.kill()
            dev.launch()
        until(
            lambda: len(users.made) == 2 and gangs.task_ids,
            "both are submitted",
            dev.words,
            limit_s=DEADLINE_S,
        )
        dev.kill()
        run_to_end(dev, [many, gangs])
        found = asyncio.run(prove(dev, [many, gangs]))
        said = dev.yard("replay", "verify", code=None)
        assert said.code == 0, f"seed {seed}: {said.out}{said.err}"
    testimony = assert_witness_clean(folder)
    ends = Counter(str(e.outcome) for e in found.decided if isinstance(e, TaskEndedV1))
    assert ends == {"succeeded": 75}, "a kill between starts fails no task"
    again = sum(attempt > 1 for _, attempt in found.allocated)
    print(f"killed at {dict(killed_at)}: {len(testimony.starts)} starts, {again} later attempts")
    assert min(killed_at[stage] for stage in STAGES) > 0, killed_at
    assert len(testimony.starts) >= 90
