"""The HTML report: whole, and in need of nothing else."""

import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.histories import a_cell, history_of
from yardmaster_core.testing import Cell
from yardmaster_simulation.figures import MAX_PROJECTS, OTHERS, Figures, figures
from yardmaster_simulation.metrics import WINDOWS
from yardmaster_simulation.report import report, write_report

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text in each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def run(**labels: str | int) -> Figures:
    return figures(labels, history_of(a_cell()))


def data(page: Page) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(page.texts["script"][0])
    return loaded


def test_a_report_is_one_page_that_refers_to_nothing_outside(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, "A run", [run(policy="priority", seed=1)])
    page = Page(path.read_text())
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert not {"src", "href", "action", "srcset"} & attributes.keys()
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    _, library, script = page.texts["script"]
    assert len(library) > 1_000_000
    for text in (script, *page.texts["style"], *page.texts["p"], *page.texts["dd"]):
        assert "//" not in text.replace("</", "")
        assert "[[" not in text.replace("const [[", "")


def test_every_element_that_the_script_draws_into_is_there() -> None:
    page = Page(report("A run", [run(policy="priority")]))
    ids = {attributes.get("id") for _, attributes in page.elements}
    script = page.texts["script"][-1]
    named = set(re.findall(r'draw\("([a-z-]+)"', script)) | {
        f"{plot}-{kind}" for plot in ("slowdown", "wait") for kind in ("te", "be")
    }
    assert named - {"slowdown-", "wait-"} <= ids


def test_runs_that_differ_by_their_seed_are_one_column() -> None:
    runs = [
        run(policy=policy, workload="w", seed=seed)
        for policy in ("fifo", "fitgpp")
        for seed in (1, 2, 3)
    ]
    page = Page(report("Runs", runs))
    assert [each["name"] for each in data(page)] == ["fifo", "fitgpp"]
    assert len(data(page)[0]["slowdown"]["te"]["p50"]) == 3
    about = page.texts["p"][0]
    assert about.startswith("6 runs, 3 seeds;")
    assert about.endswith("workload w")


def test_runs_are_named_by_what_they_differ_in() -> None:
    runs = [run(policy="fitgpp", s=s, p=1) for s in (1, 4)]
    assert [each["name"] for each in data(Page(report("x", runs)))] == ["s 1", "s 4"]
    runs = [run(policy="fifo"), run(policy="fitgpp", s=4)]
    names = [each["name"] for each in data(Page(report("x", runs)))]
    assert names == ["fifo", "fitgpp, s 4"]


def test_text_of_others_is_no_markup() -> None:
    evil = "</script><b>[[table]]"
    page = Page(report(evil, [run(policy=evil), run(policy="[[data]]")]))
    assert "".join(page.texts["title"]) == evil
    assert not any(tag == "b" for tag, _ in page.elements)
    assert [each["name"] for each in data(page)] == [evil, "[[data]]"]


def test_series_have_so_many_points_whatever_the_run() -> None:
    one = data(Page(report("x", [run(policy="priority")])))[0]
    assert len(one["used"]) == len(one["requested"]) == len(one["projects"][0]["held"]) == WINDOWS
    assert one["used"][-1] == 25.0  # 2 of 8 GPUs
    assert one["used"][0] is None  # no node yet
    assert one["requested"][0] == 11.0


def test_small_projects_are_added_up() -> None:
    cell = Cell()
    cell.node("n1", gpus=64)
    for number in range(MAX_PROJECTS + 3):
        cell.submit(f"j{chr(97 + number)}", project=f"p{number}", gpus=1 + number % 4)
    cell.cycle()
    cell.cycle(after_s=10)
    found = figures({}, history_of(cell)).projects
    assert len(found) == MAX_PROJECTS + 1
    assert found[-1].name == OTHERS
    assert sum(each.held[0] for each in found) == pytest.approx(sum(1 + n % 4 for n in range(11)))


def test_figures_can_be_sent_to_another_process() -> None:
    one = run(policy="priority")
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_report_on_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        report("x", [])


def test_a_run_without_any_task_can_be_reported_on() -> None:
    page = Page(report("x", [figures({"policy": "x"}, history_of(Cell()))]))
    assert data(page)[0]["projects"] == []
