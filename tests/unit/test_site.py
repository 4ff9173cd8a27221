"""A reader finds the answer to a frequent question within two clicks from the first page.

Only links in the text of the built pages count, not those of the menu, which lists every page.
"""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import urldefrag, urljoin

import pytest

from tests.unit.test_docs import generated, job_keys
from yardmaster_schemas.reasons import WaitCode

ROOT: Final = Path(__file__).parents[2]
CLICKS: Final = 2
#: The place of each answer, and the words that the text of its section must contain.
ANSWERS: Final = {
    "every key of a job file": ("reference/job-file.html", list(job_keys())),
    "every environment variable of a task": (
        "reference/task-environment.html",
        list(generated().MEANINGS),
    ),
    "how to add a user": ("how-to/users.html#add-a-user", ["yard users add", "--role"]),
    "how to size brokers": (
        "how-to/sizing.html#brokers-and-partitions",
        ["three brokers", "YARD_KAFKA__REPLICATION_FACTOR"],
    ),
    "why a task waits": (
        "reference/reasons.html",
        [code.value for code in WaitCode],
    ),
}


class Page(HTMLParser):
    """The links of a page's text, and the text of each section by its id; "" is the whole text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sections: dict[str, str] = {"": ""}
        self._in_text = False
        #: The ids of the open sections, by the level of their headings.
        self._open = {0: ""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "article":
            self._in_text = True
        elif self._in_text and re.fullmatch("h[1-6]", tag) and given.get("id"):
            level = int(tag[1])
            self._open = {each: name for each, name in self._open.items() if each < level}
            self._open[level] = given["id"] or ""
            self.sections[self._open[level]] = ""
        elif self._in_text and tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._in_text = False

    def handle_data(self, data: str) -> None:
        if self._in_text:
            for name in self._open.values():
                self.sections[name] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The built pages by their path."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        check=True,
    )
    return {str(path.relative_to(folder)): Page(path) for path in folder.rglob("*.html")}


def clicks_to(site: dict[str, Page]) -> dict[str, int]:
    """The fewest clicks from the first page to each page, and to each section that is linked."""
    found = {"index.html": 0}
    queue = ["index.html"]
    for at in queue:
        page = urldefrag(at).url
        for link in site[page].links:
            target = urljoin(page, link)
            for place in (target, urldefrag(target).url):
                if urldefrag(place).url in site and place not in found:
                    found[place] = found[at] + 1
                    queue.append(place)
    return found


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_within_two_clicks_of_the_first_page(
    question: str, site: dict[str, Page]
) -> None:
    place, words = ANSWERS[question]
    page, section = urldefrag(place)
    clicks = clicks_to(site)
    assert clicks[page] <= CLICKS
    text = site[page].sections[section]
    assert [word for word in words if word not in text] == []


def test_every_page_can_be_reached_by_links_in_the_text(site: dict[str, Page]) -> None:
    assert sorted(site.keys() - clicks_to(site).keys() - {"404.html"}) == []
