"""How one node's agent is set up: `YARD_AGENT_*` in its environment, or by keyword."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from yardmaster_runtime.settings import LogSettings
from yardmaster_schemas.fields import MAX_SLOTS, Address, Labels, Name, Port

Milli = Annotated[int, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]

#: The executors that `ports.EXECUTORS` holds.
ExecutorName = Literal["process", "simulated"]

#: A variable's name, or its beginning and `*`.
PassedName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", max_length=128)]

#: What tasks get of the agent's own environment by default: what says where the machine's programs
#: are, which user the task runs as, and how to write text and time. Not passed on:
#:
#: - `YARD_*`: the agent's settings, with the log's credentials. No setting passes these on.
#: - Credentials and tokens of the agent (`AWS_*`, `*_TOKEN`, proxies with a password): a job names
#:   its secrets, and gets no others.
#: - `LD_LIBRARY_PATH`, `PYTHONPATH`, `VIRTUAL_ENV`: libraries of the agent's own program, which
#:   are the wrong ones for a task's.
#: - `NVIDIA_*`, `CUDA_*`: the agent sets these from the slots that a task holds.
PASSED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL"),
    *("LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
)

#: The longest time between two heartbeats: half the shortest fence (`core.fencing.LEAST_FENCE_S`),
#: so that one that comes late does not end what runs.
MAX_HEARTBEAT_S: Final = 2.5


class Settings(LogSettings):
    """One agent's settings; those that bound something name the limit and what happens at it.

    `retry.attempts` is not an agent's: it goes on for as long as its node does.
    """

    model_config = SettingsConfigDict(env_prefix="YARD_AGENT_")

    #: The node's name: its topic is `assignments.<node>`, its source `node/<node>.<incarnation>`.
    node: Name
    pool: Name = "default"
    node_type: Name = "generic"
    labels: Labels = Field(default_factory=dict)
    #: Where other nodes reach this one's gangs, and on which ports.
    address: Address = "127.0.0.1"
    port_first: Port = 29_600
    port_last: Port = 29_999
    #: Holds the ledger and the tasks' directories.
    data_dir: Path
    #: Secrets are files under it; without it there are none.
    secrets_dir: Path | None = None
    #: What runs the replicas: commands of the job as processes of this host, or replicas that only
    #: take time (`executors.simulated`), for tests of a large cell.
    executor: ExecutorName = "process"

    #: Slots; None: as many as the NVIDIA driver shows, which may be none.
    gpus: Annotated[int, Field(ge=0, le=MAX_SLOTS)] | None = None
    #: The CUDA name (index or UUID) of each slot; None: its index.
    devices: tuple[str, ...] | None = None
    #: Memory of one GPU; None: as detected.
    gpu_memory_mib: Milli | None = None
    #: None: what the machine has, and at least one CPU for each slot that `gpus` or `devices`
    #: declares: a task asks for one CPU unless it says otherwise.
    cpu_milli: Milli | None = None
    #: None: what the machine has.
    memory_mib: Milli | None = None
    #: An MPS daemon runs: fractions get its limits.
    mps: bool = False
    #: Variables of the agent's own environment that its tasks get, by name or with `*` at the end;
    #: no other reaches them. See PASSED for the reasons.
    passed: tuple[PassedName, ...] = PASSED

    #: Whether the agent makes the node's topic where there is none, as the log may not let it; and
    #: how long it waits for one before it ends.
    make_topic: bool = True
    topic_wait_s: PositiveSeconds = 600.0
    #: Between two heartbeats; at most MAX_HEARTBEAT_S.
    heartbeat_s: PositiveSeconds = 2.0
    #: A node that was given nothing yet asks to join again after this time.
    ask_again_s: PositiveSeconds = 60.0
    #: Between two looks at a task's output and checkpoint file.
    tick_s: PositiveSeconds = 0.25
    #: Progress and checkpoints of one replica are each reported at most once in this time; of those
    #: made meanwhile the newest is reported.
    report_interval_s: PositiveSeconds = 10.0
    #: Output of one replica that reaches the log, and that waits for it on disk; the rest is
    #: dropped with one line that says so.
    output_limit_bytes: PositiveInt = 16 * 2**20
    #: What is still unshipped when a task ends may hold its slots for so long.
    drain_s: PositiveSeconds = 5.0
    #: Replicas at a time; more are given back as never started.
    max_replicas: Annotated[int, Field(gt=0, le=1200)] = 1024
    #: Directories of ended replicas that are kept, and for how long.
    kept_directories: Annotated[int, Field(ge=0)] = 100
    kept_s: PositiveSeconds = 86_400
    #: Ended replicas that the ledger remembers one by one, and for how long (as assignments are
    #: kept).
    remembered: PositiveInt = 10_000
    remembered_s: PositiveSeconds = 7 * 86_400

    #: The tasks' API: off, tasks have their files alone. Port 0: a free one, kept for running
    #: tasks.
    api: bool = True
    api_port: Annotated[int, Field(ge=0, le=65_535)] = 0

    @field_validator("data_dir", "secrets_dir")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.absolute()

    @field_validator("heartbeat_s")
    @classmethod
    def _often_enough(cls, seconds: float) -> float:
        if seconds > MAX_HEARTBEAT_S:
            raise ValueError(
                f"at most {MAX_HEARTBEAT_S} s between heartbeats: "
                "in a pool with a fence all that runs would be killed for want of them"
            )
        return seconds

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.port_first > self.port_last:
            raise ValueError("port_first is above port_last")
        if self.devices is not None and self.gpus is not None and len(self.devices) != self.gpus:
            raise ValueError("gpus and devices disagree: give one of them, or one device a slot")
        return self
