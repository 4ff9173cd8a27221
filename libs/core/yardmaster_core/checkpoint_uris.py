"""Whether the URI of a checkpoint is within one of the prefixes that a project allows.

The URI and the prefix are compared segment by segment, as text and with case. The program that
opens the URI may accept other spellings of the same place, and to refuse these is safe. A prefix
ends at the end of a segment: `s3://runs/nlp` allows `s3://runs/nlp/1` and not `s3://runs/nlp2`. A
URI that another program could take for a place outside the prefix is refused. Such a URI has a
segment `.` or `..`, plain or percent-encoded, or an encoded slash, backslash, `%`, control
character or non-ASCII character.
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote_to_bytes

#: Printable ASCII without `%`, slash and backslash.
_DECODED: Final = re.compile(rb"[ -$&-.0-\[\]-~]*")


def is_within(uri: str, prefixes: Collection[str]) -> bool:
    """Whether a checkpoint may be at `uri`; without prefixes it may be anywhere."""
    if not prefixes:
        return True
    found = segments(uri)
    if found is None:
        return False
    return any(found[: len(allowed)] == allowed for allowed in map(_allowed, prefixes) if allowed)


def segments(uri: str) -> list[str] | None:
    """Return the scheme, the host and the segments of the path; None if one is ambiguous."""
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    for part in parts:
        decoded = unquote_to_bytes(part)
        if decoded in (b".", b"..") or _DECODED.fullmatch(decoded) is None:
            return None
    return [scheme, *parts]


def _allowed(prefix: str) -> list[str] | None:
    """Return the segments of a prefix without a slash at its end; None if one is ambiguous."""
    found = segments(prefix)
    if found is not None and found[-1] == "" and len(found) > 2:
        found.pop()  # a slash at the end
    return found
