"""All events, by their topic; `EVENTS` is their union, discriminated by (type, version)."""

from yardmaster_schemas.events import (
    admissions,
    decisions,
    details,
    expiring,
    machine,
    node_events,
    requests,
    users,
)
from yardmaster_schemas.events.registry import EVENTS, event

__all__ = [
    "EVENTS",
    "admissions",
    "decisions",
    "details",
    "event",
    "expiring",
    "machine",
    "node_events",
    "requests",
    "users",
]
