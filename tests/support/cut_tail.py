"""Cuts the end of a partition off at a stopped broker, as a power loss does without a flush."""

from pathlib import Path

from yardmaster_eventlog.port import Partition

#: A record batch starts with its first offset and the length of the rest (8 and 4 bytes).
PREFIX = 12


def cut_tail(kafka: Path, partition: Partition, end: int) -> int:
    """Remove the batches from the one with offset `end` on; return the first removed offset.

    `kafka` is the folder of a `KafkaBroker` that was killed, not stopped.
    """
    folder = kafka / "data" / f"{partition.topic}-{partition.number}"
    segment = max(path for path in folder.glob("*.log") if int(path.stem) <= end)
    content = segment.read_bytes()
    at, first = 0, int(segment.stem)
    while at + PREFIX <= len(content):
        length = int.from_bytes(content[at + 8 : at + PREFIX], "big")
        offset = int.from_bytes(content[at : at + 8], "big")
        # The number of the batch's last record, relative to its first.
        last = offset + int.from_bytes(content[at + 23 : at + 27], "big")
        if length == 0 or last >= end:
            break
        at, first = at + PREFIX + length, last + 1
    with segment.open("r+b") as file:
        file.truncate(at)
    for path in folder.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex") or (
            path.stem.isdigit() and int(path.stem) > first
        ):
            path.unlink()
    return first
