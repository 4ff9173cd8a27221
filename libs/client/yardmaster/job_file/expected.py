"""The expected form of each key of a job file, as text.

The text replaces the patterns and types in pydantic's errors; `schemas.job_file` has the rules.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from yardmaster.yaml_tree import Path

_DURATION: Final = "a duration such as 90s, 2h or 1d"
_NAME: Final = "a name of lower-case letters, digits, '.', '_' and '-' (at most 63)"
_VARIABLE: Final = "a name of letters, digits and '_' that does not start with a digit"
_LINE: Final = "one line of text"
_GPUS: Final = "a number of GPUs such as 8 or 0.5"
_CPUS: Final = "a number of CPUs such as 4 or 0.5"
_REPLICAS: Final = "a number of replicas, or auto"
_POINT: Final = "a number, true, false, null or text of at most 256 characters"

#: The form of the value at each path; `*` matches any one part of a path.
_FORMS: Final[Mapping[Path, str]] = {
    ("min_runtime",): _DURATION,
    ("runtime_estimate",): _DURATION,
    ("time_limit",): _DURATION,
    ("stop", "grace"): _DURATION,
    ("resources", "gpus"): _GPUS,
    ("resources", "cpus"): _CPUS,
    ("replicas",): _REPLICAS,
    ("tasks", "matrix", "*", "*"): _POINT,
    ("resources", "memory"): "a size such as 512Mi, 256Gi or 1Ti",
    ("project",): _NAME,
    ("pools", "*"): _NAME,
    ("node_types", "*"): _NAME,
    ("avoid_nodes", "*"): _NAME,
    ("labels", "*", "[key]"): _NAME,
    ("labels", "*"): _LINE,
    ("name",): _LINE,
    ("checkpoint", "start_from"): "a URI such as s3://models/base or file:///shared/base",
    ("tasks", "matrix", "*", "[key]"): "a name of letters, digits, '_', '.' and '-'",
    ("run", "image"): _LINE,
    ("run", "working_dir"): _LINE,
    ("run", "context"): "the path of a folder",
    ("run", "git", "url"): "https://HOST/PATH, without user and query",
    ("run", "git", "commit"): "the 40 digits of a commit, in lower case",
    ("run", "git", "secret"): "a secret's reference such as nlp/git",
    ("run", "command", "*"): "text",
    ("run", "env", "*", "[key]"): _VARIABLE,
    ("run", "env", "*"): "text (put quotes around true, false and null)",
    ("run", "secrets", "*", "[key]"): _VARIABLE,
    ("run", "secrets", "*"): "a secret's reference such as nlp/hf-token",
}
#: Pydantic's types of errors which mean that a value does not have the form that its key requires.
_FORM_ERRORS: Final = frozenset(
    {
        *("string_type", "string_pattern_mismatch", "literal_error", "int_type", "float_type"),
        *("int_from_float", "int_parsing", "finite_number"),
    }
)
#: Pydantic's type of an error of a value that has the right form -> what is wrong with the value.
#: Names in braces are keys of the error's context.
_LIMITS: Final[Mapping[str, str]] = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is empty",
    "too_long": "has more than {max_length} entries",
    "too_short": "is empty",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must match {pattern}",
}
_TYPES: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list such as [a, b]",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def expected(path: Path, kinds: Sequence[str]) -> str | None:
    """The expected form of the value at `path`, if pydantic's errors (`kinds`) are about its form.

    A value that may have several forms has an error for each form. None: the value has the right
    form, but is, for example, too large or too long.
    """
    if path == ("run", "command") and kinds == ["list_type"]:
        return "a list such as [python3, train.py] (for a shell script use run.script)"
    if len(kinds) > 1 or _FORM_ERRORS.intersection(kinds):
        for known, words in _FORMS.items():
            if len(known) == len(path) and all(map(_same, known, path)):
                return words
    found = list(dict.fromkeys(_TYPES[kind] for kind in kinds if kind in _TYPES))
    if "a number" in found or "a finite number" in found:
        found = [words for words in found if words != "a whole number"]
    return " or ".join(found) or None


def limit(kind: str, context: Mapping[str, Any]) -> str | None:
    """Name what is wrong with a value of the right form; None if pydantic's message says it.

    `kind` and `context` are those of pydantic's error.
    """
    words = _LIMITS.get(kind)
    if words is None:
        return None
    whole = {name: int(at) for name, at in context.items() if isinstance(at, float) and at % 1 == 0}
    return words.format_map({**context, **whole})


def _same(known: Any, part: Any) -> bool:
    return bool(known == part) or (known == "*" and part != "[key]")
