"""`details`: content that no decision reads, such as free text. Compacted; tombstones erase it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, JsonValue

from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events.registry import event
from yardmaster_schemas.fields import (
    CLOSED,
    MAX_TASKS,
    CommitId,
    Digest,
    GitUrl,
    JobId,
    LongText,
    Name,
    Positive,
    ShortText,
)
from yardmaster_schemas.topics import DETAILS

Salt = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


#: A pattern of files, by the rules of gitignore.
ArtifactPattern = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=256)]


#: An absolute path in a container, without empty names, `.` and `..`.
MountTarget = Annotated[
    str,
    Field(
        pattern=r"^(/([^/\x00-\x1f\x7f.]|\.[^/\x00-\x1f\x7f.]|\.\.[^/\x00-\x1f\x7f])"
        r"[^/\x00-\x1f\x7f]*)+$",
        max_length=256,
    ),
]


class StopSignal(StrEnum):
    """The signal that asks a replica's process group to stop."""

    TERM = "TERM"
    INT = "INT"
    HUP = "HUP"
    QUIT = "QUIT"
    USR1 = "USR1"
    USR2 = "USR2"


class PullPolicy(StrEnum):
    """When a node pulls the image of a job: if it does not have it, at each start, or never."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeContext:
    """The uploaded folder that a job runs in: its package, stored for the job's project.

    `digest` names the package; `packed_bytes` is the size of its archive when the job was
    submitted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    digest: Digest
    packed_bytes: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class GitCommit:
    """A commit of a git repository, whose files a job without a context runs in.

    `secret` names the secret with the login for a private repository.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    url: GitUrl
    commit: CommitId
    secret: ShortText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMount:
    """A folder of the node in a container: `source` is a name of the list of the node's operator.

    `target` is the absolute path in the container.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    source: Name
    target: MountTarget
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The program of a job: a command in exec form or a script for `sh -eu`; no secrets."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    command: Annotated[tuple[LongText, ...], Field(max_length=1024)] = ()
    script: LongText | None = None
    image: ShortText | None = None
    #: None: `missing`, or no image is given.
    pull: PullPolicy | None = None
    env: Annotated[dict[EnvName, LongText], Field(max_length=512)] = field(default_factory=dict)
    secrets: Annotated[dict[EnvName, ShortText], Field(max_length=128)] = field(
        default_factory=dict
    )
    working_dir: ShortText | None = None
    context: CodeContext | None = None
    git: GitCommit | None = None
    artifacts: Annotated[tuple[ArtifactPattern, ...], Field(max_length=32)] = ()
    mounts: Annotated[tuple[FolderMount, ...], Field(max_length=16)] = ()
    shm_mib: Positive | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == (self.script is not None):
            raise ValueError("exactly one of command and script is given")
        if self.pull is not None and self.image is None:
            raise ValueError("pull is given without an image")


@event(DETAILS, name="JobDetailed")
@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetailedV1(Event):
    """A job's name, labels, owner and program; `params` has one entry per task of a search."""

    job_id: JobId
    salt: Salt
    name: ShortText
    user: ShortText
    labels: Annotated[dict[Name, ShortText], Field(max_length=64)] = field(default_factory=dict)
    run: Run
    stop_signal: StopSignal = StopSignal.TERM
    params: Annotated[tuple[dict[ShortText, JsonValue], ...], Field(max_length=MAX_TASKS)] = ()


@event(DETAILS, name="RequestNoted")
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNotedV1(Event):
    """The reason that a user gave for a request, as text."""

    salt: Salt
    subject: ShortText
    text: Annotated[str, Field(max_length=1024)]
