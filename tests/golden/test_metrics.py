"""docs/reference/metrics.md names every metric that the code makes, and no other.

`make golden` (YARDMASTER_GOLDEN=rewrite) rewrites its tables.
"""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs/reference/metrics.md"
BEGIN: Final = "<!-- metrics -->\n"
END: Final = "<!-- end -->"
SUFFIXES: Final = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_sum", "_count"),
}
SERVICES: Final = ("gateway", "quota", "scheduler", "views", "node_agent")
MACHINES: Final = ("quota", "scheduler")
#: Whose are the metrics that libs/runtime makes; a service's own are in its folder.
SHARED: Final = {
    "fence.py": MACHINES,
    "library_logs.py": SERVICES,
    "log_metrics.py": SERVICES,
    "port.py": SERVICES,
    "machine_metrics.py": MACHINES,
}


class Metric(NamedTuple):
    services: tuple[str, ...]
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str

    def series(self) -> Iterator[str]:
        for service in self.services:
            for suffix in SUFFIXES[self.kind]:
                yield f"yard_{service}_{self.name}{suffix}"


def metrics() -> list[Metric]:
    """Every call that makes a metric, as it stands in the sources."""
    found = []
    for path in [*ROOT.glob("libs/*/yardmaster*/**/*.py"), *ROOT.glob("services/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            kind = ast.unparse(node.func).split(".")[-1].removesuffix("_table")
            if kind not in SUFFIXES:
                continue
            where = path.relative_to(ROOT)
            assert all(isinstance(each, ast.Constant) for each in node.args), (where, node.lineno)
            name, about, *labels = (ast.literal_eval(each) for each in node.args)
            services = (where.parts[1],) if where.parts[0] == "services" else SHARED[path.name]
            found.append(Metric(services, name, kind, tuple(labels), about))
    return sorted(found)


def tables() -> str:
    made = metrics()
    lines = []
    for services in sorted({each.services for each in made}, key=lambda each: (-len(each), each)):
        title = {SERVICES: "Every service", MACHINES: "quota and scheduler"}.get(services)
        prefix = "yard_<service>_" if len(services) > 1 else f"yard_{services[0]}_"
        lines += [f"### {title or services[0].replace('_', ' ')}: `{prefix}...`", ""]
        lines += ["| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
        for each in made:
            if each.services == services:
                labels = ", ".join(f"`{label}`" for label in each.labels)
                about = each.about.rstrip(".")
                lines.append(f"| `{each.name}` | {each.kind} | {labels} | {about} |")
        lines.append("")
    return "\n".join(lines)


def test_every_metric_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    if os.environ.get("YARDMASTER_GOLDEN") == "rewrite":
        DOCUMENT.write_text(f"{before}{BEGIN}\n{tables()}{END}{after}")
        return
    assert rest == f"\n{tables()}{END}{after}", "make golden writes the tables"


def test_every_metric_that_docs_alarms_and_dashboard_name_exists() -> None:
    pages = [page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "decisions"]
    shipped = [*ROOT.glob("deploy/prometheus/*"), *ROOT.glob("deploy/grafana/*")]
    assert len(shipped) == 2
    text = "".join(page.read_text().split(BEGIN)[0] for page in [*pages, *shipped])
    named = set(re.findall(r"\byard_[a-z_]+", text))
    series = {each for metric in metrics() for each in metric.series()}
    assert len(named) > 20
    assert named - series == set()


def test_a_metric_is_made_in_one_place_a_service() -> None:
    """Two with one name in one process would collide in its registry."""
    names = [(service, each.name) for each in metrics() for service in each.services]
    assert sorted(names) == sorted(set(names))
