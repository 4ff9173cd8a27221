"""The text of a setting, stored at its field, so that API, command line and reference agree."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

_ABOUT: Final = "about"
#: The words that replace the placeholders of amounts: in the API, where the names of fields have
#: the unit, and in texts for users.
API_UNITS: Final = {
    "gpus": "thousandths of a GPU",
    "cpus": "thousandths of a CPU",
    "memory": "memory in MiB",
    "time": "so many seconds",
}
USER_UNITS: Final = {"gpus": "GPUs", "cpus": "CPUs", "memory": "memory", "time": "this time"}


@dataclass(frozen=True, slots=True)
class About:
    """The meaning of a field, an example of its value, and the meaning of no value.

    `{gpus}`, `{cpus}`, `{memory}` and `{time}` in `text` stand for an amount with its unit.
    """

    text: str
    example: Any
    none: str

    def written(self, units: Mapping[str, str], none: str) -> str:
        """The text with these units; `none` is the word for no value."""
        text = self.text.format(**units)
        if self.none in ("", none):
            return text
        parts = f"{text} {none}" if ". " in text else f"{text.removesuffix('.')}; {none}"
        return f"{parts}: {self.none}."


def about(text: str, example: Any, *, none: str = "") -> Mapping[str, About]:
    """The metadata of a dataclass field with this text."""
    return {_ABOUT: About(text, example, none)}


def abouts(model: type) -> dict[str, About]:
    """The texts of the fields of a dataclass, by name."""
    return {each.name: each.metadata[_ABOUT] for each in fields(model) if _ABOUT in each.metadata}
