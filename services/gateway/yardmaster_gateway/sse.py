"""Server-sent events."""

from typing import Any, Final

from pydantic_core import to_json

SSE: Final = "text/event-stream"


def described(*events: str) -> dict[str, Any]:
    """The OpenAPI schema of one event of a stream; `data` is a JSON document."""
    return {
        "type": "object",
        "properties": {
            "event": {"enum": list(events)},
            "id": {"type": "string"},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
        "required": ["event", "data"],
    }


def message(event: str, data: Any, id_: str | None) -> bytes:
    """One event; `data` is sent as JSON on one line."""
    head = f"event: {event}\n" if id_ is None else f"event: {event}\nid: {id_}\n"
    return head.encode() + b"data: " + to_json(data) + b"\n\n"
