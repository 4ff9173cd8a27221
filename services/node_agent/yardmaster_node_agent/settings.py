"""The settings of one node's agent: `YARD_AGENT_*` in its environment, or keywords."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from yardmaster_node_agent.executors.cgroups import AUTO as CGROUPS_AUTO
from yardmaster_node_agent.executors.host_folders import HostFolder, check_folders
from yardmaster_node_agent.executors.task_user import AUTO, MAX_ID, RANGE, SAME
from yardmaster_packages.limits import ArtifactLimits
from yardmaster_runtime.engine_gpus import GpuChoice
from yardmaster_runtime.settings import ArtifactSettings, PackageSettings
from yardmaster_schemas.fields import MAX_NAMES, MAX_SLOTS, Address, GitHosts, Labels, Name, Port

Milli = Annotated[int, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]

#: The executors that `ports.EXECUTORS` holds.
ExecutorName = Literal["process", "auto", "simulated"]

#: The name of a variable, or the prefix of names followed by `*`.
PassedName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", max_length=128)]

#: The variables of the agent's own environment that tasks get by default: the locations of the
#: machine's programs, the user, the locale and the time zone. Not passed to tasks:
#:
#: - `YARD_*`: the agent's settings, with the log's credentials. No setting passes these to tasks.
#: - Credentials and tokens of the agent (`AWS_*`, `*_TOKEN`, proxies with a password): a job names
#:   its secrets, and gets only these.
#: - `LD_LIBRARY_PATH`, `PYTHONPATH`, `VIRTUAL_ENV`: libraries of the agent's own program, which
#:   may differ from those that a task needs.
#: - `NVIDIA_*`, `CUDA_*`: the agent sets these from the slots that a task holds.
PASSED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
)

#: Where NVIDIA's MPS control daemon has its pipes unless `CUDA_MPS_PIPE_DIRECTORY` says otherwise.
MPS_PIPES: Final = Path("/tmp") / "nvidia-mps"

#: The longest time between two heartbeats: half the shortest fence (`core.fencing.LEAST_FENCE_S`),
#: so that one late heartbeat does not end the running replicas.
MAX_HEARTBEAT_S: Final = 2.5


class Settings(PackageSettings, ArtifactSettings):
    """The settings of one agent; the comment of a limit says what happens beyond it.

    An agent ignores `retry.attempts`: it retries without limit.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_AGENT_")

    #: The node's name: its topic is `assignments.<node>`, its source `node/<node>.<incarnation>`.
    node: Name
    #: The pool that the node joins.
    pool: Name = "default"
    #: The type of the node, such as `sxm`.
    node_type: Name = "generic"
    #: Labels of the node, as JSON.
    labels: Labels = Field(default_factory=dict)
    #: Address at which other nodes reach this node's gangs.
    address: Address = "127.0.0.1"
    #: First port for gangs.
    port_first: Port = 29_600
    #: Last port for gangs.
    port_last: Port = 29_999
    #: Data directory: the ledger, and a directory for each task.
    data_dir: Path
    #: Directory of the secrets, one file each. Without it there are none.
    secrets_dir: Path | None = None
    #: How replicas run: `process`, the job's commands as processes of this host; `auto`, the same,
    #: and jobs with an image in containers, while an engine answers at `engine_socket`;
    #: `simulated`, without processes, for tests of a large cell.
    executor: ExecutorName = "auto"
    #: The socket of the container engine, for the executor `auto`.
    engine_socket: Path = Path("/var/run/docker.sock")
    #: Interval at which the agent checks whether the engine answers, for the executor `auto`. The
    #: node takes jobs with an image while it does.
    engine_check_s: PositiveSeconds = 15.0
    #: The network of containers. `bridge`: each has its own, and does not reach other nodes of a
    #: gang, so gangs over nodes are refused; `host`: that of the node; `host_for_gangs`: gangs have
    #: that of the node, and others their own.
    container_network: Literal["bridge", "host", "host_for_gangs"] = "bridge"
    #: How GPUs are requested from the engine. `auto`: where the machine has NVIDIA's driver, by the
    #: driver `nvidia` if the engine has NVIDIA's runtime, else by `cdi` if it lists the GPUs as CDI
    #: devices, else they are refused. `nvidia` and `cdi` request them so in any case.
    container_gpus: GpuChoice = "auto"

    #: Folders of the node that jobs may mount into containers by name, as JSON:
    #: `{"datasets": {"path": "/srv/datasets"}, "scratch": {"path": "/srv/s", "read_only": false}}`.
    #: By default, there are none.
    mounts: dict[Name, HostFolder] = Field(default_factory=dict, max_length=MAX_NAMES)
    #: A pull of an image fails when no bytes have arrived for this time; it has no limit in total.
    pull_idle_s: PositiveSeconds = 120.0
    #: File with the credentials of image registries: `auths` as in Docker's `config.json`. It is
    #: read for each pull. Without it, and for other registries, images are pulled without a login.
    registry_auths: Path | None = None

    #: Users that replicas run as, one each: the first and the last number, as `30000-33999`, of
    #: which no other program and no other agent of the machine may use any. It must have one user
    #: more than `max_replicas` and `kept_directories` together. `same` is the agent's own user for
    #: all. The default, `auto`, is a range that follows from the name of the node, where the agent
    #: may switch users (as root, with the files of tasks within reach of other users), else the
    #: agent's own user; then the node reports `isolation: none`.
    task_users: Annotated[str, Field(min_length=1, max_length=64)] = AUTO
    #: Number of a further group of all these users, for folders that tasks share. By default, they
    #: have none.
    task_group: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None

    #: Whether control groups limit tasks that are processes to their memory and CPUs, and to 4,096
    #: processes each. `auto`: where the agent may make groups below its own one; `off`: never; a
    #: path such as `/yardmaster`, as `/proc/self/cgroup` names groups: below that group, or the
    #: agent does not start.
    cgroups: Annotated[str, Field(pattern=r"^(auto|off|/.*[^/])$", max_length=512)] = CGROUPS_AUTO

    #: Slots of the node. Default: the GPUs that the NVIDIA driver shows, which may be none.
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] | None = None
    #: The CUDA name (index or UUID) of each slot, as JSON. Default: its index.
    devices: tuple[str, ...] | None = None
    #: Memory of one GPU. Default: as detected.
    gpu_memory_mib: Milli | None = None
    #: CPUs in thousandths. Default: the agent's part of the machine's CPUs, and at least one CPU
    #: for each slot that `gpus` or `devices` declares, because a task needs one CPU by default.
    cpu_milli: Milli | None = None
    #: Memory of the node. Default: the agent's part of the machine's memory.
    memory_mib: Milli | None = None
    #: The number of agents on this machine. The machine's CPUs and memory are divided among them.
    #: `yard dev` and `yard up` set it to the number of their nodes.
    machine_agents: PositiveInt = 1
    #: Whether tasks are limited to their fractions of GPUs through NVIDIA MPS. Default: where an
    #: MPS control daemon answers. With `true`, the agent does not start where that is impossible.
    mps: bool | None = None
    #: Directory of the pipes of the MPS control daemon.
    mps_pipe_directory: Path = MPS_PIPES
    #: Directory of the logs of the MPS control daemon.
    mps_log_directory: Path = Path("/var/log/nvidia-mps")
    #: Variables of the agent's own environment that tasks get, as JSON; `*` is allowed at the end
    #: of a name. No other variable reaches them.
    passed: tuple[PassedName, ...] = PASSED

    #: Whether the agent creates the node's topic. Brokers may not allow it.
    make_topic: bool = True
    #: How long the agent waits for the node's topic before it ends.
    topic_wait_s: PositiveSeconds = 600.0
    #: Interval of heartbeats; at most 2.5.
    heartbeat_s: PositiveSeconds = 2.0
    #: Interval at which a node without any assignment repeats its join.
    ask_again_s: PositiveSeconds = 60.0
    #: Interval at which a task's output and checkpoint file are checked.
    tick_s: PositiveSeconds = 0.25
    #: Progress and checkpoints of one replica are each reported at most once in this time; the
    #: newest value is reported.
    report_interval_s: PositiveSeconds = 10.0
    #: The most output of one replica that is shipped to the log, and that each of its two output
    #: files takes on disk. The first three quarters are shipped as they are written. Of more
    #: output the newest quarter is shipped when the replica ends, after a line that says how much
    #: was left out.
    output_limit_bytes: PositiveInt = 16 * 2**20
    #: How long an ended task may keep its slots while its last output is shipped.
    drain_s: PositiveSeconds = 5.0
    #: The most replicas at a time; further ones are released as never started.
    max_replicas: Annotated[int, Field(gt=0, le=1200)] = 1024
    #: The most processes, and the most containers, that start at once; further ones wait. Default:
    #: twice the CPUs that the agent may use.
    starts_at_once: PositiveInt | None = None
    #: Directories of ended replicas that are kept.
    kept_directories: Annotated[int, Field(ge=0)] = 100
    #: How long directories of ended replicas are kept.
    kept_s: PositiveSeconds = 86_400
    #: Bytes of the cache of code packages. The least recently used ones are removed; the one that
    #: was fetched last is kept in any case.
    code_cache_bytes: PositiveInt = 10 * 2**30
    #: Hosts from which jobs may fetch git repositories, as JSON, with the port if it is not 443:
    #: `["git.example.org"]`. By default, there are none.
    git_hosts: GitHosts = ()
    #: Bytes of all artifacts of one replica together; files beyond them are left out.
    max_artifact_bytes: PositiveInt = ArtifactLimits().total_bytes
    #: Artifacts of one replica; further files are left out.
    max_artifact_files: Annotated[int, Field(gt=0, le=10_000)] = ArtifactLimits().files
    #: How long after the end of a replica the agent tries to keep its artifacts while their store
    #: does not answer.
    artifacts_wait_s: PositiveSeconds = 3_600
    #: The most ended replicas that the ledger stores.
    remembered: PositiveInt = 10_000
    #: How long the ledger stores ended replicas; the same as the retention of assignments.
    remembered_s: PositiveSeconds = 7 * 86_400

    #: Whether the agent serves the tasks' API; without it, tasks use files.
    api: bool = True
    #: Port of the tasks' API. 0: a free one, which stays the same for running tasks.
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 0

    @field_validator(
        "data_dir", "secrets_dir", "registry_auths", "mps_pipe_directory", "mps_log_directory"
    )
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.absolute()

    @field_validator("task_users")
    @classmethod
    def _users(cls, text: str) -> str:
        found = RANGE.fullmatch(text)
        if text not in (AUTO, SAME) and (found is None or int(found[1]) > int(found[2])):
            raise ValueError("auto, same, or the first and the last number, as 30000-33999")
        return text

    @field_validator("heartbeat_s")
    @classmethod
    def _often_enough(cls, seconds: float) -> float:
        if seconds > MAX_HEARTBEAT_S:
            raise ValueError(
                f"at most {MAX_HEARTBEAT_S} s between heartbeats: "
                "in a pool with a fence one late heartbeat would kill the running tasks"
            )
        return seconds

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        guarded = (self.data_dir, self.engine_socket, self.secrets_dir, self.registry_auths)
        check_folders(self.mounts, [path for path in guarded if path is not None])
        if self.task_group is not None and self.task_users == SAME:
            raise ValueError("task_group has no effect where task_users is same")
        if self.port_first > self.port_last:
            raise ValueError("port_first is above port_last")
        if self.devices is not None and self.gpus is not None and len(self.devices) != self.gpus:
            raise ValueError("gpus and devices disagree: give one of them, or one device a slot")
        return self
