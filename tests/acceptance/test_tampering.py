"""Edits of the log's file: `yard replay verify` names the first changed record.

The log is a real one, of an embedded process that was killed twice. Records are changed, removed
and swapped in the rows of its file, at random places, and the real command checks the copy.
"""

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.promises import DEADLINE_S, Users, all_ended, workload
from tests.support.yard_cli import Dev, until
from yardmaster_cli import main
from yardmaster_eventlog.codec import decode
from yardmaster_eventlog.port import Record
from yardmaster_eventlog.sqlite.headers import pack, unpack
from yardmaster_localcluster.ports import free_ports
from yardmaster_schemas.events.machine import CycleCommittedV1

PROVED = ("requests", "admissions", "node-events", "decisions")
TOPICS = (*PROVED, "details")
JOBS = 9
#: Random places for each topic and kind of change; the nightly run tries more.
PLACES = int(os.environ.get("YARDMASTER_TAMPER_PLACES", "8"))

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("kill")]
#: (partition id, offset), appended_ms, key, value, headers.
Row = tuple[tuple[int, int], int, bytes, bytes | None, bytes]


@dataclass(frozen=True)
class VerifyResult:
    """Exit code and output of the command."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def first(self) -> tuple[str, int]:
        """The record of the first finding."""
        findings = self.report["findings"]
        assert findings, "there are no findings"
        return findings[0]["topic"], findings[0]["offset"]


@dataclass
class Tampered:
    """A copy of a log's file, edited with SQL."""

    path: Path
    database: sqlite3.Connection

    def partition(self, topic: str) -> int:
        return int(
            self.database.execute(
                "SELECT id FROM partitions WHERE topic = ? AND number = 0", (topic,)
            ).fetchone()[0]
        )

    def rows(self, topic: str) -> list[Row]:
        found = self.database.execute(
            "SELECT * FROM records WHERE partition = ? ORDER BY offset", (self.partition(topic),)
        ).fetchall()
        return [((partition, offset), *rest) for partition, offset, *rest in found]

    def write(self, row: Row) -> None:
        self.database.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)", (*row[0], *row[1:])
        )

    def append(self, topic: str, *records: Record) -> None:
        id_ = self.partition(topic)
        for record in records:
            (end,) = self.database.execute(
                "SELECT next FROM partitions WHERE id = ?", (id_,)
            ).fetchone()
            self.write(((id_, end), 0, record.key, record.value, pack(record.headers)))
            self.database.execute("UPDATE partitions SET next = next + 1 WHERE id = ?", (id_,))

    def remove(self, topic: str, place: tuple[int, int], *, shift: bool) -> None:
        delete = "DELETE FROM records WHERE partition = ? AND offset = ?"
        self.database.execute(delete, place)
        if shift:
            for later, *rest in [row for row in self.rows(topic) if row[0] > place]:
                self.database.execute(delete, later)
                self.write(((later[0], later[1] - 1), *rest))  # type: ignore[arg-type]
            self.database.execute(
                "UPDATE partitions SET next = next - 1 WHERE id = ?", (self.partition(topic),)
            )

    def swap(self, one: Row, other: Row) -> None:
        self.write((one[0], *other[1:]))
        self.write((other[0], *one[1:]))


@contextmanager
def tampering(original: Path, folder: Path) -> Any:
    """A fresh copy of the log, to be edited."""
    path = folder / "edited.db"
    shutil.copyfile(original, path)
    with closing(sqlite3.connect(path)) as database, database:
        yield Tampered(path, database)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every kind of job, three terms of each machine, and no open task."""
    folder = tmp_path_factory.mktemp("original")
    dev = Dev(folder, nodes=3, slots=2, port=free_ports(1)[0])
    try:
        jobs = islice(workload(folder / "witness", random.Random(1)), JOBS)
        users = Users(dev, jobs, every_s=0.1)
        users.start()
        for _ in range(2):
            dev.launch()
            until(dev.serves, "it serves", dev.words, limit_s=DEADLINE_S)
            dev.let_live(1.0)
            dev.kill()
        dev.launch()
        until(lambda: not users.is_alive(), "all is submitted", dev.words, limit_s=DEADLINE_S)
        promises = users.done()
        wanted = {task for promise in promises for task in promise.task_ids}
        log = dev.data / "log.db"
        until(lambda: all_ended(log, wanted), "every task has ended", dev.words, limit_s=DEADLINE_S)
        dev.kill()
    finally:
        dev.close()
    copy = folder / "original.db"
    with closing(sqlite3.connect(log)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    return copy


Verify = Callable[[Path], VerifyResult]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """`yard replay verify -o json` on a log."""

    def run(path: Path) -> VerifyResult:
        capsys.readouterr()
        code = main.run(["replay", "verify", "--log", str(path), "-o", "json"])
        said = capsys.readouterr()
        return VerifyResult(code, said.out, said.err)

    return run


@pytest.fixture
def chance() -> random.Random:
    given = os.environ.get("YARDMASTER_TAMPER_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"YARDMASTER_TAMPER_SEED={seed}")
    return random.Random(seed)


def proved_rows(hand: Tampered, verify: Verify, original: Path) -> dict[str, list[Row]]:
    """The rows that a commit or a request proves, by topic."""
    report = verify(original).report
    beyond = {place["topic"]: place["first"] for place in report["unproved"]}
    found = {}
    for topic in PROVED:
        rows = hand.rows(topic)
        found[topic] = rows[: beyond.get(topic, len(rows))]
    named = set()
    for row in found["requests"]:
        data = decode(Record(row[2], row[3], unpack(row[4]))).data
        for name in ("details", "note"):
            if (ref := getattr(data, name, None)) is not None:
                named.add(ref.offset)
    found["details"] = [r for r in hand.rows("details") if offset_of(r) in named]
    return found


@pytest.fixture
def rows(original: Path, tmp_path: Path, verify: Verify) -> dict[str, list[Row]]:
    with tampering(original, tmp_path) as hand:
        return proved_rows(hand, verify, original)


def some(chance: random.Random, rows: list[Row]) -> list[Row]:
    """Random rows, possibly with repetitions."""
    return [chance.choice(rows) for _ in range(PLACES)]


def offset_of(row: Row) -> int:
    return row[0][1]


def assert_first_finding(result: VerifyResult, topic: str, offset: int, what: str) -> None:
    assert result.code == 1, (
        f"{what} of {topic}/{offset}: exit {result.code}: {result.out} {result.err}"
    )
    assert result.first == (topic, offset), (
        f"{what} of {topic}/{offset}: {result.report['findings']}"
    )


def test_the_original_log_is_proved(
    original: Path, verify: Verify, rows: dict[str, list[Row]]
) -> None:
    result = verify(original)
    assert (result.code, result.report["findings"], result.report["promises"]) == (0, [], [])
    assert all(machine["dropped"] == 0 for machine in result.report["machines"])
    assert min(machine["terms"] for machine in result.report["machines"]) >= 2
    assert all(len(rows[topic]) >= JOBS for topic in TOPICS)


@pytest.mark.parametrize("part", ["key", "value", "headers"])
@pytest.mark.parametrize("topic", TOPICS)
def test_the_record_of_a_changed_byte_is_named(
    original: Path,
    tmp_path: Path,
    verify: Verify,
    rows: dict[str, list[Row]],
    chance: random.Random,
    topic: str,
    part: str,
) -> None:
    column = ("key", "value", "headers").index(part) + 2
    first, last = rows[topic][0], rows[topic][-1]
    # In the value of the first request, a changed format is another format and no damage.
    ends = [last] if part == "value" else [first, last]
    for row in [*some(chance, rows[topic]), *ends]:
        content = bytearray(row[column])  # type: ignore[arg-type]
        at = chance.randrange(len(content))
        if part == "headers" and row in ends:
            at = content.index(b"\x1f")  # then the headers cannot be separated
        content[at] ^= chance.randrange(1, 256)
        with tampering(original, tmp_path) as hand:
            hand.write((*row[:column], bytes(content), *row[column + 1 :]))
        result = verify(hand.path)
        was = bytes(row[column] or b"")[max(0, at - 20) : at + 20]
        assert_first_finding(result, topic, offset_of(row), f"byte {at} of the {part} ({was!r})")


@pytest.mark.parametrize("topic", TOPICS)
def test_a_removed_record_is_named(
    original: Path,
    tmp_path: Path,
    verify: Verify,
    rows: dict[str, list[Row]],
    chance: random.Random,
    topic: str,
) -> None:
    # No later record proves the last commit: see the last test of this file.
    there = rows[topic][:-1] if topic == "decisions" else rows[topic]
    for row in [*some(chance, there), there[0], there[-1]]:
        with tampering(original, tmp_path) as hand:
            hand.remove(topic, row[0], shift=True)
        assert_first_finding(
            verify(hand.path), topic, offset_of(row), "removal with a shift of the later records"
        )


@pytest.mark.parametrize("topic", TOPICS)
def test_a_hole_is_named(
    original: Path,
    tmp_path: Path,
    verify: Verify,
    rows: dict[str, list[Row]],
    chance: random.Random,
    topic: str,
) -> None:
    with tampering(original, tmp_path) as hand:
        every = hand.rows(topic)
    inner = [row for row in rows[topic] if row not in (every[0], every[-1])]
    for row in some(chance, inner):
        with tampering(original, tmp_path) as hand:
            hand.remove(topic, row[0], shift=False)
        assert_first_finding(verify(hand.path), topic, offset_of(row), "a hole in place")
    # A hole at an end contradicts the offsets in the file, which is then not opened.
    ends = [every[-1]] if topic == "details" else [every[0], every[-1]]
    for row in ends:
        with tampering(original, tmp_path) as hand:
            hand.remove(topic, row[0], shift=False)
        result = verify(hand.path)
        assert result.code == 1
        assert f"{topic}/0 should {'end' if row is every[-1] else 'start'} at" in result.err


@pytest.mark.parametrize("topic", TOPICS)
def test_the_first_record_of_a_swapped_pair_is_named(
    original: Path,
    tmp_path: Path,
    verify: Verify,
    rows: dict[str, list[Row]],
    chance: random.Random,
    topic: str,
) -> None:
    there = rows[topic]
    neighbours = [
        (i, i + 1) for _ in range(PLACES // 2) for i in [chance.randrange(len(there) - 1)]
    ]
    distant = [sorted(chance.sample(range(len(there)), 2)) for _ in range(PLACES // 2)]
    for one, other in [*neighbours, *distant, (0, len(there) - 1)]:
        with tampering(original, tmp_path) as hand:
            hand.swap(there[one], there[other])
        what = f"a swap with {offset_of(there[other])}"
        assert_first_finding(verify(hand.path), topic, offset_of(there[one]), what)


def test_records_that_no_commit_has_consumed_are_reported_as_unproved(
    original: Path, tmp_path: Path, verify: Verify, rows: dict[str, list[Row]]
) -> None:
    with tampering(original, tmp_path) as hand:
        ends = {topic: len(hand.rows(topic)) for topic in PROVED}
        for topic in ("requests", "node-events"):
            again = hand.rows(topic)[-1]
            record = Record(again[2], again[3], unpack(again[4]))
            hand.append(topic, record, Record(b"main", b"whatever"))
    result = verify(hand.path)
    assert result.code == 0
    unproved = {
        place["topic"]: (place["first"], place["end"]) for place in result.report["unproved"]
    }
    for topic in ("requests", "node-events"):
        assert unproved[topic] == (len(rows[topic]), ends[topic] + 2)


def test_a_log_without_its_last_commit_is_reported_as_unproved_at_its_end(
    original: Path, tmp_path: Path, verify: Verify, rows: dict[str, list[Row]]
) -> None:
    last = rows["decisions"][-1]
    commit = decode(Record(last[2], last[3], unpack(last[4]))).data
    assert isinstance(commit, CycleCommittedV1)
    with tampering(original, tmp_path) as hand:
        hand.remove("decisions", last[0], shift=True)
    result = verify(hand.path)
    unproved = {place["topic"]: place["first"] for place in result.report["unproved"]}
    # Its decisions, if any, and the inputs that it consumed.
    assert commit.decisions + len(commit.inputs) > 0
    for taken in commit.inputs:
        assert unproved[taken.topic] == taken.first
    if commit.decisions:
        assert unproved["decisions"] == offset_of(last) - commit.decisions
