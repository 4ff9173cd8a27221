"""Which paths and symbolic links a package may contain; its writer and its reader both check them.

A path consists of names below the package's folder: no absolute path, no `..`. The target of a
symbolic link is relative, and `..` is only allowed at its start: after a name, which may be another
link, `..` could leave the folder although the text of the target does not.
"""

import unicodedata
from typing import Final

#: Bytes of a path. Linux allows 4095, of which the folder of the agent that unpacks needs some.
MAX_PATH: Final = 3072
#: Bytes of a name, as Linux allows.
MAX_NAME: Final = 255


def problem_of_path(path: str) -> str | None:
    """Why a package may not contain `path`; None if it may."""
    if path.startswith("/"):
        return "it is absolute"
    names = path.split("/")
    if ".." in names:
        return "it contains .."
    if "" in names or "." in names:
        return "it contains an empty name or a single dot"
    if "\0" in path:
        return "it contains a zero byte"
    try:
        sizes = [len(name.encode()) for name in names]
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if max(sizes) > MAX_NAME or sum(sizes) + len(sizes) > MAX_PATH:
        return "it is too long"
    return None


def problem_of_link(path: str, target: str) -> str | None:
    """Why a package may not contain a symbolic link at `path` to `target`; None if it may."""
    if not target or "\0" in target:
        return "it is a symbolic link without a valid target"
    if target.startswith("/"):
        return "it is a symbolic link to an absolute path"
    try:
        size = len(target.encode())
    except UnicodeEncodeError:
        return "the target of the symbolic link is not UTF-8"
    if size > MAX_PATH:
        return "the target of the symbolic link is too long"
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    if up > path.count("/"):
        return "it is a symbolic link that leaves the folder"
    if ".." in names[up:]:
        return "it is a symbolic link with .. after a name"
    return None


def collision_key(path: str) -> str:
    """A key that is equal for two paths that a case-insensitive file system does not distinguish.

    Such file systems also equate the composed and the decomposed form of a letter.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())
