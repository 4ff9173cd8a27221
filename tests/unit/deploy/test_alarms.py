"""deploy/prometheus: the alarms are valid rules with texts, and fire when they should."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.go_tools import go_tool
from yardmaster_schemas.reasons import RefusalCode

ROOT: Final = Path(__file__).parents[3]
ALARMS: Final = ROOT / "deploy/prometheus/alarms.yaml"
#: `promtool test rules` reads this file, which names the alarms that fire.
SCENARIOS: Final = Path(__file__).with_name("alarms_test.yaml")

Rule = Mapping[str, Any]


def rules() -> list[Rule]:
    """Every rule of every group."""
    groups = yaml.safe_load(ALARMS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_rules_are_valid_for_prometheus() -> None:
    printed = go_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", ALARMS)
    assert f"{len(rules())} rules found" in printed


def test_alarms_fire_when_they_should() -> None:
    assert "SUCCESS" in go_tool("promtool", "test", "rules", SCENARIOS)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alarm_says_what_happened_what_it_means_and_what_to_do(rule: Rule) -> None:
    assert re.fullmatch(r"Yardmaster([A-Z][a-z]+)+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "remedy"}
    # The page of metrics shows these two, where no label has a value.
    assert "{{" not in rule["annotations"]["description"] + rule["annotations"]["remedy"]


def test_a_template_uses_only_labels_that_the_alarm_has() -> None:
    """An aggregation drops every other label."""
    for rule in rules():
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        aggregated = re.match(r"(?:sum|max) by \(([\w, ]+)\)", rule["expr"])
        if aggregated is not None:
            assert used <= {*aggregated[1].split(", "), *rule["labels"]}, rule["alert"]


def test_an_alarm_names_only_codes_of_refusals() -> None:
    named = re.findall(r'code!?=~"([^"]+)"', ALARMS.read_text())
    codes = {code for each in named for code in each.split("|")}
    assert codes == {RefusalCode.NOT_ENROLLED.value, RefusalCode.BEYOND_ENROLLMENT.value}
