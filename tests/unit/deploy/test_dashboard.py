"""deploy/grafana: the queries of the dashboard are valid, and its panels are complete.

tests/golden/test_metrics.py checks that the metrics exist.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.go_tools import go_tool

ROOT: Final = Path(__file__).parents[3]
DASHBOARD: Final[Mapping[str, Any]] = json.loads(
    (ROOT / "deploy/grafana/yardmaster.json").read_text()
)
#: What Grafana puts in the place of a variable.
VALUES: Final = {"__rate_interval": "1m", "cell": ".*", "pool": "default|h100"}
VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")

Panel = Mapping[str, Any]


def panels() -> Iterator[Panel]:
    """Every panel except the titles of rows."""
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def targets() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every query with the title of its panel."""
    for panel in panels():
        yield from ((panel["title"], target) for target in panel["targets"])


def test_every_query_is_valid(tmp_path: Path) -> None:
    queries = [VARIABLE.sub(lambda found: VALUES[found[1]], each["expr"]) for _, each in targets()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    printed = go_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", file)
    assert f"{len(queries)} rules found" in printed
    assert len(queries) > 20


def test_a_variable_is_defined_and_used() -> None:
    defined = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(VARIABLE.findall(json.dumps(DASHBOARD)))
    assert used - {"__all", "__rate_interval"} == defined == {"datasource", "cell", "pool"}


def test_a_query_of_work_selects_by_cell_and_pool() -> None:
    for title, target in targets():
        selectors = re.findall(
            r"yard_scheduler_(?:gpus|tasks|queue|preemptions|nodes|project)\w*(\{[^}]*\})?",
            target["expr"],
        )
        for selector in selectors:
            assert 'cell=~"$cell", pool=~"$pool"' in selector, title


def test_a_legend_names_only_labels_that_the_query_keeps() -> None:
    for title, target in targets():
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == kept - {"le"}, title


def test_a_panel_has_a_description_a_unit_and_its_own_place() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {panel["datasource"]["uid"]} == {"${datasource}"}
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
