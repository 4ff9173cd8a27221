"""`/docs` shows the whole OpenAPI document, loads nothing, and needs no token."""

import re
from html.parser import HTMLParser

from tests.support.gateway import GatewayCell
from yardmaster_gateway.app import document
from yardmaster_gateway.reference.api_page import anchor_of, html_of


class Found(HTMLParser):
    """The tags, ids and links of a page; checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        self.links.add(values.get("href") or values.get("src") or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def found(html: str) -> Found:
    parser = Found()
    parser.feed(html)
    assert parser.open == []
    return parser


def test_the_page_has_every_operation_and_model_and_no_dead_link() -> None:
    page = found(html_of(document()))
    operations = {
        anchor_of(f"{method} {path}")
        for path, methods in document()["paths"].items()
        for method in methods
    }
    models = {f"model-{name}" for name in document()["components"]["schemas"]}
    assert operations | models == page.ids - {""}
    assert {link.removeprefix("#") for link in page.links if link.startswith("#")} <= page.ids


def test_the_page_runs_no_script_and_loads_nothing() -> None:
    page = found(html_of(document()))
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form"})
    assert {link for link in page.links if not link.startswith("#")} == {"", "/openapi.json"}


def test_text_of_the_document_is_escaped() -> None:
    api = document()
    html = html_of({**api, "info": {**api["info"], "description": "<script>alert(1)</script>"}})
    assert "<script" not in html
    assert "&lt;script&gt;" in html


async def test_the_page_needs_no_token_and_the_root_redirects_to_it(cell: GatewayCell) -> None:
    async with cell.client(None) as client:
        root = await client.get("/")
        assert (root.status_code, root.headers["location"]) == (307, "/docs")
        page = await client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/=]+'; base-uri 'none'; form-action 'none'; "
        r"frame-ancestors 'none'",
        policy,
    )
    assert "/docs" not in document()["paths"]
