"""Rows as bytes and back: JSON, with what many rows share (a job's facts, its run) written once.

A row's bytes are the names of the parts that it shares, a line break, and its JSON. A part is named
by the digest of its own JSON, so that equal parts are one, and a part that is known is never read
again. Coding is pure; who stores rows and parts is `redis`.
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
from yardmaster_projections.rows import R, Row
from yardmaster_projections.store import Change, Delete, Put

#: What a codec remembers of parts that it wrote or read, as JSON.
MAX_CACHED_BYTES: Final = 32 * 1024 * 1024
#: Larger parts do not travel inside a change set.
MAX_EMBEDDED_BYTES: Final = 4_096
_NAME_BYTES: Final = 16
_PUT: Final = b"+"
_DELETE: Final = b"-"
_PART: Final = b"="
#: Of each kind of row; made when it is first needed.
_ADAPTERS: Final[dict[type[Row], TypeAdapter[Any]]] = {}


class MissingPart(Exception):
    """A part of a row is not at hand."""


@dataclass(frozen=True, slots=True)
class Part:
    """What rows share: its name, JSON, value, and the parts that it shares in turn."""

    name: str
    body: bytes
    value: Any
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row as bytes, and the parts that it needs."""

    body: bytes
    parts: tuple[str, ...]

    @property
    def raw(self) -> bytes:
        """What is stored."""
        return b"%b\n%b" % (",".join(self.parts).encode(), self.body)


class RowCodec:
    """Writes and reads rows; remembers parts, newest first, up to `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._parts: OrderedDict[str, Part] = OrderedDict()
        #: Of values that were written: their part, by identity. The part keeps the value alive.
        self._written: dict[int, Part] = {}
        #: Bodies of parts that came with what is read now.
        self._given: Mapping[str, bytes] = {}
        self._used: dict[str, None] = {}

    # --- rows -----------------------------------------------------------------------------------

    def encode(self, row: Row) -> Encoded:
        """A row as bytes."""
        self._used = {}
        body = _adapter(type(row)).dump_json(row, context=self)
        return Encoded(body, tuple(self._used))

    def decode(self, kind: type[R], raw: bytes, given: Mapping[str, bytes] | None = None) -> R:
        """The row that `raw` holds; `given` are bodies of parts.

        Raises:
            MissingPart: one of `needs(raw)` is neither remembered nor given.
            ViewsDamaged: these are no bytes of ours, or of another version of Yardmaster.
        """
        return self._read(kind, raw.partition(b"\n")[2], given)

    def needs(self, raw: bytes) -> list[str]:
        """The parts of a stored row that are not remembered."""
        names = raw.partition(b"\n")[0]
        if not names:
            return []
        return [name for name in names.decode().split(",") if name not in self._parts]

    def body_of(self, name: str) -> bytes:
        """The JSON of a part that a row just written needs."""
        return self._parts[name].body

    def _read(self, kind: type[R], body: bytes, given: Mapping[str, bytes] | None) -> R:
        self._given = given or {}
        self._used = {}
        try:
            return cast("R", _adapter(kind).validate_json(body, context=self))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in found["loc"])
            raise ViewsDamaged(kind=kind.KIND, found=f"{where}: {found['msg']}") from None
        finally:
            self._given = {}

    # --- change sets ----------------------------------------------------------------------------

    def encode_set(self, changes: Iterable[tuple[Change, Encoded]]) -> bytes:
        """Changes in order, one a line, after those of their parts that are small."""
        parts: dict[str, bytes] = {}
        lines: list[bytes] = []
        for change, row in changes:
            for name in row.parts:
                if name not in parts and len(body := self.body_of(name)) <= MAX_EMBEDDED_BYTES:
                    parts[name] = body
            sign = _PUT if isinstance(change, Put) else _DELETE
            names = ",".join(row.parts).encode()
            lines.append(b"%b%b %b %b" % (sign, change.kind.encode(), names, row.body))
        return b"\n".join(
            [*(b"%b%b %b" % (_PART, name.encode(), body) for name, body in parts.items()), *lines]
        )

    def needs_of_set(self, payload: bytes) -> list[str]:
        """The parts of a change set that it does not bring and that are not remembered."""
        found: dict[str, None] = {}
        brought: set[str] = set()
        for line in payload.split(b"\n"):
            if line.startswith(_PART):
                brought.add(line[1:].partition(b" ")[0].decode())
            elif names := line.split(b" ", 2)[1]:
                found |= dict.fromkeys(names.decode().split(","))
        return [name for name in found if name not in brought and name not in self._parts]

    def decode_set(self, payload: bytes, given: Mapping[str, bytes]) -> tuple[Change, ...]:
        """The changes that `encode_set` wrote.

        Raises: MissingPart, ViewsDamaged.
        """
        parts = dict(given)
        changes: list[Change] = []
        for line in payload.split(b"\n"):
            if line.startswith(_PART):
                name, _, body = line[1:].partition(b" ")
                parts[name.decode()] = body
                continue
            head, _, body = line.split(b" ", 2)
            kind = _kinds().get(head[1:].decode())
            if kind is None:
                raise ViewsDamaged(kind=head[1:].decode(), found="no such kind of row")
            row = self._read(kind, body, parts)
            changes.append(Put(row) if head.startswith(_PUT) else Delete(row))
        return tuple(changes)

    # --- parts (called while a row is written or read) --------------------------------------------

    def keep(self, value: Any, adapter: TypeAdapter[Any]) -> str:
        """The name of a part, which is remembered until `trim`."""
        part = self._written.get(id(value))
        if part is None:
            outer, self._used = self._used, {}
            body = adapter.dump_json(value, context=self)
            name = blake2b(body, digest_size=_NAME_BYTES).hexdigest()
            part = Part(name, body, value, tuple(self._used))
            self._used = outer
            self._remember(part)
        self._use(part)
        return part.name

    def load(self, name: str, adapter: TypeAdapter[Any]) -> Any:
        """The part of a name."""
        part = self._parts.get(name)
        if part is None:
            body = self._given.get(name)
            if body is None:
                raise MissingPart(name)
            outer, self._used = self._used, {}
            value = adapter.validate_json(body, context=self)
            part = Part(name, body, value, tuple(self._used))
            self._used = outer
            self._remember(part)
        else:
            self._parts.move_to_end(name)
        self._use(part)
        return part.value

    def _use(self, part: Part) -> None:
        self._used.update(dict.fromkeys(part.parts))
        self._used[part.name] = None

    def _remember(self, part: Part) -> None:
        old = self._parts.pop(part.name, None)
        if old is not None:
            self._forget(old)
        self._parts[part.name] = part
        self._written[id(part.value)] = part
        self._bytes += len(part.body)

    @property
    def remembered(self) -> int:
        """Bytes of JSON of the parts that are remembered."""
        return self._bytes

    def trim(self) -> None:
        """Forget the oldest parts beyond what may be remembered."""
        while self._bytes > self._max_bytes and len(self._parts) > 1:
            self._forget(self._parts.popitem(last=False)[1])

    def _forget(self, part: Part) -> None:
        self._bytes -= len(part.body)
        self._written.pop(id(part.value), None)


def _adapter(kind: type[Row]) -> TypeAdapter[Any]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found


@cache
def _kinds() -> dict[str, type[Row]]:
    """The rows that watches report, by name."""
    found = (one for one in vars(rows).values() if isinstance(one, type) and issubclass(one, Row))
    return {one.KIND: one for one in found if one is not Row}
