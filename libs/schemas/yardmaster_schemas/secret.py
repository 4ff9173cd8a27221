"""Secrets in settings: given as a value, or as a file that only the service may read."""

import stat
from pathlib import Path

from pydantic import SecretStr

from yardmaster_schemas.errors import YardmasterError


class SecretUnreadable(YardmasterError):
    """The secret {name} cannot be read from {path}: {found}."""

    code = "secret_unreadable"


def read_secret(name: str, value: SecretStr | None, path: Path | None) -> str | None:
    """Return `value`, or the first line of the file `path`; None when neither is given.

    Raises:
        SecretUnreadable: both are given, or the file cannot be read, is empty, or is readable by
            all users.
    """
    if path is None:
        return None if value is None else value.get_secret_value()
    if value is not None:
        raise SecretUnreadable(name=name, path=path, found="the secret is also given as a value")
    try:
        if path.stat().st_mode & stat.S_IROTH:
            raise SecretUnreadable(
                name=name, path=path, found="all users may read it; chmod o-r it"
            )
        text = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SecretUnreadable(name=name, path=path, found=found) from None
    if not text:
        raise SecretUnreadable(name=name, path=path, found="it is empty")
    return text
