"""Marks for fields of `rows` that are written in a special form when a row leaves the process."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Shared:
    """Marks a field whose value all rows of a job share, so that a row is stored without it.

    The context of a codec is a mapping from names to values. Writing a row puts the value into the
    context, and writes the name in its place; reading takes the value from the context. Only the
    first value of a name goes into the context, so a row inside the row is written whole. Without a
    context the field is written whole.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A schema that writes the name if there is a context, else the value."""
        name = self._name

        def write(
            value: Any,
            write_whole: core_schema.SerializerFunctionWrapHandler,
            info: core_schema.SerializationInfo[Any],
        ) -> Any:
            if info.context is None or value is None:
                return write_whole(value)
            return name if info.context.setdefault(name, value) is value else write_whole(value)

        def read(
            value: Any,
            read_whole: core_schema.ValidatorFunctionWrapHandler,
            info: core_schema.ValidationInfo[Any],
        ) -> Any:
            if value != name:
                return read_whole(value)
            if info.context is None or name not in info.context:
                raise ValueError(f"the {name} of its job is missing")
            return info.context[name]

        inner = handler(source)
        return core_schema.with_info_wrap_validator_function(
            read,
            inner,
            serialization=core_schema.wrap_serializer_function_ser_schema(
                write, info_arg=True, schema=inner
            ),
        )


class Pairs:
    """Marks a mapping whose keys are pairs of a name and a number: it is written as a list."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A schema that writes a list with an entry [name, number, value] for each pair."""
        entries: Any = list[tuple[str, int, get_args(source)[1]]]  # type: ignore[misc]
        inner = handler.generate_schema(entries)
        return core_schema.no_info_after_validator_function(
            _to_mapping,
            inner,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _to_entries, return_schema=inner
            ),
        )


def _to_mapping(entries: list[tuple[str, int, Any]]) -> dict[tuple[str, int], Any]:
    return {(name, number): value for name, number, value in entries}


def _to_entries(mapping: Mapping[tuple[str, int], Any]) -> list[tuple[str, int, Any]]:
    return [(*key, value) for key, value in mapping.items()]


PAIRS: Final = Pairs()
