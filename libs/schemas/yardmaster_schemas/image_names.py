"""Names of container images, and the prefixes of them that projects and pools allow.

A name is compared without its tag and digest, in the form of the engines: `python:3.12` is the
repository `docker.io/library/python`. Source: github.com/distribution/reference.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
#: References of images: the host of a registry, a path, a tag and a digest. They are part of the
#: path of requests to the engine, so nothing else may be in them.
REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
_LOWER_HOST: Final = _HOST.replace("A-Z", "").replace("A-F", "")
#: Entries of allow-lists.
PREFIX: Final = re.compile(
    rf"^((?:{_LOWER_HOST}/)?{_PART}(?:/{_PART})*/?|{_LOWER_HOST}/?)$", re.ASCII
)
#: Names that engines take for the id of an image.
_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
#: The longest name of a repository, with its registry, as engines allow it.
MAX_REPOSITORY: Final = 255
DOCKER_HUB: Final = "docker.io"
#: Other names of Docker Hub.
HUB_ALIASES: Final = frozenset(
    {"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}
)


def repository_of(reference: str) -> str:
    """Return the registry and path of an image, for example `docker.io/library/python`.

    Raises:
        ValueError: it is not the name of an image, or longer than `MAX_REPOSITORY`.
    """
    if not REFERENCE.fullmatch(reference):
        raise ValueError(f"{reference[:64]!r} is not the name of an image")
    if _ID.fullmatch(reference):
        raise ValueError(f"{reference[:64]!r} is the id of an image: give its name")
    path, slash, last = reference.partition("@")[0].rpartition("/")
    name = f"{path}{slash}{last.partition(':')[0]}"
    host, path = _split(name) if slash else (DOCKER_HUB, name)
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    if len(f"{host}/{path}") > MAX_REPOSITORY:
        raise ValueError(f"{reference[:64]!r}... is longer than {MAX_REPOSITORY} characters")
    return f"{host}/{path}"


def prefix_of(entry: str) -> str:
    """Return an entry of an allow-list in the form of `repository_of`, without a slash at its end.

    `registry.example.org` is a registry, `registry.example.org/team/` a folder of it, and `python`
    the image `docker.io/library/python`; `team/` is the folder `docker.io/team`.

    Raises:
        ValueError: it is not such a prefix, or has a tag or digest.
    """
    if not PREFIX.fullmatch(entry):
        raise ValueError(
            f"{entry[:64]!r} is not a registry or the beginning of an image's name: write "
            "registry.example.org/team/ or python, in small letters, without tag and digest"
        )
    host, path = _split(entry.rstrip("/"))
    if host == DOCKER_HUB and path and "/" not in path and not entry.endswith("/"):
        path = f"library/{path}"
    return f"{host}/{path}" if path else host


def is_allowed(repository: str, entries: Iterable[str]) -> bool:
    """Whether a repository is one of the entries of an allow-list, or in one of them."""
    return any(f"{repository}/".startswith(f"{prefix_of(entry)}/") for entry in entries)


def _split(name: str) -> tuple[str, str]:
    """Return the registry and the path of a name without tag; the path of a registry is empty."""
    first, _, rest = name.partition("/")
    if not (first == "localhost" or set(first) & {".", ":", "["}):
        if first != first.lower():
            raise ValueError(f"{first[:64]!r} is no registry, and names have no capital letters")
        return DOCKER_HUB, name
    host = first.lower()
    return (DOCKER_HUB if host in HUB_ALIASES else host), rest


#: A repository as `repository_of` returns it.
ImageRepository = Annotated[
    str, Field(pattern=r"^[a-z0-9.:\[\]-]+(/[a-z0-9._-]+)+$", max_length=MAX_REPOSITORY)
]
#: An entry of an allow-list of images, as an operator writes it.
ImagePrefix = Annotated[str, Field(pattern=PREFIX.pattern, max_length=256)]
