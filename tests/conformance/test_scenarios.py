"""The scenarios of other schedulers, through the code of `yard conformance`."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from yardmaster_cli.main import run
from yardmaster_core.testing import Cell
from yardmaster_schemas.envelope import Event
from yardmaster_simulation.conformance import kai_cluster, scenario_cluster
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.scenarios import Outcome, Scenario, check, read

SCENARIOS = Path(__file__).parent / "scenarios"
FILES = sorted(SCENARIOS.glob("*.jsonl"))
#: How many scenarios of a file need features that the core does not have.
SKIPPED: Final = {"kai": 65}
#: The scenarios of a file whose outcome differs, and why.
DIFFERENT: Final[dict[str, dict[str, str]]] = {
    "kai": {
        # On purpose: see docs/explanation/conformance.md.
        "action/allocate/allocateFractionalGpu/getFractionalGPUTestsMetadata/011": (
            "a task that can start does not wait for a part of a shared GPU"
        ),
        "action/allocate/allocateFractionalGpu/getFractionalGPUTestsMetadata/014": (
            "reserved slots that are free are used at once"
        ),
        "cycle/reclaim/reclaim/getReclaimTestsMetadata/007": (
            "a reclaimed GPU does not go back to its former holder"
        ),
    },
}


def scenarios(path: Path) -> list[Scenario]:
    return list(read(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_passes_but_for_known_ones(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["conformance", str(path)])
    *others, counts = capsys.readouterr().out.splitlines()
    skipped, different = SKIPPED.get(path.stem, 0), DIFFERENT.get(path.stem, {})
    failed = {line.split(" ", 1)[1].split(":")[0] for line in others if line.startswith("failed")}
    assert failed == set(different), "\n".join(others)
    assert code == int(bool(different))
    passed = len(scenarios(path)) - skipped - len(different)
    assert counts == f"{passed} passed, {len(different)} failed, {skipped} skipped"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scheduler_that_starts_from_a_snapshot_decides_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restarted(Cell):
        def cycle(self, **how: Any) -> list[Event]:
            self.restart()
            return super().cycle(**how)

    verdicts = [check(scenario, FORMATS) for scenario in scenarios(path)]
    for module in (scenario_cluster, kai_cluster):
        monkeypatch.setattr(module, "Cell", Restarted)
    assert [check(scenario, FORMATS) for scenario in scenarios(path)] == verdicts


def wrong(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario with another expectation."""
    changed: dict[str, Any] = json.loads(json.dumps(scenario))
    if "steps" in scenario:
        for step in changed["steps"]:
            step["expect"]["running_count"] = 99
        return changed
    expected = changed["expected"]
    if "fair_share" in expected:
        for name in expected["fair_share"]:
            expected["fair_share"][name] += 1
    elif "mode" in scenario:
        for name in (*expected.get("jobs", ()), *expected.get("tasks", ())):
            of = expected["jobs"] if name in expected.get("jobs", ()) else expected["tasks"]
            of[name]["status"] = "failed"
    elif "tasks" in scenario:
        key = "to_allocate"
        of = {task["id"] for task in scenario["tasks"]} - set(expected[key])
        expected[key] = sorted(of) or ["no-task"]
    else:
        changed["expected"] = {"count": 99}
    return changed


def test_a_wrong_expectation_fails_the_scenario() -> None:
    """Every scenario fails after its expectation is changed."""
    for path in FILES:
        for scenario in scenarios(path):
            verdict = check(wrong(scenario), FORMATS)
            assert verdict.outcome is not Outcome.PASSED, scenario["id"]
