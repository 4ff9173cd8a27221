"""The records in `details` that events refer to."""

from collections.abc import Callable
from typing import Any

from yardmaster_projections.projection.draft import Draft
from yardmaster_schemas.envelope import Envelope, Event
from yardmaster_schemas.events import requests as r
from yardmaster_schemas.events.details import JobDetailedV1, RequestNotedV1

#: The record in `details` that an event refers to; None if the event refers to none, or if the
#: record was erased.
Details = JobDetailedV1 | RequestNotedV1 | None
#: Applies one version of an event to a draft.
Projector = Callable[[Draft, Envelope[Any], Details], None]


def details_of(event: Event) -> r.DetailsRef | None:
    """The reference to an event's details, if the views contain them."""
    if isinstance(event, r.TaskSubmittedV1):
        return event.details
    if isinstance(
        event,
        r.CancelRequestedV1
        | r.PauseRequestedV1
        | r.NodeCordonRequestedV1
        | r.NodeDrainRequestedV1
        | r.NodeSlotsChangeRequestedV1,
    ):
        return event.note
    return None
