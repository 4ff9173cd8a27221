"""Secrets in settings: given as a value, or as a file that only the service may read."""

import stat
from pathlib import Path

from pydantic import SecretStr

from yardmaster_schemas.errors import YardmasterError
from yardmaster_schemas.file_modes import other_writers


class SecretUnreadable(YardmasterError):
    """The secret {name} cannot be read from {path}: {found}."""

    code = "secret_unreadable"


def not_private(path: Path) -> str | None:
    """Say what is wrong with the mode of a file that holds a secret; None: nothing.

    Its group may read it, as in a secret that Kubernetes mounts.

    Raises: OSError.
    """
    mode = path.stat().st_mode
    if mode & stat.S_IROTH:
        return "all users may read it; chmod o-r it"
    writers = other_writers(mode)
    return None if writers is None else f"{writers} may write it; chmod go-w it"


def read_secret(name: str, value: SecretStr | None, path: Path | None) -> str | None:
    """Return `value`, or the first line of the file `path`; None when neither is given.

    Raises:
        SecretUnreadable: both are given, or the file cannot be read, is empty, or is open to other
            users (`not_private`).
    """
    if path is None:
        return None if value is None else value.get_secret_value()
    if value is not None:
        raise SecretUnreadable(name=name, path=path, found="the secret is also given as a value")
    try:
        found = not_private(path)
        if found is not None:
            raise SecretUnreadable(name=name, path=path, found=found)
        text = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SecretUnreadable(name=name, path=path, found=found) from None
    if not text:
        raise SecretUnreadable(name=name, path=path, found="it is empty")
    return text
