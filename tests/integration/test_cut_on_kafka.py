"""`yard log cut` on Kafka: one cell of two, interrupted at each step, completed with `--resume`."""

import asyncio
import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_broker import KafkaBroker
from tests.support.yard_cli import CommandResult
from yardmaster_cli.log import cut
from yardmaster_cli.main import run
from yardmaster_eventlog.errors import LogUnavailable, OffsetGone
from yardmaster_eventlog.kafka import cut as kafka_cut
from yardmaster_eventlog.kafka.log import KafkaLog
from yardmaster_eventlog.kafka.settings import KafkaSettings
from yardmaster_eventlog.port import Partition, Record
from yardmaster_eventlog.sqlite.file import LogFile
from yardmaster_runtime.clock import SystemClock
from yardmaster_schemas.topics import (
    CUTS,
    DECISIONS,
    DETAILS,
    INPUT_ORDER,
    TOPICS,
    Topic,
    assignments,
)

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("cut")]

KEPT = Path(__file__).parents[1] / "data" / "logs" / "rules-1" / "priority.db.xz"
#: The cell that is cut has the first partition of each topic.
CELLS, CUT, OTHER = "main,lab", 0, 1
ASSIGNED = assignments("n1")
ASSIGNMENT = Record(b"n1", b"an assignment")
Yard = Callable[..., CommandResult]
Interruption = Callable[[pytest.MonkeyPatch], None]


class Log:
    """A log on Kafka with the same records for two cells, and an assignment for each."""

    def __init__(self, broker: KafkaBroker, kept: Path) -> None:
        self.url = f"kafka://{broker.bootstrap}"
        self._settings = KafkaSettings(bootstrap=broker.bootstrap)
        asyncio.run(self._fill(kept))

    async def _fill(self, kept: Path) -> None:
        file = LogFile(kept, create=False, lock_timeout_s=5.0)
        log = await KafkaLog.open(self._settings, SystemClock())
        try:
            await log.create_topics([*TOPICS.values(), ASSIGNED], 2)
            for number in (OTHER, CUT):
                await log.append(Partition(ASSIGNED.name, number), [ASSIGNMENT])
                for topic in (*INPUT_ORDER, DETAILS.name):
                    stored = file.find(Partition(topic))
                    records = [one.record for one in file.read(stored, 0, 100_000)]
                    for first in range(0, len(records), 100):
                        await log.append(Partition(topic, number), records[first : first + 100])
        finally:
            await log.close()
            file.close()

    def records(self, number: int, topics: Sequence[str]) -> dict[str, list[Record]]:
        """The records of a cell."""

        async def read() -> dict[str, list[Record]]:
            log = await KafkaLog.open(self._settings, SystemClock())
            try:
                return {topic: await _all(log, Partition(topic, number)) for topic in topics}
            finally:
                await log.close()

        return asyncio.run(read())

    def append(self, partition: Partition, record: Record) -> None:
        async def append() -> None:
            log = await KafkaLog.open(self._settings, SystemClock())
            try:
                await log.append(partition, [record])
            finally:
                await log.close()

        asyncio.run(append())


async def _all(log: KafkaLog, at: Partition) -> list[Record]:
    records: list[Record] = []
    while found := await log.read(at, len(records)):
        records += [one.record for one in found]
    return records


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    folder = tmp_path_factory.mktemp("cut")
    kept = folder / "kept.db"
    kept.write_bytes(lzma.decompress(KEPT.read_bytes()))
    with KafkaBroker(folder / "kafka") as broker:
        yield Log(broker, kept)


@pytest.fixture
def yard(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Yard:
    """Runs commands on the cell that is cut, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YARD_CELLS", CELLS)
    monkeypatch.setattr(cut, "QUIET_S", 0.1)

    def run_here(*words: str) -> CommandResult:
        capsys.readouterr()
        code = run([*words, "--log", log.url, "--cell", "main"])
        said = capsys.readouterr()
        return CommandResult(code, said.out, said.err)

    return run_here


async def interrupted(*_: Any) -> None:
    raise LogUnavailable(found="interrupted")


def after_a_topic_was_deleted(patch: pytest.MonkeyPatch) -> None:
    create = KafkaLog.create_topics

    async def but_none_again(log: KafkaLog, topics: Sequence[Topic], count: int = 1) -> None:
        if list(topics) != [CUTS]:
            await interrupted()
        await create(log, topics, count)

    patch.setattr(KafkaLog, "create_topics", but_none_again)


def after_one_batch_of_a_topic(patch: pytest.MonkeyPatch) -> None:
    fill = kafka_cut._fill

    async def one_batch(log: Any, file: LogFile, at: Partition, end: int, limit: int) -> None:
        await fill(log, file, at, min(end, 3), limit)
        await interrupted()

    patch.setattr(kafka_cut, "_fill", one_batch)


def before_the_assignments_are_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kafka_cut, "_empty", interrupted)


def before_the_cut_is_recorded(patch: pytest.MonkeyPatch) -> None:
    append = KafkaLog.append

    async def but_no_mark(log: KafkaLog, at: Partition, batch: Sequence[Record]) -> int:
        if at.topic == CUTS.name:
            await interrupted()
        return await append(log, at, batch)

    patch.setattr(KafkaLog, "append", but_no_mark)


INTERRUPTIONS = (
    after_a_topic_was_deleted,
    after_one_batch_of_a_topic,
    before_the_assignments_are_removed,
    before_the_cut_is_recorded,
)


def test_a_cut_of_one_cell_is_completed_after_an_interruption_at_each_step(
    log: Log, yard: Yard, tmp_path: Path
) -> None:
    others = log.records(OTHER, [*INPUT_ORDER, ASSIGNED.name])
    planned = yard("log", "cut", "--to", "last", "--dry-run", "-o", "json")
    cycle = json.loads(planned.out)["cycle"]
    for generation, interrupt in enumerate(INTERRUPTIONS, 1):
        name, cycle = interrupt.__name__, cycle * 3 // 4
        before = log.records(CUT, INPUT_ORDER)
        copy = tmp_path / f"{name}.db"
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch)
            said = yard("log", "cut", "--to", f"cycle:{cycle}", "--yes", "--copy", str(copy))
        assert "interrupted" in said.err, name
        assert said.code != 0, name
        assert len(log.records(CUT, [CUTS.name])[CUTS.name]) == generation - 1, name

        again = yard("log", "cut", "--resume", str(copy))
        assert again.code == 0, (name, again.err)
        assert len(log.records(CUT, [CUTS.name])[CUTS.name]) == generation, name
        after = log.records(CUT, INPUT_ORDER)
        for topic, records in after.items():
            assert records == before[topic][: len(records)], (name, topic)
        assert len(after[DECISIONS.name]) < len(before[DECISIONS.name]), name
        verified = yard("replay", "verify")
        assert verified.code == 0, (name, verified.out, verified.err)
        whole = json.loads(yard("log", "cut", "--to", "last", "--dry-run", "-o", "json").out)
        assert (whole["cycle"], whole["generation"]) == (cycle, generation + 1), name
        assert log.records(OTHER, [*INPUT_ORDER, ASSIGNED.name]) == others, name
        with pytest.raises(OffsetGone):
            log.records(CUT, [ASSIGNED.name])
        assert yard("log", "cut", "--resume", str(copy)).code == 0, f"{name}: twice"


def test_a_log_is_not_cut_while_a_service_of_another_cell_writes_to_it(
    log: Log, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are replaced with the partitions of all cells."""
    written = Partition("requests", OTHER)
    (record,) = log.records(OTHER, ["requests"])["requests"][:1]
    before = log.records(CUT, INPUT_ORDER)
    ends, back_up = cut._ends, kafka_cut.back_up
    looked: list[int] = []

    async def meanwhile(source: KafkaLog, numbers: Sequence[int]) -> dict[Partition, int]:
        if looked:
            await source.append(written, [record])
        looked.append(1)
        return await ends(source, numbers)

    with monkeypatch.context() as patch:
        patch.setattr(cut, "_ends", meanwhile)
        said = yard("log", "cut", "--to", "cycle:1", "--yes")
    assert said.code == 103
    assert "services still write" in said.err
    assert "requests/1 changed" in said.err

    async def later(*args: Any) -> None:
        await back_up(*args)
        await asyncio.to_thread(log.append, Partition(DECISIONS.name, OTHER), record)

    with monkeypatch.context() as patch:
        patch.setattr(kafka_cut, "back_up", later)
        said = yard("log", "cut", "--to", "cycle:1", "--yes", "--copy", str(tmp_path / "copy.db"))
    assert said.code != 0
    assert "decisions/1 grew after the copy was made" in said.err
    assert log.records(CUT, INPUT_ORDER)[DECISIONS.name] == before[DECISIONS.name]
