"""The folders of a job file, and whose they are: its code, its mounts and its user."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from yardmaster_schemas.events.details import MountTarget
from yardmaster_schemas.fields import MAX_INT, CommitId, Digest, GitUrl, Name, RunAsId

SecretRef = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._/-]{0,252}$")]


class Closed(BaseModel):
    """A part of a REST body: no unknown field, no silent conversion."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )


class JobContext(Closed):
    """An uploaded folder, as the body of a request names it."""

    digest: Digest = Field(
        description="SHA-256 of the uncompressed archive, under which the folder was uploaded.",
        examples=["8f3a" * 16],
    )
    packed_bytes: Annotated[int, Field(ge=1, le=MAX_INT)] = Field(
        description="Size of the compressed archive, as the upload's answer says.",
        examples=[52_431],
    )


class JobGit(Closed):
    """A commit of a git repository."""

    url: GitUrl = Field(
        description="URL of the repository: `https://HOST/PATH`, without user and query. Nodes "
        "fetch from the hosts that their operator allows (`YARD_AGENT_GIT_HOSTS`).",
        examples=["https://git.example.org/team/repo"],
    )
    commit: CommitId = Field(
        description="The commit: all 40 digits, in lower case.", examples=["8f3a9c01d2" * 4]
    )
    secret: SecretRef | None = Field(
        default=None,
        description="Name of the secret of the node with the login for a private repository: "
        "`USER:PASSWORD` or a token, in a file `PROJECT/NAME` of the job's own project, or "
        "`shared/NAME`.",
        examples=["shared/git"],
    )


class JobUser(Closed):
    """The user of `run.run_as`, by number."""

    uid: RunAsId = Field(description="The number of the user; never 0 (root).", examples=[1500])
    gid: RunAsId = Field(description="The number of its group; never 0 (root).", examples=[1500])


class JobMount(Closed):
    """A folder of the node that a container gets."""

    source: Name = Field(
        description="Name of the folder in the list of the node's operator (`YARD_AGENT_MOUNTS`).",
        examples=["datasets"],
    )
    target: MountTarget = Field(description="Absolute path in the container.", examples=["/data"])
    read_only: bool = Field(
        default=True,
        description="Whether the container may only read it. `false` needs a folder that the "
        "operator made writable.",
        examples=[False],
    )
