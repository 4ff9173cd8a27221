"""Every error of the log has a message of one line and a unique code."""

import inspect
from pathlib import Path

from yardmaster_eventlog import errors


def classes() -> list[type[errors.LogError]]:
    found = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.LogError)
    ]
    assert len(found) > 10
    return found


def test_codes_are_unique() -> None:
    codes = [each.code for each in classes()]
    assert len(set(codes)) == len(codes)


def test_the_tree_on_top_of_the_module_is_complete() -> None:
    tree = errors.__doc__ or ""
    assert [each.__name__ for each in classes() if each.__name__ not in tree] == []


def test_a_message_is_one_line_with_its_fields() -> None:
    for each in classes():
        assert "\n" not in str(each(found="x"))
    error = errors.LogCorrupt(path=Path("log.db"), found="it is cut short")
    assert str(error).startswith("The log file log.db is damaged: it is cut short.")
    assert "offset 7" in str(errors.ReadPastEnd(offset=7, topic="t", end=3)).lower()
