"""Why a task waits, was stopped, ended or was refused: closed sets of codes, and their numbers.

The codes are part of the public interface. `NUMBERS` lists the numbers of each code; a decision
carries no others. Numbers named `*_milli` are in gpu_milli, `*_at_ms` in milliseconds since the
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from pydantic import ConfigDict

from yardmaster_schemas.fields import CLOSED, Code, Name, Numbers, TaskId
from yardmaster_schemas.members import plain_members


@plain_members
class WaitClass(StrEnum):
    """The change that a pending task needs before it can start."""

    NEVER = "never"
    HELD = "held"
    NOT_NOW = "not_now"


@plain_members
class WaitCode(StrEnum):
    """Why a pending task was not placed: the first check that failed."""

    NO_MATCHING_NODE = "no_matching_node"
    EXCEEDS_EVERY_NODE = "exceeds_every_node"
    EXCEEDS_POOL = "exceeds_pool"
    GANG_INDIVISIBLE = "gang_indivisible"
    NO_EXECUTOR = "no_executor"
    EXCEEDS_LIMIT = "exceeds_limit"
    EXCEEDS_MAX_SLOTS = "exceeds_max_slots"
    EXCEEDS_DESERVED = "exceeds_deserved"
    PAUSED = "paused"
    NOT_CONSIDERED = "not_considered"
    INSUFFICIENT_FREE = "insufficient_free"
    FRAGMENTED = "fragmented"
    NODES_UNAVAILABLE = "nodes_unavailable"
    WAITING_FOR_VICTIMS = "waiting_for_victims"
    BEHIND_TASK = "behind_task"
    BACKFILL_NOT_ALLOWED = "backfill_not_allowed"
    OVER_FAIR_SHARE = "over_fair_share"
    AT_LIMIT = "at_limit"
    AT_DESERVED = "at_deserved"
    AT_MAX_SLOTS = "at_max_slots"
    AT_MAX_CONCURRENT = "at_max_concurrent"
    VICTIMS_PROTECTED = "victims_protected"
    PREEMPTION_DELAY = "preemption_delay"
    RESTART_BACKOFF = "restart_backoff"
    START_BACKOFF = "start_backoff"

    @property
    def wait_class(self) -> WaitClass:
        """The change that a task with this code needs before it can start.

        `never`: the job, a quota or the cluster must change; `held`: a user must act; `not_now`:
        the task only has to wait.
        """
        return _CLASSES.get(self, WaitClass.NOT_NOW)


_CLASSES: Final[Mapping[WaitCode, WaitClass]] = {
    WaitCode.NO_MATCHING_NODE: WaitClass.NEVER,
    WaitCode.EXCEEDS_EVERY_NODE: WaitClass.NEVER,
    WaitCode.EXCEEDS_POOL: WaitClass.NEVER,
    WaitCode.GANG_INDIVISIBLE: WaitClass.NEVER,
    WaitCode.NO_EXECUTOR: WaitClass.NEVER,
    WaitCode.EXCEEDS_LIMIT: WaitClass.NEVER,
    WaitCode.EXCEEDS_MAX_SLOTS: WaitClass.NEVER,
    WaitCode.EXCEEDS_DESERVED: WaitClass.NEVER,
    WaitCode.PAUSED: WaitClass.HELD,
}


@plain_members
class StopCode(StrEnum):
    """Why an attempt was stopped, where no policy decided it (`PolicyStop`)."""

    GANG_INCOMPLETE = "gang_incomplete"
    IMAGE_CHANGED = "image_changed"
    START_TIMEOUT = "start_timeout"
    NODE_DRAINED = "node_drained"
    NODE_LOST = "node_lost"
    SLOT_DISABLED = "slot_disabled"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"


@plain_members
class DropCode(StrEnum):
    """Why a reservation was dropped.

    `passed`: a task that comes first took over the slots. `stop_overdue`: the task on the slots,
    or one without which no limit refuses the owner, did not release its slots in time.
    """

    STARTED_ELSEWHERE = "started_elsewhere"
    PASSED = "passed"
    STOP_OVERDUE = "stop_overdue"
    ENDED = "ended"
    CANCELLED = "cancelled"
    PAUSED = "paused"
    PRIORITY_CHANGED = "priority_changed"
    LIMIT_CHANGED = "limit_changed"
    NODE_LOST = "node_lost"
    NODE_UNAVAILABLE = "node_unavailable"
    SLOT_DISABLED = "slot_disabled"
    POOL_CHANGED = "pool_changed"
    POOL_NOT_ALLOWED = "pool_not_allowed"


@plain_members
class EndCode(StrEnum):
    """Why a task ended, or why it was requeued after an attempt that no policy stopped."""

    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    NEVER_STARTED = "never_started"
    RESTARTS_EXHAUSTED = "restarts_exhausted"
    UNSCHEDULABLE = "unschedulable"
    START_TIMEOUT = "start_timeout"
    NODE_DRAINED = "node_drained"
    NODE_LOST = "node_lost"
    ENGINE_RESTARTED = "engine_restarted"
    SLOT_DISABLED = "slot_disabled"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    DETAILS_ERASED = "details_erased"
    START_FAILED = "start_failed"
    NO_EXECUTOR = "no_executor"
    SECRET_MISSING = "secret_missing"
    DETAILS_MISSING = "details_missing"
    DIRECTORY_MISSING = "directory_missing"
    CONTEXT_MISSING = "context_missing"
    RESERVED_VARIABLE = "reserved_variable"
    IMAGE_MISSING = "image_missing"
    IMAGE_REFUSED = "image_refused"
    IMAGE_UNREACHABLE = "image_unreachable"
    IMAGE_CHANGED = "image_changed"
    COMMIT_MISSING = "commit_missing"
    COMMIT_REFUSED = "commit_refused"
    COMMIT_UNUSABLE = "commit_unusable"
    DECISION_TOO_LARGE = "decision_too_large"


@plain_members
class StartFailure(StrEnum):
    """Why an agent could not start a replica.

    Every cause except `other` and `image_unreachable` applies to all nodes, so the task ends with
    the end code of the same name: `no_executor` (`run.image` is set, and the agent runs no
    containers), `secret_missing`, `details_missing` (erased or unreadable), `directory_missing`
    (the working directory),
    `context_missing` (the package of its folder is not stored any more, or is damaged),
    `commit_unusable` (the commit of `run.git` has files that no working folder may have),
    `reserved_variable` (the job sets a variable that the agent sets itself), `image_missing` (the
    registry has no such image or tag), `image_refused` (the registry refuses this node, or the name
    is not valid), `commit_missing` (the server has no such commit or repository), `commit_refused`
    (the server refuses this node, or asks for a login). Nodes may reach different servers or have
    different credentials, so the last four end a task after a second node, or a second try, failed
    to start it.

    `image_unreachable`: the registry does not answer, answers that it cannot now, or sends nothing.
    """

    OTHER = "other"
    NO_EXECUTOR = "no_executor"
    SECRET_MISSING = "secret_missing"
    DETAILS_MISSING = "details_missing"
    DIRECTORY_MISSING = "directory_missing"
    CONTEXT_MISSING = "context_missing"
    RESERVED_VARIABLE = "reserved_variable"
    IMAGE_MISSING = "image_missing"
    IMAGE_REFUSED = "image_refused"
    IMAGE_UNREACHABLE = "image_unreachable"
    COMMIT_MISSING = "commit_missing"
    COMMIT_REFUSED = "commit_refused"
    COMMIT_UNUSABLE = "commit_unusable"

    @property
    def end_code(self) -> EndCode | None:
        """The end code of a task whose start failed for this reason; None: the start is retried."""
        return None if self.rank < _CHECKED_TWICE else EndCode(self.value)

    @property
    def checked_twice(self) -> bool:
        """Whether a task ends only after a second start failed too."""
        return self.rank == _CHECKED_TWICE

    @property
    def requeue_code(self) -> EndCode:
        """The code of a task that is requeued after this failure."""
        return EndCode.NEVER_STARTED if self is StartFailure.OTHER else EndCode(self.value)

    @property
    def rank(self) -> int:
        """How much the failure says; of several replicas, the highest one counts."""
        return _RANKS.get(self, _CHECKED_TWICE + 1)


_CHECKED_TWICE: Final = 2
_RANKS: Final[Mapping[StartFailure, int]] = {
    StartFailure.OTHER: 0,
    StartFailure.IMAGE_UNREACHABLE: 1,
    StartFailure.IMAGE_MISSING: _CHECKED_TWICE,
    StartFailure.IMAGE_REFUSED: _CHECKED_TWICE,
    StartFailure.COMMIT_MISSING: _CHECKED_TWICE,
    StartFailure.COMMIT_REFUSED: _CHECKED_TWICE,
}


class AdmissionCode(StrEnum):
    """Why quota refused a request."""

    PROJECT_UNKNOWN = "project_unknown"
    DEPARTMENT_UNKNOWN = "department_unknown"
    POOL_UNKNOWN = "pool_unknown"
    NODE_UNKNOWN = "node_unknown"
    JOB_UNKNOWN = "job_unknown"
    TASK_UNKNOWN = "task_unknown"
    POOL_NOT_ALLOWED = "pool_not_allowed"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    KIND_NOT_ALLOWED = "kind_not_allowed"
    NODE_TYPE_NOT_ALLOWED = "node_type_not_allowed"
    CHECKPOINT_NOT_ALLOWED = "checkpoint_not_allowed"
    IMAGE_NOT_ALLOWED = "image_not_allowed"
    MOUNT_NOT_ALLOWED = "mount_not_allowed"
    MOUNT_READ_ONLY = "mount_read_only"
    USER_NOT_ALLOWED = "user_not_allowed"
    GIT_HOST_NOT_ALLOWED = "git_host_not_allowed"
    LIMIT_EXCEEDED = "limit_exceeded"
    DUPLICATE_ID = "duplicate_id"
    VERSION_MISMATCH = "version_mismatch"
    IN_USE = "in_use"
    WRONG_PHASE = "wrong_phase"
    POLICY_UNKNOWN = "policy_unknown"
    POLICY_OPTIONS_INVALID = "policy_options_invalid"
    POLICY_FOR_SIMULATIONS = "policy_for_simulations"
    FENCE_IMPOSSIBLE = "fence_impossible"
    ALLOCATION_TOO_LARGE = "allocation_too_large"
    PROJECT_FULL = "project_full"
    USER_FULL = "user_full"
    DEPARTMENT_CYCLE = "department_cycle"
    DEPARTMENT_TOO_DEEP = "department_too_deep"
    QUOTA_INVALID = "quota_invalid"
    CELL_UNKNOWN = "cell_unknown"
    USER_UNKNOWN = "user_unknown"
    USER_EXISTS = "user_exists"
    ROLE_UNKNOWN = "role_unknown"
    TOKEN_UNKNOWN = "token_unknown"
    NOT_ALLOWED = "not_allowed"
    LAST_OPERATOR = "last_operator"
    LIFETIME_TOO_LONG = "lifetime_too_long"


@plain_members
class RefusalCode(StrEnum):
    """Why a claim was refused. A refused claim has no effect and is copied to quarantine."""

    MALFORMED = "malformed"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_VERSION = "unknown_version"
    WRONG_TOPIC = "wrong_topic"
    WRONG_CELL = "wrong_cell"
    NOT_ITS_AUTHOR = "not_its_author"
    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_ATTEMPT = "unknown_attempt"
    STALE_ATTEMPT = "stale_attempt"
    STALE_INCARNATION = "stale_incarnation"
    REPEATED = "repeated"
    EPOCH_AHEAD = "epoch_ahead"
    CONTRADICTION = "contradiction"
    NOT_ENROLLED = "not_enrolled"
    CHECKPOINT_NOT_ALLOWED = "checkpoint_not_allowed"
    BEYOND_ENROLLMENT = "beyond_enrollment"
    NODE_TAKEN = "node_taken"
    PULL_TOO_LONG = "pull_too_long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a task waits; `about` is the task ahead, the level of a limit, or the short resource."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    code: WaitCode
    numbers: Numbers = field(default_factory=dict)
    about: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why an attempt must stop: the rule, the task that preempts it, and the numbers of both."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    code: StopCode
    rule: Code | None = None
    for_task: TaskId | None = None
    numbers: Numbers = field(default_factory=dict)
    about: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStop:
    """Why a policy stops an attempt: its rule, the task that preempts it, and the numbers of both.

    Rules and names of numbers are the policy's, so that a new policy changes no schema.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    policy: Code
    rule: Code
    for_task: TaskId | None = None
    numbers: Numbers = field(default_factory=dict)
    about: Name | None = None

    @property
    def code(self) -> str:
        """The name of the policy, which users see where other stops have their code."""
        return self.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Why a task starts now: the rule that allowed it, and the numbers of that decision."""

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    rule: Code
    numbers: Numbers = field(default_factory=dict)


#: How the names of amounts of GPUs, CPUs and memory end.
AMOUNTS: Final = ("milli", "cpu_milli", "memory_mib")


def _of_each(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}_{amount}" for amount in AMOUNTS for name in names)


#: The numbers that each wait or stop code may carry. The numbers of a `PolicyStop` are not listed:
#: its policy decides them.
NUMBERS: Final[Mapping[WaitCode | StopCode, tuple[str, ...]]] = {
    WaitCode.NO_MATCHING_NODE: ("nodes", "left_by_pool", "left_by_type", "left_by_avoid"),
    WaitCode.EXCEEDS_EVERY_NODE: ("asked", "largest", "unknown_nodes", "blocked"),
    WaitCode.EXCEEDS_POOL: ("asked_milli", "pool_milli", "replicas", "places", "blocked"),
    WaitCode.GANG_INDIVISIBLE: ("asked", "largest", "divisible", "blocked"),
    WaitCode.NO_EXECUTOR: ("nodes", "blocked"),
    WaitCode.EXCEEDS_LIMIT: _of_each("asked", "limit"),
    WaitCode.EXCEEDS_MAX_SLOTS: ("asked_milli", "limit_milli"),
    WaitCode.EXCEEDS_DESERVED: _of_each("asked", "deserved"),
    WaitCode.PAUSED: ("since_at_ms",),
    WaitCode.NOT_CONSIDERED: (),
    WaitCode.INSUFFICIENT_FREE: (
        *("asked_milli", "free_milli", "short_milli", "unknown_nodes", "blocked", "tries"),
        *("reserved_from_at_ms", "others_above", *_of_each("fair_share", "used", "deserved")),
        *("asked_cpu_milli", "asked_memory_mib"),
        *("free_cpu_milli", "short_cpu_milli", "free_memory_mib", "short_memory_mib"),
    ),
    WaitCode.FRAGMENTED: (
        *("asked_milli", "free_milli", "largest_milli", "replicas", "places"),
        *("idle_milli", "unknown_nodes", "blocked", "tries"),
        *("reserved_from_at_ms", "others_above", *_of_each("fair_share", "used", "deserved")),
        *("asked_cpu_milli", "asked_memory_mib"),
    ),
    WaitCode.NODES_UNAVAILABLE: ("nodes", "cordoned", "lost", "disabled", "blocked"),
    WaitCode.WAITING_FOR_VICTIMS: ("victims", "asked_milli", "until_at_ms"),
    WaitCode.BEHIND_TASK: (
        *("priority", "priority_ahead"),
        *("submitted_at_ms", "submitted_ahead_at_ms"),
    ),
    WaitCode.BACKFILL_NOT_ALLOWED: ("priority", "priority_ahead"),
    WaitCode.OVER_FAIR_SHARE: ("fair_share_milli", "weight", "used_milli", "asked_milli"),
    WaitCode.AT_LIMIT: _of_each("limit", "used", "asked"),
    WaitCode.AT_DESERVED: (
        *_of_each("deserved", "used", "asked"),
        *_of_each("deserved_in_all", "used_in_all"),
    ),
    WaitCode.AT_MAX_SLOTS: ("limit_milli", "used_milli", "asked_milli"),
    WaitCode.AT_MAX_CONCURRENT: ("limit", "used"),
    WaitCode.VICTIMS_PROTECTED: ("victims", "until_at_ms", "tries"),
    WaitCode.PREEMPTION_DELAY: ("until_at_ms",),
    WaitCode.RESTART_BACKOFF: ("until_at_ms", "restarts"),
    WaitCode.START_BACKOFF: ("until_at_ms", "failed_starts", "limit"),
    StopCode.GANG_INCOMPLETE: ("replicas", "open"),
    StopCode.IMAGE_CHANGED: ("replica",),
    StopCode.START_TIMEOUT: ("active", "needed", "limit_s"),
    StopCode.NODE_DRAINED: ("until_at_ms",),
    StopCode.NODE_LOST: ("last_heard_at_ms",),
    StopCode.SLOT_DISABLED: ("slot",),
    StopCode.PAUSED: (),
    StopCode.CANCELLED: (),
    StopCode.TIME_LIMIT: ("limit_s", "ran_s"),
}
