"""Which paths of a folder a package leaves out: `.yardignore`, with the rules of gitignore."""

import re
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from yardmaster_packages.errors import ContextUnusable, IgnoreRulesInvalid

IGNORE_FILE: Final = ".yardignore"
#: The rules before those of the file, which can take them back with `!.git`.
DEFAULT_RULES: Final = (".git",)
_MAX_BYTES: Final = 1024 * 1024


class IgnoreRules:
    """The rules of one folder; the last rule that matches a path decides."""

    def __init__(self, spec: GitIgnoreSpec) -> None:
        self._spec = spec

    def ignores(self, path: str, *, folder: bool) -> bool:
        """Whether a path, relative and with slashes, is left out.

        What a folder contains is left out with it, so a caller must not ask for it.
        """
        return self._spec.match_file(f"{path}/" if folder else path)


def read_rules(folder: Path) -> IgnoreRules:
    """Return the rules of a folder.

    Raises:
        IgnoreRulesInvalid, ContextUnusable.
    """
    path = folder / IGNORE_FILE
    lines: list[str] = []
    if path.exists() and not path.is_file():
        raise ContextUnusable(path=path, found="it is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ContextUnusable(path=path, found=f"it has more than {_MAX_BYTES} bytes")
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ContextUnusable(path=path, found=str(error)) from error
    return rules_of(lines, path)


def rules_of(lines: list[str], path: Path) -> IgnoreRules:
    """Return the rules of the lines of a file.

    Raises:
        IgnoreRulesInvalid.
    """
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error) as error:  # a class such as [z-a] is no regular expression
            raise IgnoreRulesInvalid(path=path, line=number, found=str(error)) from error
    return IgnoreRules(GitIgnoreSpec.from_lines([*DEFAULT_RULES, *lines]))
