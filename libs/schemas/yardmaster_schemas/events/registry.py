"""The registry of events: the class of each (type, version)."""

from collections.abc import Callable
from typing import Final, TypeVar

from yardmaster_schemas.construct import writes_slots
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.topics import Topic

E = TypeVar("E", bound=Event)

#: Every event ever published, by (type, version).
EVENTS: Final[dict[tuple[str, int], type[Event]]] = {}


def event(
    *topics: Topic, name: str, version: int = 1, rules: int = 0
) -> Callable[[type[E]], type[E]]:
    """Publish a frozen dataclass as version `version` of the event `name` in `topics`.

    `rules`: the version of the rules that introduces it (see `yardmaster_core.rules`). A log in
    which older rules are in force must not contain it.
    """

    def publish(cls: type[E]) -> type[E]:
        if (name, version) in EVENTS:
            raise ValueError(f"{name} version {version} is published twice")
        cls.TYPE = name
        cls.VERSION = version
        cls.RULES = rules
        cls.TOPICS = tuple(t.name for t in topics)
        EVENTS[name, version] = cls
        return writes_slots(cls)

    return publish
