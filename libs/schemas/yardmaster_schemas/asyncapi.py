"""The AsyncAPI 3 document: channels from the catalogue of topics, messages from the events.

The document is written as JSON, which every AsyncAPI tool reads, so that no YAML library is needed.
Payloads are references to the JSON Schemas in the same folder.
"""

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, Final

from yardmaster_schemas.envelope import SPEC_VERSION, Event
from yardmaster_schemas.events import EVENTS
from yardmaster_schemas.topics import ADMISSIONS, ASSIGNED, DECISIONS, TOPICS, Topic, assignments

ASSIGNMENTS: Final = "assignments"
KEYS: Final[Mapping[str, str]] = {
    "cell": "The cell's name; all records of a cell are in one partition, in one order.",
    "job": "The job's id; a tombstone erases the content of the job's records.",
    "node": "The node's name.",
    "task": "The task's id.",
    "topic": "The topic that the refused record came from.",
}
PURPOSE: Final[Mapping[str, str]] = {
    "details": "Content that no decision reads: commands, environments, names of people. Erasable.",
    "requests": "Requests of users and operators. LogCreated comes first.",
    "admissions": "Quota's verdict on every request, and its own terms and cycles.",
    "node-events": "Reports of node agents; a report is accepted only from the node itself.",
    "decisions": "The decisions of the scheduler, its terms and cycles.",
    "heartbeats": "Heartbeats of nodes.",
    "task-logs": "Output of tasks.",
    "quarantine": "Copies of records that were refused.",
    "cuts": "How often an operator shortened the log, and where.",
    ASSIGNMENTS: "The decisions that one node's agent acts on, copied from `decisions`.",
}
Json = dict[str, Any]


def document(files: Mapping[tuple[str, int], str]) -> Json:
    """Return the document; `files` has the path of each event version's JSON Schema."""
    topics = {**TOPICS, ASSIGNMENTS: assignments("{node}")}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Yardmaster's event log",
            "version": "1",
            "description": (
                "Immutable events in ordered partitions, the only source of truth. A record's "
                "value is the whole envelope as JSON; its headers repeat the CloudEvents "
                "attributes, and a record whose headers and value disagree is refused. Events are "
                "closed: an unknown field, type or version is refused in claims, and stops the "
                "reader of a machine's own topic."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {_id(name): _channel(name, topic) for name, topic in topics.items()},
        "operations": {
            key: operation
            for name, topic in topics.items()
            for key, operation in _operations(name, topic)
        },
        "components": {
            "messages": {
                _message_id(cls): _message(cls, files[key]) for key, cls in sorted(EVENTS.items())
            },
            "messageTraits": {"cloudEvent": _trait()},
        },
    }


def events_of(name: str) -> list[type[Event]]:
    """The event versions that a channel carries."""
    if name == ASSIGNMENTS:
        carried = [c for _, c in sorted(EVENTS.items()) if c.TYPE in ASSIGNED]
        return [c for c in carried if DECISIONS.name in c.TOPICS]
    return [c for _, c in sorted(EVENTS.items()) if name in c.TOPICS]


def _id(name: str) -> str:
    return name.replace("-", "_")


def _message_id(cls: type[Event]) -> str:
    return f"{cls.TYPE}.v{cls.VERSION}"


def _channel(name: str, topic: Topic) -> Json:
    configuration: Json = {"cleanup.policy": ["compact"] if topic.compacted else ["delete"]}
    if not topic.compacted:
        configuration["retention.ms"] = -1 if topic.retention_ms is None else topic.retention_ms
    configuration["max.message.bytes"] = topic.max_batch_bytes
    channel: Json = {
        "address": topic.name,
        "description": PURPOSE[name],
        "messages": {
            _message_id(cls): {"$ref": f"#/components/messages/{_message_id(cls)}"}
            for cls in events_of(name)
        },
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "topicConfiguration": configuration,
                "bindingVersion": "0.5.0",
            }
        },
        "x-yardmaster": {
            "key": KEYS[topic.key],
            "partitions": (
                "A cell's records are in one partition, chosen by the cell, appended in batches "
                "that are there whole or not at all."
                if topic.key == "cell"
                else "Any number; records of a key are in one partition."
            ),
            "retention": _retention(topic),
            "compression.type": topic.compression,
            "claims": topic.claims,
        },
    }
    if name == ASSIGNMENTS:
        channel["parameters"] = {"node": {"description": "The node's name."}}
        channel["x-yardmaster"]["headers"] = {
            "yard_offset": "The record's offset in `decisions`; a copy may come more than once. "
            "For a stop, also the node's incarnation and the attempt's replicas that have not "
            "started there.",
            "yard_behind": "The relay's own: from this offset on some node misses copies.",
            "yard_generation": "The relay's own: how often the log was cut before this copy.",
        }
    return channel


def _retention(topic: Topic) -> str:
    if topic.compacted:
        return "the newest record of a key, until it is erased by a tombstone"
    if topic.retention_ms is None:
        return "for ever"
    return f"{topic.retention_ms // 3_600_000} hours"


def _operations(name: str, topic: Topic) -> list[tuple[str, Json]]:
    operations = []
    for service, action in [(s, "send") for s in topic.writers] + [
        (s, "receive") for s in topic.readers
    ]:
        own = action == "receive" and service in _writers_machine(topic)
        verb = {"send": "appends to", "receive": "reads"}[action]
        operation: Json = {
            "action": action,
            "channel": {"$ref": f"#/channels/{_id(name)}"},
            "summary": f"{service} {verb} {topic.name}",
        }
        if own:
            operation["description"] = "Its own topic, read back: only what was read back counts."
        operations.append((f"{service}.{action}.{_id(name)}", operation))
    return operations


def _writers_machine(topic: Topic) -> tuple[str, ...]:
    return topic.writers if topic.name in (ADMISSIONS.name, DECISIONS.name) else ()


def _message(cls: type[Event], file: str) -> Json:
    text = cleandoc(cls.__doc__ or "")
    summary, _, more = text.partition("\n\n")
    message: Json = {
        "name": cls.TYPE,
        "title": f"{cls.TYPE} version {cls.VERSION}",
        "summary": " ".join(summary.split()),
        "contentType": "application/json",
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./{file}"},
        },
    }
    if more:
        message["description"] = " ".join(more.split())
    return message


def _trait() -> Json:
    def text(description: str, **more: Any) -> Json:
        return {"type": "string", "description": description, **more}

    properties = {
        "ce_id": text("The record's identity: source, epoch, seq."),
        "ce_type": text("The event's name."),
        "ce_source": text("The writer."),
        "ce_subject": text("What it is about: a job, task, node, pool, project or cell."),
        "ce_time": text("When, RFC 3339, UTC.", format="date-time"),
        "ce_specversion": {"const": SPEC_VERSION},
        "yard_version": text("The event's version.", pattern="^[1-9][0-9]{0,2}$"),
        "traceparent": text("W3C trace context, if there is one."),
        "yard_kid": text("Reserved: the key that signed the record."),
        "yard_sig": text("Reserved: the signature."),
    }
    required = [name for name in properties if name.startswith("ce_")] + ["yard_version"]
    return {
        "headers": {"type": "object", "required": required, "properties": properties},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": "What the channel's `key` says."},
                "bindingVersion": "0.5.0",
            }
        },
    }
