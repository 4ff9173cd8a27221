"""How fields of rows are written where a row leaves the process: marks for `rows`, used by codecs.

Without a codec's context a marked field is written like any other.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol, cast, get_args

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema


class Parts(Protocol):
    """Keeps what many rows share, under a name that its contents give it."""

    def keep(self, value: Any, adapter: TypeAdapter[Any]) -> str:
        """The name of a value."""

    def load(self, name: str, adapter: TypeAdapter[Any]) -> Any:
        """The value of a name."""


class Shared:
    """Marks a field that many rows have in common: it is written once, and named in each row."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """A name where the context keeps parts, else the value."""
        adapters: list[TypeAdapter[Any]] = []

        def adapter() -> TypeAdapter[Any]:
            # Made late: the type may not be complete while its schema is.
            if not adapters:
                adapters.append(TypeAdapter(source))
            return adapters[0]

        def write(
            value: Any,
            write_plain: core_schema.SerializerFunctionWrapHandler,
            info: core_schema.SerializationInfo[Any],
        ) -> Any:
            if info.context is None or not value:
                return write_plain(value)
            return cast("Parts", info.context).keep(value, adapter())

        def read(
            value: Any,
            read_plain: core_schema.ValidatorFunctionWrapHandler,
            info: core_schema.ValidationInfo[Any],
        ) -> Any:
            if info.context is None or not isinstance(value, str):
                return read_plain(value)
            return cast("Parts", info.context).load(value, adapter())

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
        """Lists of name, number and value."""
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


SHARED: Final = Shared()
PAIRS: Final = Pairs()
