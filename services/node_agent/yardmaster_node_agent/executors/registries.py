"""Credentials of image registries, from a file in the format of Docker's config.json.

Only `auths` is read: programs that keep credentials elsewhere (`credsStore`, `credHelpers`) are not
run. The file is read for each pull, so that changed credentials count at once. They go to the
engine in a header of the request, and nowhere else.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from yardmaster_node_agent.executors.secrets import hidden_in
from yardmaster_schemas.image_names import DOCKER_HUB, HUB_ALIASES, repository_of

MAX_FILE_BYTES: Final = 2**20


class AuthsUnusable(Exception):
    """The file cannot be used; the message has nothing of its content but names of registries."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A login for a registry."""

    registry: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    #: Instead of user and password.
    identity_token: str = field(default="", repr=False)

    @property
    def header(self) -> str:
        """The value of X-Registry-Auth."""
        if self.identity_token:
            login = {"identitytoken": self.identity_token}
        else:
            login = {"username": self.username, "password": self.password}
        content = json.dumps({**login, "serveraddress": self.registry}).encode()
        return base64.urlsafe_b64encode(content).decode()

    def hidden_in(self, text: str) -> str:
        """Return a text without the secrets, in case that an engine or a registry repeats them."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return hidden_in(text, self.header, pair, self.password, self.identity_token)


class RegistryAuths:
    """The credentials in a file; without a file there are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def of(self, reference: str) -> Credentials | None:
        """Return the credentials for an image: those of the longest name that its name begins with.

        Raises: AuthsUnusable.
        """
        if self._path is None:
            return None
        name = repository_of(reference)
        found: tuple[str, Any] | None = None
        for key, entry in self._auths(self._path).items():
            prefix = _registry(key)
            if f"{name}/".startswith(f"{prefix}/") and (
                found is None or len(found[0]) < len(prefix)
            ):
                found = (prefix, entry)
        return None if found is None else _credentials(*found)

    def _auths(self, path: Path) -> Mapping[str, Any]:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise AuthsUnusable(f"the file cannot be read: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise AuthsUnusable(f"the file has more than {MAX_FILE_BYTES} bytes")
        try:
            auths = json.loads(content)["auths"]
        except (ValueError, KeyError, TypeError, RecursionError):
            auths = None
        if not isinstance(auths, dict):
            raise AuthsUnusable("the file is not JSON with an object `auths`") from None
        return auths


def _registry(key: str) -> str:
    """Return the key of an entry as the beginning of names of images."""
    name = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    name = name.removesuffix("/v1").removesuffix("/v2")
    host, slash, rest = name.partition("/")
    return (DOCKER_HUB if host in HUB_ALIASES else host) + slash + rest


def _credentials(registry: str, entry: Any) -> Credentials:
    known = {k: v for k, v in entry.items() if isinstance(v, str)} if type(entry) is dict else {}
    if token := known.get("identitytoken"):
        return Credentials(registry, identity_token=token)
    user, password = known.get("username", ""), known.get("password", "")
    if auth := known.get("auth"):
        try:
            user, _, password = base64.b64decode(auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise AuthsUnusable(f"`auth` of {registry} is not base64 of USER:PASSWORD") from None
    if not user or not password:
        raise AuthsUnusable(
            f"{registry} has no user and password: credsStore and credHelpers are not used"
        )
    return Credentials(registry, user, password)
