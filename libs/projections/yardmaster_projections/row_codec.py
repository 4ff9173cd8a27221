"""Rows as JSON and back, without the facts and the run that all rows of a job share.

The store has the facts and the run of a job once, under the job's id, and joins them with the rows
of the job when it reads these. Hence all written rows of a job must have the same facts. The
projection ensures that: it changes the facts of a job in all rows of the job in one step.

The codec is pure; `redis` stores the bytes.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from yardmaster_projections import rows
from yardmaster_projections.errors import ViewsDamaged
from yardmaster_projections.rows import JobFacts, JobRow, R, Row, TaskRow
from yardmaster_projections.store import Change, Delete, Put
from yardmaster_schemas.events.details import Run

#: The most bytes of JSON of the shared values that a codec remembers.
MAX_REMEMBERED_BYTES: Final = 32 * 1024 * 1024
#: The largest shared value that a change set contains; it refers to larger values by their digest.
MAX_EMBEDDED_BYTES: Final = 4_096
#: The names of the values that the rows of a kind share with the other rows of their job.
SHARED_BY: Final[Mapping[type[Row], tuple[str, ...]]] = {
    JobRow: ("facts", "run"),
    TaskRow: ("facts",),
}
_SHARED_TYPES: Final[Mapping[str, type]] = {"facts": JobFacts, "run": Run}
#: The adapters that were needed so far.
_ADAPTERS: Final[dict[type, TypeAdapter[Any]]] = {}
_PUT: Final = b"+"
_DELETE: Final = b"-"
_EMBEDDED: Final = b"="
_BY_DIGEST: Final = b"#"


def job_of(key: str) -> str:
    """The job of a row that shares values, by the row's key."""
    return key.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row as JSON, and the values left out of it, by name."""

    body: bytes
    shared: Mapping[str, Any]


class RowCodec:
    """Writes and reads rows; remembers shared values, so that each is coded once."""

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        #: The remembered values by name and JSON, and name and JSON by the identity of the value.
        self._values: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._names: dict[int, tuple[str, bytes]] = {}

    @property
    def remembered_bytes(self) -> int:
        """Bytes of JSON of the values that are remembered."""
        return self._bytes

    def encode(self, row: Row) -> Encoded:
        """A row as JSON."""
        shared: dict[str, Any] = {}
        return Encoded(_adapter(type(row)).dump_json(row, context=shared), shared)

    def decode(self, kind: type[R], body: bytes, shared: Mapping[str, bytes | None]) -> R:
        """The row that `encode` wrote; `shared` are the values left out, as JSON by name.

        Raises: ViewsDamaged.
        """
        context = {name: self.load(name, raw) for name, raw in shared.items() if raw is not None}
        return self._decode(kind, body, context)

    def _decode(self, kind: type[R], body: bytes, context: Mapping[str, Any]) -> R:
        try:
            return cast("R", _adapter(kind).validate_json(body, context=context))
        except ValidationError as error:
            raise _damaged(kind.KIND, error) from None

    # --- shared values --------------------------------------------------------------------------

    def dump(self, name: str, value: Any) -> bytes:
        """A shared value as JSON."""
        known = self._names.get(id(value))
        if known is not None:
            return known[1]
        raw = _adapter(_SHARED_TYPES[name]).dump_json(value)
        self._remember(name, raw, value)
        return raw

    def load(self, name: str, raw: bytes) -> Any:
        """The shared value that `dump` wrote; the same object while it is remembered.

        Raises: ViewsDamaged.
        """
        value = self._values.get((name, raw))
        if value is not None:
            self._values.move_to_end((name, raw))
            return value
        try:
            value = _adapter(_SHARED_TYPES[name]).validate_json(raw)
        except ValidationError as error:
            raise _damaged(name, error) from None
        self._remember(name, raw, value)
        return value

    def _remember(self, name: str, raw: bytes, value: Any) -> None:
        old = self._values.pop((name, raw), None)
        if old is None:
            self._bytes += len(raw)
        else:
            del self._names[id(old)]
        self._values[name, raw] = value
        self._names[id(value)] = (name, raw)
        while self._bytes > self._max_bytes and len(self._values) > 1:
            (_, gone), value = self._values.popitem(last=False)
            self._bytes -= len(gone)
            del self._names[id(value)]

    # --- change sets ----------------------------------------------------------------------------

    def encode_set(self, changes: Iterable[tuple[Change, Encoded]]) -> bytes:
        """Encode changes in order, one on each line, after the lines of its shared values."""
        lines: list[bytes] = []
        last: dict[tuple[str, str], Any] = {}
        for change, row in changes:
            job = job_of(change.key)
            for name, value in row.shared.items():
                if last.get((name, job)) is value:
                    continue
                last[name, job] = value
                raw, sign = self.dump(name, value), _EMBEDDED
                if len(raw) > MAX_EMBEDDED_BYTES:
                    raw, sign = _digest(raw), _BY_DIGEST
                lines.append(b"%b%b %b %b" % (sign, name.encode(), job.encode(), raw))
            sign = _PUT if isinstance(change, Put) else _DELETE
            job_name = job.encode() if row.shared else b""
            lines.append(b"%b%b %b %b" % (sign, change.kind.encode(), job_name, row.body))
        return b"\n".join(lines)

    def references(self, payload: bytes) -> list[tuple[str, str]]:
        """The name and the job of each value to which a change set refers by digest."""
        found: dict[tuple[str, str], None] = {}
        for line in payload.split(b"\n"):
            if line.startswith(_BY_DIGEST):
                name, job, _ = line[1:].decode().split(" ")
                found[name, job] = None
        return list(found)

    def decode_set(
        self, payload: bytes, stored: Mapping[tuple[str, str], bytes | None]
    ) -> tuple[Change, ...] | None:
        """The changes of a set, given the `references` as they are stored now.

        None if such a value has changed since then: the set cannot be read any more.

        Raises: ViewsDamaged.
        """
        changes: list[Change] = []
        shared: dict[bytes, dict[str, Any]] = {}
        for line in payload.split(b"\n"):
            sign, (head, job, body) = line[:1], line[1:].split(b" ", 2)
            name = head.decode()
            if sign in (_EMBEDDED, _BY_DIGEST):
                raw: bytes | None = body
                if sign == _BY_DIGEST:
                    raw = stored.get((name, job.decode()))
                    if raw is None or _digest(raw) != body:
                        return None
                shared.setdefault(job, {})[name] = self.load(name, cast("bytes", raw))
                continue
            kind = _kinds().get(name)
            if kind is None:
                raise ViewsDamaged(kind=name, found="no such kind of row")
            row = self._decode(kind, body, shared.get(job, {}))
            changes.append(Put(row) if sign == _PUT else Delete(row))
        return tuple(changes)


def _damaged(kind: str, error: ValidationError) -> ViewsDamaged:
    found = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    return ViewsDamaged(kind=kind, found=f"{where}: {found['msg']}")


def _digest(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=16).hexdigest().encode()


def _adapter(kind: type) -> TypeAdapter[Any]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found


@cache
def _kinds() -> dict[str, type[Row]]:
    """The rows that watches report, by name."""
    found = (one for one in vars(rows).values() if isinstance(one, type) and issubclass(one, Row))
    return {one.KIND: one for one in found if one is not Row}
