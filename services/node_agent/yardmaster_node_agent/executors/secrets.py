"""Secrets, read from the agent's own files; a job has only their names."""

import os
import re
from pathlib import Path
from typing import Final, Protocol

from yardmaster_node_agent.errors import SecretMissing
from yardmaster_schemas.job_secrets import may_read

MAX_SECRET_BYTES: Final = 65_536
#: The shortest beginning of a secret that is hidden at the end of a text.
MIN_HIDDEN: Final = 4
_REFERENCE: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}(/[A-Za-z0-9][A-Za-z0-9._-]{0,62}){0,3}"
)


class Secrets(Protocol):
    """A source of secrets."""

    def resolve(self, reference: str) -> str | None:
        """Return the secret of that name, without a newline at its end; None if there is none."""


class SecretFiles:
    """Secrets in files: the secret `nlp/hf` is the file `nlp/hf` in the directory.

    Without a directory there are no secrets.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def resolve(self, reference: str) -> str | None:
        """Read a regular file in the directory, without following links."""
        if self._directory is None or not _REFERENCE.fullmatch(reference):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        opened: list[int] = []
        try:
            opened.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            *folders, name = reference.split("/")
            for folder in folders:
                opened.append(os.open(folder, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
            opened.append(os.open(name, flags | os.O_NONBLOCK, dir_fd=opened[-1]))
            content = os.read(opened[-1], MAX_SECRET_BYTES + 1)
        except OSError:
            return None
        finally:
            for descriptor in opened:
                os.close(descriptor)
        if len(content) > MAX_SECRET_BYTES or b"\0" in content:
            return None
        return content.decode(errors="surrogateescape").removesuffix("\n")


def read_for(project: str, secrets: Secrets, reference: str) -> str:
    """Return the value of a secret for a job of a project.

    The gateway checks the names too; the agent trusts only the project of the decision.

    Raises:
        SecretMissing: there is none, or it belongs to another project.
    """
    if not may_read(project, reference):
        raise SecretMissing(found=f"jobs of its project may not read secret {reference!r}")
    value = secrets.resolve(reference)
    if value is None:
        raise SecretMissing(found=f"there is no secret {reference!r} here")
    return value


def hidden_in(text: str, *secrets: str) -> str:
    """Return a text without the secrets.

    The text may have been cut, so the beginning of a secret at its end is hidden too.
    """
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
        for size in range(min(len(secret), len(text)), MIN_HIDDEN - 1, -1):
            if text.endswith(secret[:size]):
                text = f"{text[:-size]}***"
                break
    return text


class NoSecrets:
    """A source without secrets."""

    def resolve(self, reference: str) -> str | None:
        return None
