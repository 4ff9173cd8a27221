"""The default name of a job: the program that its command runs, rather than the interpreter."""

import re
from collections.abc import Sequence
from typing import Final

_PYTHON: Final = re.compile(r"^(python|pypy)[0-9.]*$")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
#: Options of Python whose value is the next word.
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
#: Options of shells whose value is the next word.
_SHELL_VALUES: Final = frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file"})
#: Programs with many options of their own: the first word that looks like a script is the script.
_LAUNCHERS: Final = frozenset(
    {
        *("torchrun", "accelerate", "deepspeed", "colossalai", "horovodrun", "mpirun", "mpiexec"),
        *("srun", "uv", "poetry", "pipenv", "conda", "nohup", "nice", "time", "timeout", "stdbuf"),
    }
)
#: Modules of Python that launch another script.
_LAUNCHER_MODULES: Final = frozenset({"torch.distributed.run", "torch.distributed.launch"})
#: Options whose next word is the program text.
_AS_TEXT: Final = re.compile(r"^-[A-Za-z]{0,3}c$")
_SCRIPT: Final = re.compile(r"^[^-=][^=]*\.(py|sh|pyz)$")


def program_of(command: Sequence[str]) -> str:
    """Return `train.py` for `python3 train.py --lr 1`, `pkg.mod` for `python3 -m pkg.mod`.

    Otherwise the last part of the first word, for example `sh` for `sh -c`.
    """
    words = list(command)
    first = _base(words[0])
    if first == "env":
        rest = words[1:]
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            rest = rest[2 if rest[0] in ("-u", "-C", "-S") else 1 :]
        return program_of(rest) if rest else first
    if _PYTHON.match(first):
        return _of_python(words[1:]) or first
    if first in _SHELLS:
        return _first_argument(words[1:], _SHELL_VALUES) or first
    if first in _LAUNCHERS:
        return _launched(words[1:]) or first
    return first


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _of_python(words: Sequence[str]) -> str | None:
    """Return the script or module that an interpreter of Python starts with these arguments."""
    if "-m" in words:
        at = words.index("-m") + 1
        before = _first_argument(words[: at - 1], _PYTHON_VALUES)
        if before is None and at < len(words):
            module = words[at]
            launched = _launched(words[at + 1 :]) if module in _LAUNCHER_MODULES else None
            return launched or module
    return _first_argument(words, _PYTHON_VALUES)


def _first_argument(words: Sequence[str], with_values: frozenset[str]) -> str | None:
    """Return the first word that is not an option; None if the program is given as text (`-c`)."""
    left = iter(words)
    for word in left:
        if word in with_values:
            next(left, None)
        elif word == "-" or _AS_TEXT.match(word):
            return None
        elif not word.startswith(("-", "+")):
            return _base(word)
    return None


def _launched(words: Sequence[str]) -> str | None:
    """Return the script or module that a launcher starts."""
    for at, word in enumerate(words):
        if word in ("-m", "--module") and at + 1 < len(words):
            return words[at + 1]
        if _SCRIPT.match(word):
            return _base(word)
    return None
