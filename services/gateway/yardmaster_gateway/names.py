"""Names in paths: what is to be made must be named as the log allows."""

import re
from typing import Final

from yardmaster_gateway import errors

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


def valid_name(name: str, what: str) -> str:
    """A name that the log takes.

    Raises:
        NotFound: there can be no such thing.
    """
    if _NAME.fullmatch(name) is None:
        raise errors.NotFound(what=f"{what} {name[:64]!r}: names are [a-z0-9._-], 63 at most")
    return name
