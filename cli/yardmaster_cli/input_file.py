"""Text from a file or from stdin."""

import sys

from yardmaster.errors import InputError
from yardmaster.job_file.read import read_file
from yardmaster_cli.errors import BadUsage


def text_of(file: str, hint: str | None = None) -> tuple[str, str]:
    """The text of a file (`-`: of stdin), and its name in messages.

    Raises:
        BadUsage: the file cannot be read; `hint` says what to do.
    """
    if file == "-":
        return sys.stdin.read(), "stdin"
    try:
        return read_file(file), file
    except InputError as error:
        raise BadUsage(error.problem, hint=hint or error.hint) from None
