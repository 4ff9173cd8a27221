"""The ledger: one contract for its adapters, and what the file says of damage."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ledgers import HEAD, replica
from yardmaster_node_agent.agent_state import (
    ENTRY,
    AgentState,
    Entry,
    Forgotten,
    Reached,
    ReplicaKey,
    dump,
)
from yardmaster_node_agent.errors import LedgerCorrupt, LedgerInUse
from yardmaster_node_agent.ledger import FileLedger, MemoryLedger, fold, line, parse


def test_a_ledger_has_one_owner(tmp_path: Path) -> None:
    first, second = FileLedger(tmp_path / "ledger"), FileLedger(tmp_path / "ledger")
    first.load()
    with pytest.raises(LedgerInUse):
        second.load()
    first.close()
    assert second.load() is None
    second.close()


def test_a_copied_ledger_has_another_place_and_a_compacted_one_the_same(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path / "node" / "ledger", spare_lines=2)
    ledger.load()
    place = ledger.place
    ledger.begin(HEAD)
    for offset in range(10):
        ledger.write([Reached(offset=offset)])
    shutil.copytree(tmp_path / "node", tmp_path / "copy")
    ledger.close()
    copy = FileLedger(tmp_path / "copy" / "ledger")
    assert copy.load() == ledger.load()
    assert (ledger.place == place, copy.place == place) == (True, False)
    copy.close()
    ledger.close()


def test_a_memory_ledger_loses_in_a_crash_what_was_not_durable() -> None:
    ledger = MemoryLedger()
    ledger.load()
    ledger.begin(HEAD)
    ledger.write([Reached(offset=1)])
    ledger.write([Reached(offset=2)], durable=False)
    ledger.crash()
    assert ledger.load() == AgentState(HEAD, reached=1)


def test_a_ledger_that_grew_is_compacted_with_the_same_content(tmp_path: Path) -> None:
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
    state = ledger.load()
    assert state is not None
    assert (state.reached, state.forgotten_through, len(state.replicas)) == (999, 4, 2)
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
def test_a_changed_byte_is_found_or_is_in_the_last_line(at: int, flip: int) -> None:
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


def test_a_torn_tail_is_truncated_before_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(RAW + b'0badc0de 5 {"kind":"rea')
    ledger = FileLedger(path)
    assert ledger.load() is not None
    ledger.write([Reached(offset=7)])
    ledger.close()
    ledger = FileLedger(path)
    state = ledger.load()
    assert state is not None
    assert state.reached == 7
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
        assert ENTRY.validate_json(dump(entry)) == entry
