"""Server-sent events: their encoding and their OpenAPI schema."""

from typing import Any, Final

from pydantic_core import to_json

SSE: Final = "text/event-stream"


def event_schema(*events: str) -> dict[str, Any]:
    """The OpenAPI schema of a server-sent event whose type is one of `events`; `data` is JSON."""
    return {
        "type": "object",
        "properties": {
            "event": {"enum": list(events)},
            "id": {"type": "string"},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
        "required": ["event", "data"],
    }


def encode_event(event: str, data: Any, id_: str | None) -> bytes:
    """Encode one event; `data` becomes one line of JSON."""
    head = f"event: {event}\n" if id_ is None else f"event: {event}\nid: {id_}\n"
    return head.encode() + b"data: " + to_json(data) + b"\n\n"
