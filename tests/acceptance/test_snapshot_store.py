"""The snapshot store is away, or hangs as a dead NFS mount: every service starts and takes over."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(500)]

#: A call of the store counts as unanswered after this long.
DEADLINE_S = 2
SOON_S = 60.0
NO_GPUS = {"gpus": 0}
FIRST = ("quota-1", "scheduler-1")
MACHINES = (*FIRST, "quota-2", "scheduler-2")


def gone(folder: Path) -> Callable[[], None]:
    """Put a file in the place of the store; return what brings the store back."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.touch()

    def back() -> None:
        folder.unlink()
        aside.rename(folder)

    return back


def hanging(folder: Path) -> Callable[[], None]:
    """Let each read of a fence or snapshot wait for ever; return what brings the store back."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert let_reads_hang(folder) == {".json", ".snapshot"}

    def back() -> None:
        # File by file: services write to the store meanwhile, so its folder cannot be replaced.
        for path in list(folder.rglob("*")):
            if path.is_fifo():
                copied = copy / path.relative_to(folder)
                if copied.exists():
                    copied.replace(path)
                else:  # saved after the copy was made
                    path.unlink(missing_ok=True)

    return back


def let_reads_hang(folder: Path) -> set[str]:
    """Let each read of a file that the store has now wait for ever; return the files' suffixes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.unlink()
        os.mkfifo(path)
    return {path.suffix for path in files}


@pytest.mark.parametrize("broken", [gone, hanging])
def test_without_its_snapshot_store_each_service_takes_over_and_starts_from_the_log(
    tmp_path: Path, broken: Callable[[Path], Callable[[], None]]
) -> None:
    env = {
        "YARD_SNAPSHOT__DEADLINE_S": str(DEADLINE_S),
        "YARD_SNAPSHOT__EVERY_CYCLES": "1",
        "YARD_SESSION_TIMEOUT_S": "3",
    }
    with Cluster(tmp_path, views=1, agents=1, env={"*": env}) as cluster:

        def work() -> None:
            tasks = [cluster.submit(["true"], resources=NO_GPUS)[0] for _ in range(2)]
            cluster.until_ended(tasks, SOON_S)

        work()
        folder = cluster.data.snapshots
        stored = ["quota/main", "scheduler/main"]
        cluster.until(
            lambda: all(
                list((folder / each).glob("*.snapshot")) and (folder / each / "fence.json").exists()
                for each in stored
            ),
            "both machines have a snapshot and a fence",
            SOON_S,
        )
        back = broken(folder)
        # One replica of each machine takes over or stays the leader; the other starts.
        for name in FIRST:
            cluster.kill9(name)
        work()
        for name in FIRST:
            cluster.start(name, wait=False)
        for name in FIRST:
            cluster.until_ready(name)
        # All replicas at once, and a gateway.
        for name in (*MACHINES, "gateway-1"):
            cluster.kill9(name)
        if broken is hanging:
            let_reads_hang(folder)  # a leader may have saved new files since
        for name in (*MACHINES, "gateway-1"):
            cluster.start(name, wait=False)
        for name in (*MACHINES, "gateway-1"):
            cluster.until_ready(name, SOON_S)
        work()
        if broken is hanging:
            # The other replica may begin after the leader has saved a snapshot, which it can read.
            for replicas in (("quota-1", "quota-2"), ("scheduler-1", "scheduler-2")):
                assert any("no answer within" in cluster.log(name) for name in replicas), replicas
        else:
            for name in (*MACHINES, "gateway-1"):
                assert '"snapshots_unavailable"' in cluster.log(name), name
        back()
        for name in MACHINES:
            cluster.restart(name)
        work()
        cluster.prove()
