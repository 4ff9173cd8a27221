"""Snapshots: whole or not used, newest good one first, none in another's way."""

import asyncio
import hashlib
import json
import os
import threading
import uuid
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_eventlog import snapshots
from yardmaster_eventlog.errors import SnapshotCorrupt, SnapshotsUnavailable
from yardmaster_eventlog.snapshots import MAX_HUNG, Newest, Snapshot, SnapshotStore, decode, encode


def snapshot(cycle: int, payload: bytes = b"the state", cell: str = "main") -> Snapshot:
    return Snapshot(
        machine="scheduler", cell=cell, cycle=cycle, state_digest="ab" * 32, payload=payload
    )


def path_of(folder: Path, cycle: int) -> Path:
    return folder / "scheduler" / "main" / f"{cycle:016d}.snapshot"


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    urls = {
        "folder": str(tmp_path / "snapshots"),
        "file": f"file://{tmp_path}/snapshots",
        "memory": f"memory://{uuid.uuid4().hex}",
    }
    return SnapshotStore(urls[request.param])


async def test_what_was_saved_is_loaded(store: SnapshotStore) -> None:
    saved = snapshot(7, os.urandom(100_000) + b"x" * 1_000_000)
    await store.save(saved)
    assert await store.load("scheduler", "main", 7) == saved
    assert await store.newest("scheduler", "main") == Newest(saved)


async def test_nothing_is_there_at_first(store: SnapshotStore) -> None:
    assert await store.cycles("scheduler", "main") == ()
    assert await store.newest("scheduler", "main") == Newest(None)
    assert await store.prune("scheduler", "main", keep=1) == ()
    with pytest.raises(SnapshotCorrupt, match="gone"):
        await store.load("scheduler", "main", 7)


async def test_the_newest_snapshot_is_first_and_an_earlier_one_can_be_requested(
    store: SnapshotStore,
) -> None:
    for cycle in (9, 100, 20):
        await store.save(snapshot(cycle))
    assert await store.cycles("scheduler", "main") == (100, 20, 9)
    below = await store.newest("scheduler", "main", before=100)
    assert below.snapshot is not None
    assert below.snapshot.cycle == 20
    assert await store.newest("scheduler", "main", before=9) == Newest(None)


async def test_one_of_the_same_cycle_is_replaced(store: SnapshotStore) -> None:
    await store.save(snapshot(3, b"first"))
    await store.save(snapshot(3, b"second"))
    assert await store.cycles("scheduler", "main") == (3,)
    assert (await store.load("scheduler", "main", 3)).payload == b"second"


async def test_machines_and_cells_do_not_mix(store: SnapshotStore) -> None:
    await store.save(snapshot(1))
    await store.save(snapshot(2, cell="other"))
    assert await store.cycles("scheduler", "main") == (1,)
    assert await store.cycles("scheduler", "other") == (2,)
    assert await store.cycles("quota", "main") == ()


async def test_pruning_keeps_the_newest(store: SnapshotStore) -> None:
    for cycle in range(1, 8):
        await store.save(snapshot(cycle))
    assert await store.prune("scheduler", "main", keep=3) == (4, 3, 2, 1)
    assert await store.cycles("scheduler", "main") == (7, 6, 5)
    with pytest.raises(ValueError, match="at least one"):
        await store.prune("scheduler", "main", keep=0)


@pytest.mark.parametrize("name", ["..", "a/b", "", "Main", "/etc", "a\n"])
async def test_a_name_cannot_leave_the_folder(store: SnapshotStore, name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        await store.save(snapshot(1, cell=name))
    with pytest.raises(ValueError, match="is not a name"):
        await store.cycles(name, "main")


async def test_a_damaged_one_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    for cycle in (1, 2, 3):
        await store.save(snapshot(cycle))
    content = bytearray(path_of(tmp_path, 3).read_bytes())
    content[-40] ^= 1
    path_of(tmp_path, 3).write_bytes(content)
    path_of(tmp_path, 2).write_bytes(path_of(tmp_path, 2).read_bytes()[:-1])
    found = await store.newest("scheduler", "main")
    assert found.snapshot == snapshot(1)
    assert [str(bad).split(" cannot")[0] for bad in found.bad] == [
        "Snapshot scheduler/main/0000000000000003.snapshot",
        "Snapshot scheduler/main/0000000000000002.snapshot",
    ]


async def test_a_snapshot_under_another_name_is_not_used(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    await store.save(snapshot(1))
    path_of(tmp_path, 1).rename(path_of(tmp_path, 5))
    with pytest.raises(SnapshotCorrupt, match="belongs to scheduler/main cycle 1"):
        await store.load("scheduler", "main", 5)


async def test_what_a_saver_that_died_left_is_no_snapshot_and_is_pruned(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    await store.save(snapshot(5))
    folder = path_of(tmp_path, 5).parent
    left = [folder / f"{cycle:016d}.{uuid.uuid4().hex}.new" for cycle in (4, 6)]
    for path in left:
        path.write_bytes(b"half a snap")
    (folder / "notes.txt").write_text("someone's")
    assert await store.cycles("scheduler", "main") == (5,)
    await store.prune("scheduler", "main", keep=2)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [path_of(tmp_path, 5).name, left[1].name, "notes.txt"], "6 may be in work"


async def test_a_store_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SnapshotsUnavailable, match="file"):
        await SnapshotStore(str(tmp_path / "file")).save(snapshot(1))
    with pytest.raises(SnapshotsUnavailable, match="nosuchprotocol"):
        SnapshotStore("nosuchprotocol://x")


async def test_an_error_of_a_stores_own_library_says_that_it_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoCredentials(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentials("Unable to locate credentials")

    store = SnapshotStore(str(tmp_path))
    monkeypatch.setattr(store._fs, "ls", refuse)
    with pytest.raises(SnapshotsUnavailable, match="NoCredentials: Unable to locate credentials"):
        await store.newest("quota", "main")


WHOLE = encode(snapshot(12, b"some state " * 20))


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_found(at: int, change: int) -> None:
    content = bytearray(WHOLE)
    content[at] ^= change
    with pytest.raises(SnapshotCorrupt):
        decode("x", bytes(content))


@given(st.integers(0, len(WHOLE) - 1))
def test_any_cut_is_found(size: int) -> None:
    with pytest.raises(SnapshotCorrupt):
        decode("x", WHOLE[:size])


@given(st.binary(max_size=200))
def test_no_bytes_do_more_harm_than_an_error(content: bytes) -> None:
    for start in (b"", b"YARDSNAP", b"YARDSNAP\x00\x01\x00\x00\x00\x10"):
        sealed = start + content
        for whole in (sealed, sealed + hashlib.sha256(sealed).digest()):
            with pytest.raises(SnapshotCorrupt):
                decode("x", whole)


def sealed(header: object, payload: bytes, version: int = 1) -> bytes:
    text = json.dumps(header).encode()
    content = b"YARDSNAP" + version.to_bytes(2, "big") + len(text).to_bytes(4, "big") + text
    content += zlib.compress(payload)
    return content + hashlib.sha256(content).digest()


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(SnapshotCorrupt, match="format 2, but this Yardmaster knows only 1"):
        decode("x", sealed({}, b"", version=2))


def test_a_header_with_a_wrong_size_unpacks_no_bomb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    header = {"machine": "m", "cell": "c", "cycle": 1, "state_digest": "", "payload_bytes": 10}
    bomb = b"\x00" * 50_000_000
    with pytest.raises(SnapshotCorrupt, match="does not have the size in its header"):
        decode("x", sealed(header, bomb))
    monkeypatch.setattr(snapshots, "MAX_PAYLOAD_BYTES", 1000)
    with pytest.raises(SnapshotCorrupt, match="no valid size"):
        decode("x", sealed({**header, "payload_bytes": 1001}, b"\x00" * 1001))
    for size in (-1, "10", None, 1.5):
        with pytest.raises(SnapshotCorrupt):
            decode("x", sealed({**header, "payload_bytes": size}, b"\x00" * 10))


async def test_calls_of_a_store_that_hangs_end_at_their_deadline_and_are_bounded(
    tmp_path: Path,
) -> None:
    # On a loaded machine, a store that works may take longer than the short deadline.
    await SnapshotStore(str(tmp_path)).save_fence("quota", "main", b"whole")
    store = SnapshotStore(str(tmp_path), deadline_s=0.02)
    fence = tmp_path / "quota" / "main" / "fence.json"
    fence.unlink()
    os.mkfifo(fence)
    for _ in range(MAX_HUNG):
        with pytest.raises(SnapshotsUnavailable, match="no answer within 0"):
            await store.load_fence("quota", "main")
    threads = [one for one in threading.enumerate() if one.name == "snapshots"]
    assert len(threads) == MAX_HUNG
    with pytest.raises(SnapshotsUnavailable, match="4 earlier calls have not ended"):
        await store.cycles("quota", "main")
    # The store answers again.
    writer = os.open(fence, os.O_WRONLY)
    fence.unlink()
    os.close(writer)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    async with asyncio.timeout(30):
        while True:
            try:
                assert await store.cycles("quota", "main") == ()
                break
            except SnapshotsUnavailable:
                await asyncio.sleep(0)
