"""The last records that a store of views contains, as notes in the store.

The writer of the views stores them with the rows. A writer and a gateway that start compare them
with the log (`fence.check_marks`): a log that lost its end lacks that record, or has a different
record at its offset.
"""

from collections.abc import Mapping
from typing import Any, Final

from yardmaster_core.commit import CommitReader
from yardmaster_eventlog.port import Partition, StoredRecord
from yardmaster_runtime.cycle_reader import digest_of
from yardmaster_runtime.fence import Mark, Marks
from yardmaster_schemas.topics import ADMISSIONS, DECISIONS, NODE_EVENTS, REQUESTS

_LAST_READ: Final = "last read of"


def last_read(stored: StoredRecord | None) -> Mapping[str, Any]:
    """Return the note of the last record of `requests` or `node-events` that is projected."""
    if stored is None:
        return {}
    return {
        f"{_LAST_READ} {stored.partition.topic}": [stored.offset, digest_of(stored.record).hex()]
    }


def marks_of(notes: Mapping[str, Any], number: int) -> Marks:
    """Return the last record of each topic that a store with these notes contains.

    `number`: the cell's partition. The notes of a machine's topic are the dump of its reader.
    """
    marks: dict[Partition, Mark] = {}
    for topic in (ADMISSIONS.name, DECISIONS.name):
        if (dump := notes.get(topic)) is not None:
            reader = CommitReader.load(dump)
            marks[Partition(topic, number)] = Mark(reader.next - 1, reader.head)
    for topic in (REQUESTS.name, NODE_EVENTS.name):
        if (last := notes.get(f"{_LAST_READ} {topic}")) is not None:
            offset, digest = last
            marks[Partition(topic, number)] = Mark(offset, digest)
    return marks
