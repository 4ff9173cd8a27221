"""Check names in paths: an object can be created only with a name that the log's schemas allow."""

import re
from typing import Final

from yardmaster_gateway import errors

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


def valid_name(name: str, what: str) -> str:
    """Return `name` if it is a valid name for an object of kind `what`.

    Raises:
        NotFound: no object can have this name.
    """
    if _NAME.fullmatch(name) is None:
        raise errors.NotFound(
            what=f"{what} {name[:64]!r}: a name has 1 to 63 characters of [a-z0-9._-]"
        )
    return name
