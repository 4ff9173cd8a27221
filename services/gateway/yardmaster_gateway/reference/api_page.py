"""`/docs`: the OpenAPI document as a page for people; `/` redirects there.

Swagger UI and Redoc are scripts, and usually load from a content network. This page is plain HTML:
it has no script, loads nothing, and its content security policy allows nothing but its own style.
Like the document, it contains no data of users and needs no token.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Response
from starlette.responses import HTMLResponse, RedirectResponse

from yardmaster_schemas.words import in_words

PATH: Final = "/docs"
Json = dict[str, Any]

_STYLE: Final = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { border: 1px solid #9996; padding: .25rem .5rem; text-align: left; vertical-align: top; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: #9992; padding: .75rem; overflow-x: auto; }
:root { color-scheme: light dark; }
"""
_STYLE_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
_ABOUT: Final = (
    "Every operation under /v1 needs the header `Authorization: Bearer TOKEN`. A write is answered "
    "with 202 when its request is in the log; `GET /v1/requests/{request_id}` shows the decision "
    "of quota. Errors are problem documents (RFC 9457)."
)


def router_of(html: Callable[[], str]) -> APIRouter:
    """The routes of the page, whose text `html` returns."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def to_page() -> Response:
        return RedirectResponse(PATH)

    @router.get(PATH)
    async def page() -> Response:
        return HTMLResponse(html(), headers=_HEADERS)

    return router


def html_of(api: Json) -> str:
    """An OpenAPI document as a page."""
    return "\n".join(_lines(api)) + "\n"


def _lines(api: Json) -> Iterator[str]:
    info, models = api["info"], api["components"]["schemas"]
    title = f"{info['title']} {info['version']}: REST API"
    yield f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>"
    yield f'<p>{_text(info["description"])} <a href="/openapi.json">OpenAPI document</a></p>'
    yield f"<p>{_text(_ABOUT)}</p>\n<h2>Operations</h2>"
    found = [
        (f"{method.upper()} {path}", operation)
        for path, operations in api["paths"].items()
        for method, operation in operations.items()
    ]
    rows = [
        [_link(anchor_of(title), title), _text(operation["description"].partition("\n\n")[0])]
        for title, operation in found
    ]
    yield from _table(["method and path", "what it does"], rows)
    for title, operation in found:
        yield from _operation(title, operation, models)
    yield "<h2>Bodies and answers</h2>"
    for name, schema in models.items():
        yield from _model(name, schema, models)
    yield "</body>\n</html>"


def _operation(title: str, operation: Json, models: Json) -> Iterator[str]:
    yield f'<h3 id="{anchor_of(title)}"><code>{escape(title)}</code></h3>'
    for paragraph in operation["description"].strip().split("\n\n"):
        yield f"<p>{_text(paragraph)}</p>"
    rows = [
        [
            f"<code>{escape(each['name'])}</code>{' (required)' if each.get('required') else ''}",
            each["in"],
            _type(each["schema"], models),
            _text(each["description"]),
            f"<code>{escape(str(each['example']))}</code>",
        ]
        for each in operation.get("parameters", ())
    ]
    yield from _table(["parameter", "in", "type", "meaning", "example"], rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        model = models.get(in_words(content["schema"]))
        if model is None:
            yield f"<p>Body: <code>{escape(kind)}</code>.</p>"
            continue
        yield f"<p>Body: {_type(content['schema'], models)}, for example:</p>"
        yield f"<pre>{escape(json.dumps(model['example'], indent=2))}</pre>"
    rows = []
    for status, answer in operation["responses"].items():
        kinds = (
            {_type(content.get("schema", {}), models) for content in answer["content"].values()}
            if "content" in answer
            else set()
        )
        rows.append([status, _text(answer["description"]), ", ".join(sorted(kinds - {"any"}))])
    yield from _table(["status", "meaning", "answer"], rows)


def _model(name: str, schema: Json, models: Json) -> Iterator[str]:
    yield f'<h3 id="model-{escape(name)}"><code>{escape(name)}</code></h3>'
    if "description" in schema:
        yield f"<p>{_text(schema['description'])}</p>"
    if "enum" in schema:
        yield f"<p>One of: {_text(in_words(schema))}</p>"
    required = schema.get("required", ())
    rows = [
        [
            f"<code>{escape(field)}</code>{' (required)' if field in required else ''}",
            _type(form, models),
            f"<code>{escape(json.dumps(form['default']))}</code>" if "default" in form else "",
            _text(form["description"]),
            f"<code>{escape(json.dumps(form['examples'][0]))}</code>",
        ]
        for field, form in schema.get("properties", {}).items()
    ]
    yield from _table(["field", "type", "default", "meaning", "example"], rows)


def _table(heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    if rows:
        yield "<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"
        for row in rows:
            yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
        yield "</table>"


def anchor_of(title: str) -> str:
    """The id of an operation on the page."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _link(anchor: str, title: str) -> str:
    return f'<a href="#{anchor}"><code>{escape(title)}</code></a>'


def _type(schema: Json, models: Json) -> str:
    """The type in words, with links to models."""
    words = escape(in_words(schema))
    return re.sub(
        r"[A-Z]\w+",
        lambda found: _link(f"model-{found[0]}", found[0]) if found[0] in models else found[0],
        words,
    )


def _text(text: str) -> str:
    """A text with its code between backticks marked."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
