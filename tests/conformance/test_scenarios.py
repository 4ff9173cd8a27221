"""The scenarios of other schedulers, through the code of `yard conformance`: all pass."""

import json
from pathlib import Path

import pytest

from yardmaster_cli.main import run
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_simulation.conformance import scenario_cluster as stage
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.scenarios import Outcome, Scenario, check, read

SCENARIOS = Path(__file__).parent / "scenarios"
FILES = sorted(SCENARIOS.glob("*.jsonl"))


def scenarios(path: Path) -> list[Scenario]:
    return list(read(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_passes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["conformance", str(path)])
    *others, counts = capsys.readouterr().out.splitlines()
    assert (others, code) == ([], 0)
    assert counts == f"{len(scenarios(path))} passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scheduler_that_starts_from_a_snapshot_decides_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restarted(Cell):
        def cycle(self, **how: object) -> list[Event]:
            self.restart()
            return super().cycle()

    monkeypatch.setattr(stage, "Cell", Restarted)
    verdicts = [check(scenario, FORMATS) for scenario in scenarios(path)]
    assert [one for one in verdicts if one.outcome is not Outcome.PASSED] == []


def test_a_wrong_expectation_fails_the_scenario() -> None:
    """Every scenario fails after its expectation is changed."""
    for path in FILES:
        for scenario in scenarios(path):
            changed = json.loads(json.dumps(scenario))
            expected = changed["expected"]
            if "fair_share" in expected:
                for name in expected["fair_share"]:
                    expected["fair_share"][name] += 1
            elif "tasks" in scenario:
                key = "to_allocate"
                of = {task["id"] for task in scenario["tasks"]} - set(expected[key])
                expected[key] = sorted(of) or ["no-task"]
            else:
                changed["expected"] = {"count": 99}
            assert check(changed, FORMATS).outcome is not Outcome.PASSED, scenario["id"]
