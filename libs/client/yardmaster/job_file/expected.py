"""The expected form of each key of a job file, as text.

It replaces the patterns and types in the errors of pydantic; `schemas.job_file` has the rules.
"""

from collections.abc import Mapping
from typing import Any, Final

from yardmaster.yaml_tree import Path

_DURATION: Final = "a duration such as 90s, 2h or 1d"
_NAME: Final = "a name of lower-case letters, digits, '.', '_' and '-' (at most 63)"
_VARIABLE: Final = "a name of letters, digits and '_' that does not start with a digit"
_LINE: Final = "one line of text"
_GPUS: Final = "a number of GPUs such as 8 or 0.5"
_REPLICAS: Final = "a number of replicas, or auto"

#: By path; `*` matches any one part.
_FORMS: Final[Mapping[Path, str]] = {
    ("min_runtime",): _DURATION,
    ("runtime_estimate",): _DURATION,
    ("time_limit",): _DURATION,
    ("stop", "grace"): _DURATION,
    ("resources", "gpus"): _GPUS,
    ("replicas",): _REPLICAS,
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
    ("run", "command", "*"): "text",
    ("run", "env", "*", "[key]"): _VARIABLE,
    ("run", "env", "*"): "text (put quotes around true, false and null)",
    ("run", "secrets", "*", "[key]"): _VARIABLE,
    ("run", "secrets", "*"): "a secret's reference such as nlp/hf-token",
}
#: Errors of values whose form differs from that of their key.
_FORM_ERRORS: Final = frozenset(
    {"string_type", "string_pattern_mismatch", "literal_error", "int_type", "float_type"}
)
_TYPES: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list such as [a, b]",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def expected(path: Path, kind: str) -> str | None:
    """The expected form of the value at `path`, for a pydantic error of type `kind`.

    None: the message of pydantic is clear.
    """
    if path == ("run", "command") and kind == "list_type":
        return "a list such as [python3, train.py] (for a shell script use run.script)"
    if kind in _FORM_ERRORS:
        for known, words in _FORMS.items():
            if len(known) == len(path) and all(map(_same, known, path)):
                return words
    return _TYPES.get(kind)


def _same(known: Any, part: Any) -> bool:
    return bool(known == part) or (known == "*" and part != "[key]")
