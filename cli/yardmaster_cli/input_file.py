"""Text from a file or from stdin."""

import sys
from pathlib import Path

from yardmaster_cli.errors import BadUsage


def text_of(file: str, hint: str | None = None) -> tuple[str, str]:
    """The text of a file (`-`: of stdin), and its name in messages.

    Raises:
        BadUsage: the file cannot be read; `hint` says what to do.
    """
    if file == "-":
        return sys.stdin.read(), "stdin"
    try:
        return Path(file).read_text(encoding="utf-8"), file
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadUsage(f"{file}: {what}", hint=hint) from None
