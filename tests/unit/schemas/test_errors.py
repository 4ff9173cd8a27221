"""An error's docstring, its fields filled in, is its message."""

import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator
from string import Formatter

import pytest

import yardmaster_core
import yardmaster_eventlog
import yardmaster_runtime
import yardmaster_schemas
import yardmaster_simulation
from yardmaster_schemas.errors import MalformedRecord, UnknownVersion, YardmasterError


def error_modules() -> Iterator[str]:
    for package in (
        *(yardmaster_schemas, yardmaster_core, yardmaster_eventlog, yardmaster_runtime),
        yardmaster_simulation,
    ):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.name.endswith(".errors"):
                yield found.name


def all_errors(cls: type[YardmasterError]) -> Iterator[type[YardmasterError]]:
    yield cls
    for each in cls.__subclasses__():
        yield from all_errors(each)


#: Named modules only: what other packages define depends on what was imported before.
MODULES = list(error_modules())
for module in MODULES:
    importlib.import_module(module)
ERRORS = sorted(
    {e for e in all_errors(YardmasterError) if e.__module__ in MODULES},
    key=lambda e: (e.__module__, e.__name__),
)


def fields_of(cls: type[YardmasterError]) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(cls.__doc__ or "") if name]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda e: e.__name__)
def test_the_docstring_is_the_message(cls: type[YardmasterError]) -> None:
    given = {name: f"<{name}>" for name in fields_of(cls)}
    error = cls(**given)
    message = str(error)
    assert message
    for value in given.values():
        assert value in message
    assert not re.search(r"[{}]|\bNone\b", message)
    assert error.fields == given


@pytest.mark.parametrize("cls", ERRORS, ids=lambda e: e.__name__)
def test_an_error_without_its_fields_still_has_a_message(cls: type[YardmasterError]) -> None:
    message = str(cls())
    assert ("?" in message) is bool(fields_of(cls))


class OfItsOwnMaking(YardmasterError):
    """The error needs {what}."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what=what.upper())


@pytest.mark.parametrize("cls", ERRORS, ids=lambda e: e.__name__)
def test_a_pickled_error_keeps_its_message_and_fields(
    cls: type[YardmasterError],
) -> None:
    error = cls(**{name: f"<{name}>" for name in fields_of(cls)}, also=7)
    came = pickle.loads(pickle.dumps(error))
    assert (type(came), str(came), came.fields) == (cls, str(error), error.fields)


def test_a_pickled_error_with_its_own_constructor_keeps_its_message() -> None:
    came = pickle.loads(pickle.dumps(OfItsOwnMaking("a word")))
    assert (str(came), came.what, came.fields) == (
        "The error needs A WORD.",
        "a word",
        {"what": "A WORD"},
    )


def test_codes_are_stable_names_each_of_one_error() -> None:
    own = [e for e in ERRORS if "code" in vars(e)]
    codes = [e.code for e in own]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z][a-z_]*", code) for code in codes)


def test_a_field_of_many_lines_keeps_the_message_whole() -> None:
    assert "a {b} c" in str(MalformedRecord(found="a {b} c"))
    assert "TaskAdmitted has version 9" in str(UnknownVersion(type="TaskAdmitted", version=9))
