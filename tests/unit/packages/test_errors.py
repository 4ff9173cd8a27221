"""Every error of packages has a message of one line and a unique code."""

import inspect

from yardmaster_packages import errors


def classes() -> list[type[errors.PackageError]]:
    return [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.PackageError)
    ]


def test_codes_are_unique() -> None:
    codes = [each.code for each in classes()]
    assert len(set(codes)) == len(codes) > 10


def test_the_tree_on_top_of_the_module_is_complete() -> None:
    tree = errors.__doc__ or ""
    assert [each.__name__ for each in classes() if each.__name__ not in tree] == []


def test_a_message_is_one_line_with_its_fields() -> None:
    for each in classes():
        assert "\n" not in str(each(found="x"))
    error = errors.PathRefused(path="data/pipe", found="it is a named pipe")
    assert str(error).startswith("data/pipe cannot be part of a package: it is a named pipe.")
