"""The field types of schemas; all are bounded, and names match patterns.

Topics that are kept forever contain only these types, so that they store no free text and no
personal data: names match patterns, integers stay below 2^53 (exact in every JSON reader),
sequences have maximum lengths.
"""

import re
from itertools import pairwise
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from yardmaster_schemas.instants import LAST_MS

#: Every model is closed and strict: no unknown key, no silent conversion.
CLOSED: Final = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

MAX_INT: Final = 2**53 - 1
#: The most replicas of a gang, tasks of a job, slots of a node, and names in a list.
MAX_REPLICAS: Final = 4096
MAX_TASKS: Final = 10_000
MAX_SLOTS: Final = 1024
MAX_NAMES: Final = 64
MAX_DEPTH: Final = 16

Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]
Permille = Annotated[int, Field(ge=0, le=1000)]
SignedInt = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
#: Milliseconds since 1970-01-01T00:00Z.
Millis = Annotated[int, Field(ge=0, le=LAST_MS)]
Seconds = Annotated[int, Field(ge=0, le=10 * 365 * 86_400)]
Priority = Annotated[int, Field(ge=1, le=99)]
#: The highest rank of a department or project among its siblings; higher ranks come first.
MAX_QUEUE_RANK: Final = 1000
Rank = Annotated[int, Field(ge=0, le=MAX_QUEUE_RANK)]
SlotIndex = Annotated[int, Field(ge=0, lt=MAX_SLOTS)]
#: Slots of a node, ascending, each once.
SlotSet = Annotated[
    tuple[SlotIndex, ...], Field(max_length=MAX_SLOTS), AfterValidator(lambda v: _ascending(v))
]
GpuMilli = Annotated[int, Field(ge=0, le=1000)]
Port = Annotated[int, Field(ge=1, le=65_535)]
ReplicaIndex = Annotated[int, Field(ge=0, lt=MAX_REPLICAS)]

#: The name of a cell, pool, node, department, project or node type, or the key or value of a label.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
JobId = Annotated[str, Field(pattern=r"^[0-9a-z]{12}$")]
TaskId = Annotated[str, Field(pattern=r"^[0-9a-z]{12}\.(0|[1-9][0-9]{0,3})$")]
#: A record's writer: `gateway/gw-1`, `scheduler/main.5f0c1e2d3a4b`, `node/gpu-07.90c1d2e3f4a5`.
Source = Annotated[str, Field(pattern=r"^[a-z_]{1,20}/[a-z0-9][a-z0-9._-]{0,90}$")]
#: A record's identity: source, epoch, seq.
RecordId = Annotated[
    str, Field(pattern=r"^[a-z_]{1,20}/[a-z0-9][a-z0-9._-]{0,90}/[0-9]{1,16}/[0-9]{1,16}$")
]
#: One life of a writer: a scheduler process, or an agent's ledger.
Incarnation = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
#: A repository: https, a host, perhaps a port, and a path; no user, query or fragment.
GitUrl = Annotated[
    str,
    Field(
        pattern=r"^https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9_~+.-]+)+$",
        max_length=256,
    ),
]
#: A host of git repositories, with its port if that is not 443.
GitHost = Annotated[
    str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$", max_length=256)
]
GitHosts = Annotated[tuple[GitHost, ...], Field(max_length=MAX_NAMES)]
CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: An Ed25519 signature.
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
#: The first 8 bytes of each record's digest, one after another: they show which record of a range
#: was changed. The limit is above the number of records in a batch of 1 MiB.
RecordMarks = Annotated[str, Field(pattern=r"^([0-9a-f]{16})*$", max_length=16 * 65_536)]
ShapeId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Code = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]
LogId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
TraceParent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
PrincipalId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}$")]
#: A claimant of a pool: a job, a project or a user; `project/NAME`: a project among users.
ClaimantName = Annotated[str, Field(pattern=r"^(project/)?[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}$")]
#: The pattern of a new user's name: narrower than a `PrincipalId`, so that it excludes email
#: addresses.
_USER_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$"
UserName = Annotated[
    str,
    AfterValidator(lambda v: _user_name(v)),
    Field(json_schema_extra={"pattern": _USER_NAME}),
]
#: A host name or address, without a port.
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,253}$")]
#: The location of a checkpoint, which Yardmaster never opens: a URI without user, query and
#: fragment.
CheckpointUri = Annotated[
    str,
    Field(
        pattern=r"^(file|s3|gs|az|abfs|hdfs|https|nfs)://[A-Za-z0-9._~/%+=,:-]+$", max_length=1024
    ),
]
#: A prefix that the URIs of a project's checkpoints must have (`yardmaster_core.checkpoint_uris`).
CheckpointPrefix = Annotated[
    str,
    Field(pattern=r"^(file|s3|gs|az|abfs|hdfs|https|nfs)://[A-Za-z0-9._~/+=:-]+$", max_length=256),
]
MAX_PREFIXES: Final = 16
#: A folder of nodes that jobs may mount: its name; `:rw` at the end: also to write.
MountGrant = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?(:rw)?$")]
MountGrants = Annotated[tuple[MountGrant, ...], Field(max_length=MAX_NAMES)]
#: The largest user or group of a job: larger numbers are those of nodes, for their tasks.
MAX_RUN_AS: Final = 2_099_999_999
RunAsId = Annotated[int, Field(ge=1, le=MAX_RUN_AS)]
_RUN_AS_ID: Final = "([1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8})"
#: A user that jobs may run as: the numbers of the user and of its group, `1500:1500`; never root.
USER_GRANT: Final = f"^{_RUN_AS_ID}:{_RUN_AS_ID}$"
UserGrant = Annotated[str, Field(pattern=USER_GRANT)]
UserGrants = Annotated[tuple[UserGrant, ...], Field(max_length=MAX_NAMES)]
#: An image, a folder or a user that an allow-list does not contain.
ListedName = Annotated[str, Field(pattern=r"^[a-z0-9.:\[\]/_-]+$", max_length=255)]
Numbers = Annotated[dict[Code, SignedInt], Field(max_length=24)]
Labels = Annotated[dict[Name, Name], Field(max_length=MAX_NAMES)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]


#: Patterns of the names and strings in policy options. They allow no spaces, so no free text.
_OPTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")
_OPTION_TEXT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
MAX_OPTIONS: Final = 64
MAX_OPTION_ITEMS: Final = 256
MAX_OPTION_DEPTH: Final = 6


def _bounded(value: JsonValue, depth: int = 1) -> JsonValue:
    if depth > MAX_OPTION_DEPTH and isinstance(value, dict | list):
        raise ValueError(f"nested deeper than {MAX_OPTION_DEPTH}")
    if isinstance(value, dict):
        if len(value) > MAX_OPTIONS:
            raise ValueError(f"more than {MAX_OPTIONS} options")
        for key, inner in value.items():
            if _OPTION_NAME.fullmatch(key) is None:
                raise ValueError(f"{key[:64]!r} is not an option name")
            _bounded(inner, depth + 1)
    elif isinstance(value, list):
        if len(value) > MAX_OPTION_ITEMS:
            raise ValueError(f"a list of more than {MAX_OPTION_ITEMS}")
        for inner in value:
            _bounded(inner, depth + 1)
    elif isinstance(value, str) and _OPTION_TEXT.fullmatch(value) is None:
        raise ValueError("a string that is not a name of at most 64 characters")
    elif isinstance(value, float):
        raise ValueError("options hold integers, not floats")
    elif isinstance(value, int) and abs(value) > MAX_INT:
        raise ValueError("an integer of 2^53 or more")
    return value


def _user_name(name: str) -> str:
    # The message does not quote the name: a faulty token file may have a token in place of a name.
    if re.fullmatch(_USER_NAME, name) is None:
        raise ValueError(
            "the name of a user has 1 to 63 letters, digits and . _ : -, begins with a letter or "
            "digit, and is no email address, because the log keeps it forever"
        )
    return name


def _ascending(slots: tuple[int, ...]) -> tuple[int, ...]:
    if any(a >= b for a, b in pairwise(slots)):
        raise ValueError("slots must be in ascending order, each once")
    return slots


#: The options of a policy as plain JSON of bounded size; the policy's own closed model parses them.
PolicyOptions = Annotated[
    dict[Code, JsonValue], Field(max_length=MAX_OPTIONS), AfterValidator(lambda v: _bounded(v))
]

# Types of free text; only topics that expire or can be erased may contain them.
ShortText = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=65_536)]
