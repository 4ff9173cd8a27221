"""The job file: what a user writes to submit a job, as YAML or as the body of `POST /v1/jobs`.

`JobSpec` holds the values as the user wrote them, such as `256Gi`; `parts_of` converts them for the
log. All checks that need no state are made here, so that the command line can make them before it
sends a request.

Each key has a description and examples, from which the reference page and the API's document are
generated.
"""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    field_validator,
    model_validator,
)

from yardmaster_schemas.events.details import (
    ArtifactPattern,
    CodeContext,
    EnvName,
    FolderMount,
    GitCommit,
    PullPolicy,
    Run,
    StopSignal,
)
from yardmaster_schemas.events.requests import (
    ExitZero,
    Kind,
    Layout,
    Role,
    SubmittedSpec,
    Unschedulable,
)
from yardmaster_schemas.fields import (
    MAX_INT,
    MAX_REPLICAS,
    MAX_SLOTS,
    MAX_TASKS,
    CheckpointUri,
    LongText,
    Name,
    Priority,
)
from yardmaster_schemas.image_names import repository_of
from yardmaster_schemas.job_folders import Closed, JobContext, JobGit, JobMount, JobUser, SecretRef
from yardmaster_schemas.job_secrets import SHARED, may_read
from yardmaster_schemas.program import program_of
from yardmaster_schemas.quantities import (
    DURATION_PATTERN,
    MEMORY_PATTERN,
    duration_s,
    gpu_slots,
    memory_mib,
    milli,
)
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.run_as import RunAs

#: Prefixes of variables that Yardmaster or the driver sets; a job may not set them.
RESERVED_ENV: Final = ("LD_", "YARD_", "NVIDIA_", "CUDA_")
MAX_AXES: Final = 16
#: CPUs of a replica whose job file does not set them.
DEFAULT_CPUS: Final = 1


def _duration(text: str) -> str:
    duration_s(text)
    return text


def _memory(text: str) -> str:
    memory_mib(text)
    return text


def _thousandths(amount: int | float) -> int | float:
    milli(amount, "the number")
    return amount


def _with_unit(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write {value}Mi or {value}Gi")
    return value


# The patterns are only shown in the schema: the validators check the values, with better messages.
#: `90s`, `20m`, `12h`, `1h30m`, `7d`.
Duration = Annotated[
    str, AfterValidator(_duration), Field(json_schema_extra={"pattern": DURATION_PATTERN})
]
#: `512Mi`, `256Gi`, `1Ti`.
Memory = Annotated[
    str,
    BeforeValidator(_with_unit),
    AfterValidator(_memory),
    Field(json_schema_extra={"pattern": MEMORY_PATTERN}),
]
#: A number with at most three decimals.
Amount = Annotated[int | float, Field(ge=0, le=1_000_000), AfterValidator(_thousandths)]
#: One line of text, without control characters.
Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=128)]
#: The path of a folder on the machine that submits a job.
ContextPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4096)]
LabelValue = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=256)]
Axis = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
Scalar = (
    Annotated[str, Field(max_length=256)]
    | Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
    | float
    | bool
    | None
)


class GpuFractions(Closed):
    """`count` slots, `fraction` of each: two halves are {count: 2, fraction: 0.5}."""

    count: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = Field(
        description="How many shared GPUs.", examples=[2]
    )
    fraction: Annotated[float, Field(ge=0.001, le=1)] = Field(
        description="The fraction of each of them.", examples=[0.5]
    )


def _gpu_form(value: Any) -> str:
    return "fractions" if isinstance(value, dict | GpuFractions) else "number"


Gpus = Annotated[
    Annotated[Annotated[int | float, Field(ge=0, le=MAX_SLOTS)], Tag("number")]
    | Annotated[GpuFractions, Tag("fractions")],
    Discriminator(_gpu_form),
]


class JobResources(Closed):
    """The resources of one replica. `gpus` is a number (0.5: half a GPU) or {count, fraction}.

    With `replicas: auto` the GPUs are those of the whole task.
    """

    gpus: Gpus = Field(
        default=0,
        description="GPUs of one replica: a number, or `{count, fraction}` for equal fractions of "
        "several GPUs. With `replicas: auto`, GPUs of the whole task.",
        examples=[8, 0.5, {"count": 2, "fraction": 0.5}],
    )
    cpus: Amount = Field(
        default=DEFAULT_CPUS, description="CPUs of one replica; 0 for none.", examples=[4, 0.5]
    )
    memory: Memory | None = Field(
        default=None,
        description="Memory of one replica. Default: no request.",
        examples=["256Gi", "512Mi"],
    )
    gpu_memory: Memory | None = Field(
        default=None,
        description="A fraction of each of its GPUs, given as memory of the GPU. "
        "`gpus` is then their number, 1 if it is left out.",
        examples=["20Gi"],
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _not_by_memory(cls, value: Any) -> Any:
        if isinstance(value, dict) and "memory" in value:
            raise ValueError("write the number of GPUs here, and their memory as gpu_memory: 20Gi")
        return value

    @field_validator("gpus")
    @classmethod
    def _countable(cls, value: int | float | GpuFractions) -> int | float | GpuFractions:
        if isinstance(value, GpuFractions):
            milli(value.fraction, "fraction")
        else:
            gpu_slots(value)
        return value

    @model_validator(mode="after")
    def _one_form(self) -> "JobResources":
        if self.gpu_memory is None:
            return self
        if memory_mib(self.gpu_memory) == 0:
            raise ValueError("gpu_memory must be at least 1Mi; leave it out for no request")
        if isinstance(self.gpus, GpuFractions) or self.gpus % 1:
            raise ValueError("gpus must be a whole number with gpu_memory, which sets the fraction")
        if not self.gpus and "gpus" in self.model_fields_set:
            raise ValueError("gpus must be at least 1 with gpu_memory; 1 if it is left out")
        return self


class ReplicaRange(Closed):
    """A gang of `min` to `max` replicas. Both must be equal: elastic gangs are not supported."""

    min: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        description="The fewest replicas.", examples=[2]
    )
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(
        description="The most replicas; must equal `min`, because elastic gangs are not supported "
        "yet.",
        examples=[2],
    )

    @model_validator(mode="after")
    def _ordered(self) -> "ReplicaRange":
        if self.min > self.max:
            raise ValueError("min is greater than max")
        if self.min < self.max:
            raise ValueError("elastic gangs (max above min) are not supported yet; give one number")
        return self


def _replica_form(value: Any) -> str:
    if isinstance(value, dict | ReplicaRange):
        return "range"
    return "word" if isinstance(value, str) else "number"


#: `auto`: one replica on a node that can hold the whole task, or one on each of several idle nodes.
Replicas = Annotated[
    Annotated[Annotated[int, Field(ge=1, le=MAX_REPLICAS)], Tag("number")]
    | Annotated[ReplicaRange, Tag("range")]
    | Annotated[Literal["auto"], Tag("word")],
    Discriminator(_replica_form),
]


class JobTasks(Closed):
    """An array of `count` tasks, or one task for every point of `matrix`."""

    count: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = Field(
        default=None,
        description="Number of tasks of an array; give `count` or `matrix`.",
        examples=[20],
    )
    matrix: (
        Annotated[
            dict[Axis, Annotated[list[Scalar], Field(min_length=1, max_length=MAX_TASKS)]],
            Field(min_length=1, max_length=MAX_AXES),
        ]
        | None
    ) = Field(
        default=None,
        description="One task for each point of these axes; the last axis changes fastest. "
        "A task reads its point from `YARD_PARAMS`.",
        examples=[{"lr": [0.1, 0.01], "seed": [1, 2, 3]}],
    )
    max_concurrent: Annotated[int, Field(ge=1, le=MAX_TASKS)] | None = Field(
        default=None,
        description="The most tasks of the job that run at once. Default: no limit.",
        examples=[3],
    )

    @model_validator(mode="after")
    def _one_way(self) -> "JobTasks":
        if (self.count is None) == (self.matrix is None):
            raise ValueError("give either count or matrix")
        if self.size > MAX_TASKS:
            raise ValueError(f"{self.size} tasks are more than the {MAX_TASKS} a job may have")
        return self

    @property
    def size(self) -> int:
        """The number of tasks."""
        if self.matrix is not None:
            return prod(len(values) for values in self.matrix.values())
        return self.count or 1


class JobStop(Closed):
    """How a task is stopped: the signal, the grace period, and the meaning of exit code 0."""

    signal: StopSignal = Field(
        default=StopSignal.TERM, description="Signal that asks a task to stop.", examples=["USR1"]
    )
    grace: Duration | None = Field(
        default=None,
        description="Time between the signal and the kill, up to the `max_grace` of the pool. "
        "Default: 120s.",
        examples=["2m"],
    )
    exit_zero: ExitZero | None = Field(
        default=None,
        description="What exit code 0 means after a request to stop: `stopped`, the task is "
        "requeued; `finished`, it succeeded. Default: `stopped`.",
        examples=["finished"],
    )


class JobCheckpoint(Closed):
    """The checkpoint from which the first attempt starts."""

    start_from: CheckpointUri = Field(
        description="Checkpoint from which the first attempt starts; the task finds it in "
        "`YARD_CHECKPOINT_URI`.",
        examples=["s3://models/base"],
    )


#: Folders that the engine or the agent makes in a container.
_TAKEN: Final = ("/dev", "/proc", "/sys", "/yard")


class JobRun(Closed):
    """The program: a command in exec form or a script for `sh -eu`; secrets by reference only."""

    image: Line | None = Field(
        default=None,
        description="Container image; needs a node that runs containers.",
        examples=["registry.example.org/train:1.4"],
    )
    pull: PullPolicy | None = Field(
        default=None,
        description="When a node pulls the image: `missing`, if it does not have it; `always`, at "
        "each start; `never`. Only with an image. Default: `missing`.",
        examples=["always"],
    )
    command: Annotated[list[LongText], Field(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="Program and arguments; give `command` or `script`.",
        examples=[["python3", "train.py"]],
    )
    script: Annotated[LongText, Field(min_length=1)] | None = Field(
        default=None,
        description="Script for `sh -eu`; give `command` or `script`.",
        examples=["python3 prepare.py && python3 train.py"],
    )
    env: Annotated[dict[EnvName, LongText], Field(max_length=512)] = Field(
        default_factory=dict,
        description="Environment variables. The log records them, so they must not be secrets.",
        examples=[{"NCCL_DEBUG": "WARN"}],
    )
    secrets: Annotated[dict[EnvName, SecretRef], Field(max_length=128)] = Field(
        default_factory=dict,
        description="Variables whose values the agent reads from files of these names in the "
        "secrets directory of its node: `PROJECT/NAME` of the job's own project, or `shared/NAME`.",
        examples=[{"HF_TOKEN": "shared/hf"}],
    )
    working_dir: Line | None = Field(
        default=None,
        description="Folder to run in; a relative path is relative to the file. Default: the "
        "folder of `yard submit`.",
        examples=["."],
    )
    context: JobContext | ContextPath | None = Field(
        default=None,
        description="Folder with the code of the job, relative to the file: `yard submit` uploads "
        "it, and each replica runs in a copy of its own. `working_dir` is then a folder in it. The "
        "body of a request contains `{digest, packed_bytes}` of the upload instead of a path.",
        examples=["."],
    )
    git: JobGit | None = Field(
        default=None,
        description="Commit of a git repository, instead of `context`: each replica runs "
        "in a copy of its files. `working_dir` is then a folder in it.",
        examples=[{"url": "https://git.example.org/team/repo", "commit": "8f3a9c01d2" * 4}],
    )

    artifacts: Annotated[list[ArtifactPattern], Field(max_length=32)] = Field(
        default_factory=list,
        description="Files of the working folder that are kept after the end of each attempt: "
        "patterns with the rules of `.gitignore`. They need `context` or `git`, whose copy is "
        "the working folder.",
        examples=[["out/**", "*.onnx"]],
    )

    mounts: Annotated[list[JobMount], Field(max_length=16)] = Field(
        default_factory=list,
        description="Folders of the node that the container gets; they need `image`. Each has a "
        "`source`, a name in the list of the node's operator (`YARD_AGENT_MOUNTS`), a `target`, an "
        "absolute path in the container, and `read_only`, which is true by default.",
        examples=[[{"source": "datasets", "target": "/data"}]],
    )
    shm: Memory | None = Field(
        default=None,
        description="Size of `/dev/shm`, which counts as memory of the container; needs `image`. "
        "Default: half of the memory, at most 8Gi.",
        examples=["8Gi"],
    )
    run_as: JobUser | None = Field(
        default=None,
        description="User that the replicas run as, by the numbers of user and group, so that "
        "files in shared folders belong to it. An operator must have allowed it to the project "
        "(`yard projects set NAME users=UID:GID`). Default: a user of the node for each attempt.",
        examples=[{"uid": 1500, "gid": 1500}],
    )

    @model_validator(mode="after")
    def _mounts_into_a_container(self) -> "JobRun":
        for key in ("mounts", "shm"):
            if getattr(self, key) and self.image is None:
                raise ValueError(f"{key} is for containers: give image, or remove {key}")
        targets = [mount.target for mount in self.mounts]
        for target in targets:
            if f"{target}/".startswith(tuple(f"{taken}/" for taken in _TAKEN)):
                raise ValueError(f"mounts: {target} is in a folder that each container has already")
        if len(set(targets)) < len(targets):
            raise ValueError("mounts: two mounts have the same target")
        return self

    @model_validator(mode="after")
    def _has_a_folder_of_its_own(self) -> "JobRun":
        if self.artifacts and self.context is None and self.git is None:
            raise ValueError(
                "artifacts are kept from the copy of the context: add context, which may be an "
                "empty folder"
            )
        return self

    @model_validator(mode="after")
    def _runs_in_the_context(self) -> "JobRun":
        if self.context is not None and self.git is not None:
            raise ValueError("give either context or git")
        if self.context is None and self.git is None:
            return self
        named = self.working_dir
        if named is not None and (named.startswith("/") or ".." in named.split("/")):
            raise ValueError(
                "working_dir must be a folder in the context or commit: a relative path without .."
            )
        return self

    @field_validator("image")
    @classmethod
    def _names_an_image(cls, image: str | None) -> str | None:
        if image is not None:
            repository_of(image)
        return image

    @model_validator(mode="after")
    def _pulls_an_image(self) -> "JobRun":
        if self.pull is not None and self.image is None:
            raise ValueError("pull says when an image is pulled: give image, or remove pull")
        return self

    @model_validator(mode="after")
    def _one_program(self) -> "JobRun":
        if (self.command is None) == (self.script is None):
            raise ValueError("give either command or script")
        for text in (*(self.command or ()), self.script or "", *self.env.values()):
            if "\x00" in text:
                raise ValueError("a command, script or variable contains a zero byte")
        for variable in (*self.env, *self.secrets):
            if variable.startswith(RESERVED_ENV):
                raise ValueError(f"variable {variable} is reserved; Yardmaster sets it")
        return self


class JobSpec(Closed):
    """A job as the user describes it."""

    version: Literal[1] = Field(default=1, description="Version of this format.", examples=[1])
    name: Line | None = Field(
        default=None,
        description="Name of the job. Default: the name of the program.",
        examples=["llm-sft"],
    )
    project: Name = Field(
        description="Project that the job belongs to; `yard submit` fills it in.", examples=["nlp"]
    )
    kind: Kind = Field(default=Kind.TRAINING, description="Kind of work.", examples=["interactive"])
    role: Role | None = Field(
        default=None, description="Only for `kind: interactive`.", examples=["notebook"]
    )
    preemptible: bool | None = Field(
        default=None,
        description="Whether other tasks may preempt it. Default: true for `kind: training`, else "
        "false.",
        examples=[False],
    )
    priority: Priority | None = Field(
        default=None,
        description="A smaller number is a higher priority. Default: that of the project, else of "
        "the pool (42).",
        examples=[10],
    )
    weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="Weight of the job in a fair share among jobs. Default: 1.",
        examples=[2],
    )
    max_slots: Annotated[Amount, Field(gt=0)] | None = Field(
        default=None,
        description="The most GPUs that the tasks of the job hold at once. Default: no limit.",
        examples=[64],
    )
    pools: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list,
        description="Pools that it may run in, in order of preference. Default: the default "
        "pools of the project, else of the cell, else all pools that the project may use.",
        examples=[["h100", "a100"]],
    )
    node_types: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list,
        description="Types of node that it may run on. Default: those that the project may use for "
        "its kind.",
        examples=[["sxm"]],
    )
    avoid_nodes: Annotated[list[Name], Field(max_length=64)] = Field(
        default_factory=list,
        description="Nodes that it never runs on.",
        examples=[["gpu-07", "gpu-12"]],
    )
    resources: JobResources = Field(
        default=JobResources(),
        description="What one replica needs.",
        examples=[{"gpus": 8, "cpus": 32, "memory": "256Gi"}],
    )
    replicas: Replicas = Field(
        default=1,
        description="Replicas of the gang, which start together or not at all. `auto`: one on "
        "each of as many whole nodes as `resources.gpus` needs.",
        examples=[2, "auto"],
    )
    tasks: JobTasks | None = Field(
        default=None,
        description="An array or a search. Default: one task.",
        examples=[{"count": 20, "max_concurrent": 3}],
    )
    min_runtime: Duration | None = Field(
        default=None,
        description="An attempt is not preempted before it has run this long, up to the limit of "
        "the project. Default: 0s.",
        examples=["20m"],
    )
    runtime_estimate: Duration | None = Field(
        default=None,
        description="How long a task would run undisturbed; only the policies `lrtp` and `sjf` "
        "read it.",
        examples=["8h"],
    )
    time_limit: Duration | None = Field(
        default=None,
        description="A task that has run longer, all attempts together, is stopped and fails. "
        "Default: no limit.",
        examples=["12h"],
    )
    max_restarts: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Restarts after a failure. A preemption or a lost node does not count. "
        "Default: 0.",
        examples=[3],
    )
    unschedulable: Unschedulable | None = Field(
        default=None,
        description="What to do while no node can ever hold it. Default: `wait`.",
        examples=["fail"],
    )
    stop: JobStop = Field(
        default=JobStop(),
        description="How a task is asked to stop.",
        examples=[{"signal": "USR1", "grace": "2m"}],
    )
    checkpoint: JobCheckpoint | None = Field(
        default=None,
        description="Where the first attempt starts from.",
        examples=[{"start_from": "s3://models/base"}],
    )
    run: JobRun = Field(
        description="The program of every task.", examples=[{"command": ["python3", "train.py"]}]
    )
    labels: Annotated[dict[Name, LabelValue], Field(max_length=64)] = Field(
        default_factory=dict,
        description="Labels to filter lists by: `yard ls --label team=nlp`.",
        examples=[{"team": "nlp"}],
    )

    @model_validator(mode="before")
    @classmethod
    def _no_topology(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("topology") is not None:
            raise ValueError("topology is not yet supported; leave it out")
        if isinstance(data, dict) and "topology" in data:
            return {key: value for key, value in data.items() if key != "topology"}
        return data

    @model_validator(mode="after")
    def _own_secrets(self) -> "JobSpec":
        git = self.run.git
        named = {f"secrets.{key}": name for key, name in self.run.secrets.items()}
        if git is not None and git.secret is not None:
            named["git.secret"] = git.secret
        for key, reference in named.items():
            if not may_read(self.project, reference):
                raise ValueError(
                    f"run.{key} names a secret of another project; a job reads "
                    f"secrets of its project (PROJECT/NAME) and shared ones ({SHARED}/NAME)"
                )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "JobSpec":
        if self.role is not None and self.kind is not Kind.INTERACTIVE:
            raise ValueError("role is only for jobs of kind interactive")
        if len(set(self.pools)) < len(self.pools):
            raise ValueError("a pool is named twice")
        if len(set(self.node_types)) < len(self.node_types):
            raise ValueError("a node type is named twice")
        if len(set(self.avoid_nodes)) < len(self.avoid_nodes):
            raise ValueError("a node to avoid is named twice")
        resources = _resources(self)
        if self.replicas == "auto" and (
            resources.gpu_milli not in (0, 1000) or resources.gpu_memory_mib
        ):
            raise ValueError("replicas: auto is only for whole GPUs; give a number of replicas")
        return self


def parse_job(text: str | bytes) -> JobSpec:
    """Parse a job from a JSON document.

    Raises: pydantic.ValidationError; each error names a field and its mistake.
    """
    return JobSpec.model_validate_json(text)


def with_context(spec: JobSpec, context: JobContext) -> JobSpec:
    """Return a job with its uploaded folder instead of the path of the folder."""
    return spec.model_copy(update={"run": spec.run.model_copy(update={"context": context})})


@dataclass(frozen=True, slots=True)
class JobParts:
    """A job in the types of the log."""

    #: The given name of the job, or the name of the program that its command runs.
    name: str
    #: The fields of the job that decisions need, in integers; for None, project or pool have the
    #: default.
    requested: SubmittedSpec
    #: The program for the agent.
    run: Run
    #: The parameters of each task, the last axis varying fastest; empty without a matrix.
    params: tuple[dict[str, JsonValue], ...]


def parts_of(spec: JobSpec) -> JobParts:
    """Convert a job from the values that the user wrote to the types of the log.

    Raises: ValueError: the folder that `run.context` names was not uploaded.
    """
    return JobParts(
        name=_name(spec), requested=_requested(spec), run=_run(spec), params=_params(spec)
    )


def _resources(spec: JobSpec) -> Resources:
    """Return the resources of one replica, in slots, milli and MiB."""
    gpus, gpu_memory = spec.resources.gpus, spec.resources.gpu_memory
    if isinstance(gpus, GpuFractions):
        slots = Resources(gpus=gpus.count, gpu_milli=milli(gpus.fraction, "fraction"))
    elif gpu_memory is not None:
        slots = Resources(gpus=int(gpus) or 1, gpu_memory_mib=memory_mib(gpu_memory))
    else:
        slots = gpu_slots(gpus)
    return Resources(
        gpus=slots.gpus,
        gpu_milli=slots.gpu_milli,
        cpu_milli=milli(spec.resources.cpus, "cpus"),
        memory_mib=memory_mib(spec.resources.memory) if spec.resources.memory else 0,
        gpu_memory_mib=slots.gpu_memory_mib,
    )


def _replicas(spec: JobSpec) -> tuple[int, int]:
    """Return the minimum and maximum number of replicas."""
    replicas = spec.replicas
    if isinstance(replicas, ReplicaRange):
        return replicas.min, replicas.max
    return (1, 1) if replicas == "auto" else (replicas, replicas)


def _requested(spec: JobSpec) -> SubmittedSpec:
    low, high = _replicas(spec)
    return SubmittedSpec(
        kind=spec.kind,
        role=spec.role,
        preemptible=spec.preemptible,
        priority=spec.priority,
        weight=spec.weight,
        max_slots_milli=None if spec.max_slots is None else milli(spec.max_slots, "max_slots"),
        pools=tuple(spec.pools),
        node_types=tuple(spec.node_types),
        resources=_resources(spec),
        replicas_min=low,
        replicas_max=high,
        tasks=spec.tasks.size if spec.tasks else 1,
        max_concurrent=spec.tasks.max_concurrent if spec.tasks else None,
        min_runtime_s=None if spec.min_runtime is None else duration_s(spec.min_runtime),
        time_limit_s=None if spec.time_limit is None else duration_s(spec.time_limit),
        max_restarts=spec.max_restarts,
        unschedulable=spec.unschedulable,
        grace_s=None if spec.stop.grace is None else duration_s(spec.stop.grace),
        exit_zero=spec.stop.exit_zero,
        checkpoint_uri=spec.checkpoint.start_from if spec.checkpoint else None,
        layout=Layout.WHOLE_NODES if spec.replicas == "auto" else Layout.REPLICAS,
        avoid_nodes=tuple(spec.avoid_nodes),
        runtime_estimate_s=(
            None if spec.runtime_estimate is None else duration_s(spec.runtime_estimate)
        ),
        image=None if spec.run.image is None else repository_of(spec.run.image),
        mounts=_mount_grants(spec),
        run_as=_run_as(spec),
        git_host=None if spec.run.git is None else urlsplit(spec.run.git.url).netloc,
    )


def _mount_grants(spec: JobSpec) -> tuple[str, ...]:
    """Return what the allow-lists of mounts must contain, in the order of the names."""
    writable = {one.source for one in spec.run.mounts if not one.read_only}
    sources = sorted({one.source for one in spec.run.mounts})
    return tuple(f"{name}:rw" if name in writable else name for name in sources)


def _run_as(spec: JobSpec) -> RunAs | None:
    given = spec.run.run_as
    return None if given is None else RunAs(uid=given.uid, gid=given.gid)


def _run(spec: JobSpec) -> Run:
    git = spec.run.git
    return Run(
        command=tuple(spec.run.command or ()),
        script=spec.run.script,
        image=spec.run.image,
        pull=spec.run.pull,
        env=dict(spec.run.env),
        secrets=dict(spec.run.secrets),
        working_dir=spec.run.working_dir,
        context=_context(spec),
        git=None if git is None else GitCommit(url=git.url, commit=git.commit, secret=git.secret),
        artifacts=tuple(spec.run.artifacts),
        mounts=tuple(
            FolderMount(source=one.source, target=one.target, read_only=one.read_only)
            for one in spec.run.mounts
        ),
        shm_mib=None if spec.run.shm is None else memory_mib(spec.run.shm),
    )


def _context(spec: JobSpec) -> CodeContext | None:
    given = spec.run.context
    if given is None:
        return None
    if isinstance(given, str):
        raise ValueError("run.context is the path of a folder, which must be uploaded first")
    return CodeContext(digest=given.digest, packed_bytes=given.packed_bytes)


def _params(spec: JobSpec) -> tuple[dict[str, JsonValue], ...]:
    if spec.tasks is None or spec.tasks.matrix is None:
        return ()
    axes = list(spec.tasks.matrix)
    return tuple(
        dict(zip(axes, point, strict=True)) for point in product(*spec.tasks.matrix.values())
    )


def _name(spec: JobSpec) -> str:
    if spec.name is not None:
        return spec.name
    if spec.run.command:
        shown = "".join(c for c in program_of(spec.run.command) if c.isprintable())[:128]
        return shown or "job"
    return "script"
