"""The ledger: one contract for its adapters, and what the file says of damage."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yardmaster_node_agent.agent_state import (
    ENTRY,
    Assignment,
    Book,
    Entry,
    Exit,
    Forgotten,
    Head,
    Offer,
    Piece,
    ProcessIdentity,
    Reached,
    Replica,
    ReplicaKey,
    ReplicaState,
    StopOrder,
)
from yardmaster_node_agent.errors import LedgerCorrupt, LedgerInUse
from yardmaster_node_agent.ledger import FileLedger, Ledger, MemoryLedger, fold, line, parse
from yardmaster_schemas.events.decisions import Checkpoint
from yardmaster_schemas.events.expiring import Stream
from yardmaster_schemas.events.requests import DetailsRef

OFFER = Offer(pool="default", node_type="generic", gpus=4, cpu_milli=8000, memory_mib=1000)
HEAD = Head(node="n1", incarnation="0123456789ab", epoch=1, offer=OFFER, api_port=4000)


def assignment(index: int = 0, *, decision: int = 7) -> Assignment:
    return Assignment(
        key=ReplicaKey(f"4kq7w2mz9c1f.{index}", 1, 0),
        cause="scheduler/main.abcdefabcdef/3/9",
        decision=decision,
        project="nlp",
        pool="default",
        tasks=10,
        replicas=1,
        slots=(0, 1),
        gpu_milli=500,
        cpu_milli=1000,
        memory_mib=64,
        master_addr="127.0.0.1",
        master_port=None,
        details=DetailsRef(offset=3, digest="0" * 64),
        checkpoint=Checkpoint(uri="s3://a/b", step=3),
        grace_s=60,
    )


def replica(index: int = 0) -> Replica:
    made = Replica(assignment=assignment(index), token="f" * 64)
    made.state = ReplicaState.EXITED
    made.identity = ProcessIdentity(
        boot_id="3f0c6a52-8d11-4b0e-9a6c-5f2d1e0b7c44", pid=4711, started=12_345
    )
    made.stop = StopOrder(code="priority", deadline_ms=5, cause=None, signalled=True)
    made.exit = Exit(signal=9)
    made.output.last = (Piece(stream=Stream.STDOUT, start=0, end=9, seq=0),)
    return made


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ledger]:
    """Gives the ledger as its next owner finds it."""
    if request.param == "memory":
        ledger = MemoryLedger()
        return lambda: ledger
    return lambda: FileLedger(tmp_path / "node" / "ledger")


def test_a_new_ledger_holds_nothing(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    assert ledger.load() is None
    ledger.close()


def test_what_was_written_is_there_for_the_next_owner(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    assert ledger.begin(HEAD) == Book(HEAD)
    ledger.write([replica(0), replica(1)])
    ledger.write([Reached(offset=17)], durable=False)
    newer = replica(0)
    newer.state = ReplicaState.RELEASED
    ledger.write([newer])
    ledger.close()
    ledger = reopen()
    book = ledger.load()
    assert book == Book(HEAD, reached=17, replicas={newer.key: newer, replica(1).key: replica(1)})
    ledger.close()


def test_later_changes_of_an_entry_do_not_reach_what_was_written(
    reopen: Callable[[], Ledger],
) -> None:
    ledger = reopen()
    ledger.load()
    ledger.begin(HEAD)
    changing = replica()
    ledger.write([changing])
    changing.done = True
    ledger.close()
    ledger = reopen()
    book = ledger.load()
    assert book is not None
    assert not book.replicas[changing.key].done
    ledger.close()


def test_a_new_ledger_takes_the_place_of_the_old_one(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    ledger.begin(HEAD)
    ledger.write([replica()])
    newer = replace(HEAD, incarnation="ba9876543210", epoch=2)
    ledger.begin(newer)
    ledger.write([Reached(offset=3)])
    ledger.close()
    ledger = reopen()
    assert ledger.load() == Book(newer, reached=3)
    ledger.close()


def test_what_was_forgotten_is_known_as_a_repeat(reopen: Callable[[], Ledger]) -> None:
    ledger = reopen()
    ledger.load()
    book = ledger.begin(HEAD)
    for entry in (replica(0), Forgotten(key=replica(0).key, through=7)):
        ledger.write([entry])
        book.take(entry)
    ledger.close()
    ledger = reopen()
    assert ledger.load() == book
    assert book.repeated(assignment(0))
    assert book.repeated(assignment(5, decision=6))
    assert not book.repeated(assignment(5, decision=8))
    assert not book.repeated(assignment(5, decision=-1)), "the relay did not say which it is"
    ledger.close()


def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    first, second = FileLedger(tmp_path / "ledger"), FileLedger(tmp_path / "ledger")
    first.load()
    with pytest.raises(LedgerInUse):
        second.load()
    first.close()
    assert second.load() is None
    second.close()


def test_a_memory_ledger_loses_in_a_crash_what_was_not_durable() -> None:
    ledger = MemoryLedger()
    ledger.load()
    ledger.begin(HEAD)
    ledger.write([Reached(offset=1)])
    ledger.write([Reached(offset=2)], durable=False)
    ledger.crash()
    assert ledger.load() == Book(HEAD, reached=1)


def test_a_ledger_that_grew_is_written_anew_and_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = FileLedger(path, spare_lines=10)
    ledger.load()
    ledger.begin(HEAD)
    ledger.write([replica(0), Forgotten(key=ReplicaKey("4kq7w2mz9c1f.9", 1, 0), through=4)])
    for offset in range(1000):
        ledger.write([Reached(offset=offset)], durable=False)
    ledger.write([replica(1)])
    assert path.read_bytes().count(b"\n") < 20
    ledger.close()
    ledger = FileLedger(path)
    book = ledger.load()
    assert book is not None
    assert (book.reached, book.forgotten_through, len(book.replicas)) == (999, 4, 2)
    ledger.close()


ENTRIES: list[Entry] = [HEAD, replica(0), Reached(offset=5), replica(1), Reached(offset=6)]
RAW = b"".join(line(number, entry) for number, entry in enumerate(ENTRIES))


@given(st.integers(min_value=0, max_value=len(RAW)))
def test_a_tail_torn_anywhere_leaves_every_whole_line(length: int) -> None:
    entries, good = parse("ledger", RAW[:length])
    assert good == RAW.rfind(b"\n", 0, length) + 1
    assert entries == ENTRIES[: RAW[:length].count(b"\n")]


@given(
    at=st.integers(min_value=0, max_value=len(RAW) - 1),
    flip=st.integers(min_value=1, max_value=255),
)
def test_a_changed_byte_is_found_or_lies_in_the_last_line(at: int, flip: int) -> None:
    raw = bytearray(RAW)
    raw[at] ^= flip
    try:
        entries, _ = parse("ledger", bytes(raw))
    except LedgerCorrupt:
        return
    last = RAW.rfind(b"\n", 0, -1) + 1
    assert at >= last, "damage in the middle was taken for a torn tail"
    assert entries == ENTRIES[:-1]


@given(st.integers(min_value=1, max_value=len(ENTRIES) - 2))
def test_a_removed_line_is_found(gone: int) -> None:
    lines = RAW.splitlines(keepends=True)
    del lines[gone]
    with pytest.raises(LedgerCorrupt, match="missing"):
        parse("ledger", b"".join(lines))


def test_a_torn_tail_is_cut_off_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(RAW + b'0badc0de 5 {"kind":"rea')
    ledger = FileLedger(path)
    assert ledger.load() is not None
    ledger.write([Reached(offset=7)])
    ledger.close()
    ledger = FileLedger(path)
    book = ledger.load()
    assert book is not None
    assert book.reached == 7
    ledger.close()


@pytest.mark.parametrize("content", [b"hello\n", b"SQLite format 3\0\n\n", b"[]\n" * 3])
def test_a_file_that_is_no_ledger_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    ledger = FileLedger(path)
    with pytest.raises(LedgerCorrupt):
        ledger.load()
    ledger.close()
    assert path.read_bytes() == content


def test_a_ledger_begins_with_its_node() -> None:
    with pytest.raises(LedgerCorrupt, match="does not begin"):
        fold("ledger", [Reached(offset=1)])


def test_every_entry_reads_back_as_it_was() -> None:
    for entry in [*ENTRIES, Forgotten(key=ReplicaKey("4kq7w2mz9c1f.9", 1, 0), through=4)]:
        assert ENTRY.validate_json(ENTRY.dump_json(entry)) == entry
