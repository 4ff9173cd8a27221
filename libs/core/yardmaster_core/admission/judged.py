"""The ids of jobs that were rejected or have ended, each with the digest of its request.

An idempotency key must get the same answer as long as the log exists, so these rows are never
removed: 44 bytes per job. They are divided by id into buckets of sorted rows. A bucket is an
immutable `bytes`, so an insertion copies one bucket, and a dump copies none.
"""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from yardmaster_core.digests import MODULUS, row_hash

ID_BYTES: Final = 12
BODY_BYTES: Final = 32
ROW_BYTES: Final = ID_BYTES + BODY_BYTES
BUCKETS: Final = 4096


class JudgedIds:
    """Digests of requests by job id; a draft keeps only what was added to it."""

    __slots__ = ("_added", "_base", "_buckets", "_count", "_sum")

    def __init__(self) -> None:
        self._base: JudgedIds | None = None
        #: Job id -> digest; only a draft has entries here.
        self._added: dict[str, bytes] = {}
        self._buckets = [b""] * BUCKETS
        self._count = 0
        self._sum = 0

    def __len__(self) -> int:
        return self._count

    def draft(self) -> "JudgedIds":
        """Return an overlay, whose additions do not change this object.

        Add no id to this object while the overlay is used.
        """
        other = JudgedIds.__new__(JudgedIds)
        other._base = self
        other._added = {}
        other._buckets = []
        other._count = self._count
        other._sum = self._sum
        return other

    def get(self, job_id: str) -> bytes | None:
        """The digest of the request that was judged under `job_id`, or None."""
        if self._base is not None:
            return self._added.get(job_id) or self._base.get(job_id)
        key = job_id.encode()
        bucket = self._buckets[crc32(key) % BUCKETS]
        at = _position(bucket, key)
        return bucket[at + ID_BYTES : at + ROW_BYTES] if bucket.startswith(key, at) else None

    def add(self, job_id: str, body: bytes) -> None:
        """Add an id that has no row yet."""
        self._count += 1
        self._sum = (self._sum + _hash(job_id, body)) % MODULUS
        if self._base is not None:
            self._added[job_id] = body
            return
        key = job_id.encode()
        if (len(key), len(body)) != (ID_BYTES, BODY_BYTES):
            raise ValueError(f"{job_id} with a digest of {len(body)} bytes is not a job")
        number = crc32(key) % BUCKETS
        bucket = self._buckets[number]
        at = _position(bucket, key)
        self._buckets[number] = b"".join((bucket[:at], key, body, bucket[at:]))

    def total(self) -> int:
        """The sum of the rows' hashes, modulo 2^256."""
        return self._sum

    def dump(self) -> list[bytes]:
        """Return the buckets; a draft has none."""
        return list(self._buckets)

    def load(self, dumped: Sequence[bytes | str]) -> None:
        """Replace all rows by the rows of a dump; a bucket read from JSON is URL-safe base64.

        Raises:
            ValueError: the value is not a dump.
        """
        buckets = [
            each if isinstance(each, bytes) else b64decode(each, b"-_", validate=True)
            for each in dumped
        ]
        if len(buckets) != BUCKETS or any(len(bucket) % ROW_BYTES for bucket in buckets):
            raise ValueError(f"{len(buckets)} buckets of judged ids, or one with half a row")
        self._buckets = buckets
        self._count = sum(map(len, buckets)) // ROW_BYTES
        self._sum = sum(_hash(*row) for row in _rows(buckets)) % MODULUS


def _rows(buckets: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    for bucket in buckets:
        for at in range(0, len(bucket), ROW_BYTES):
            yield bucket[at : at + ID_BYTES].decode(), bucket[at + ID_BYTES : at + ROW_BYTES]


def _hash(job_id: str, body: bytes) -> int:
    # The text starts with `rejected`, the name of the table that had these rows at first, so that
    # older logs keep their digests.
    return row_hash(f"rejected\0{job_id}\0{body.hex()}")


def _position(bucket: bytes, key: bytes) -> int:
    """The offset of the first row whose id is not below `key`."""
    low, high = 0, len(bucket) // ROW_BYTES
    while low < high:
        middle = (low + high) // 2
        at = middle * ROW_BYTES
        if bucket[at : at + ID_BYTES] < key:
            low = middle + 1
        else:
            high = middle
    return low * ROW_BYTES
