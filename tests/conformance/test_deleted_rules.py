"""The list of rules fits the code and the documentation; `make rules` deletes each of them."""

from pathlib import Path

import pytest

from tests.conformance.rules import CORE, MARK, RULES, Rule

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "conformance.md"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_change_that_deletes_a_rule_applies_to_the_code(rule: Rule) -> None:
    text = (CORE / rule.file).read_text()
    deleted = rule.deleted_from(text)
    assert deleted != text
    compile(deleted, rule.file, "exec")


def test_each_mark_in_the_source_is_that_of_one_rule() -> None:
    marks = [name for path in CORE.rglob("*.py") for name in MARK.findall(path.read_text())]
    assert sorted(marks) == sorted(rule.name for rule in RULES)


def test_the_page_lists_each_rule_and_what_fails_without_it() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    listed = {row[0].removeprefix("| "): row[1] for row in rows if len(row) == 2}
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert not set(names) - listed.keys()
    assert not [name for name in names if not listed[name].startswith("`")]
