"""The description and an example of each parameter, and of each field of the configurations.

The other bodies have them in their models. The models of configurations are parts of events, whose
published schemas do not change.
"""

from collections.abc import Mapping
from typing import Any, Final

from yardmaster_schemas.api import (
    CellConfig,
    DepartmentConfig,
    Enrolment,
    PoolConfig,
    ProjectConfig,
    Quota,
)
from yardmaster_schemas.events.requests import PolicyRef

Texts = Mapping[str, tuple[str, Any]]

_LISTED: Final = "separate several values with commas."
_POSITION: Final = "main@r15.a27.n30.d56"
#: By `operation.parameter`, else by the parameter's name, which means the same in each operation.
PARAMETERS: Final[Texts] = {
    "file": (
        "The file name of this version's wheel, which installers read.",
        "yardmaster_scheduler-0.1.0-py3-none-any.whl",
    ),
    "Idempotency-Key": (
        "A repetition with the same key and body returns the same answer and records nothing.",
        "0b9a3f5e-train-1",
    ),
    "If-Match": ("The ETag of the object to change, or * for any version.", "*"),
    "If-None-Match": ("Send * to create an object that must not exist yet.", "*"),
    "last-event-id": (
        "The id of the last received event; the stream continues after it.",
        _POSITION,
    ),
    "read_output.last-event-id": (
        "The id of the last received event; the stream continues after it.",
        "17",
    ),
    "yard-min-position": ("The same as `min_position`, which takes precedence.", _POSITION),
    "min_position": (
        "Wait until the views cover at least this position. The answer is 410 if it belongs to "
        "another log.",
        _POSITION,
    ),
    "after": ("Continue after this position.", _POSITION),
    "cell": ("The name of the cell.", "main"),
    "number": ("The number of a cycle, starting at 1.", "1"),
    "job_id": ("The id of a job.", "4kq7w2mz9c1f"),
    "token_id": ("The id of a token.", "t5f0c1e2d3a4"),
    **{
        f"{operation}.name": ("The name of the user.", "ana")
        for operation in (
            *("remove_user", "grant_roles", "revoke_roles", "issue_token", "revoke_token"),
        )
    },
    "task_id": ("The id of a task: the job's id and the task's index.", "4kq7w2mz9c1f.0"),
    "request_id": ("The id of a request, from an answer with status 202.", "main.12"),
    "name": ("The name of the node, pool, project or department.", "default"),
    "attempt": ("The number of an attempt, starting at 1. Default: the newest.", 1),
    "bucket": ("The length of the buckets into which the period is divided.", "day"),
    "by": ("Group the sums by project, user or pool.", "project"),
    "cursor": ("The `next_cursor` of the previous page.", "eyJrIjoiMSJ9"),
    "department": (f"Only projects of this department; {_LISTED}", "research"),
    "follow": ("Stream new output until the task has ended.", True),
    "from": (
        "The start of the period, RFC 3339 in UTC. Default: 30 days before its end.",
        "2026-11-01T00:00:00Z",
    ),
    "to": ("The end of the period, RFC 3339 in UTC. Default: now.", "2026-12-01T00:00:00Z"),
    "kind": (f"Only this kind; {_LISTED}", "training"),
    "kinds": (f"The kinds of objects to watch; {_LISTED}", "task,node"),
    "grouped": ("Return equal tasks of a job as one item.", True),
    "limit": ("The largest number of items in the answer.", 100),
    "node": (f"Only tasks on this node; {_LISTED}", "node-1"),
    "phase": (f"Only in this phase; {_LISTED}", "pending,running"),
    "pieces": ("Return the output in pieces, as server-sent events.", True),
    "pool": (f"The name of a pool. As a filter, {_LISTED}", "default"),
    "read_shares.pool": ("The name of the pool.", "default"),
    "project": (f"Only of this project; {_LISTED}", "nlp"),
    "ref": ("Only ids that start with this text.", "4kq7"),
    "replica": ("The number of a replica, starting at 0.", 0),
    "since": ("Only jobs submitted at or after this time, RFC 3339.", "2026-11-23T00:00:00Z"),
    "sort": ("Sort by time of submission; with the prefix -, the newest first.", "-submitted_at"),
    "state": (f"Only in this state; {_LISTED}", "ready"),
    "tail": ("Return only the last lines of the output, this many.", 20),
    "timeout_s": ("The longest time to wait for `wait_for`, in seconds.", 30),
    "user": (f"Only of this user; {_LISTED}", "ana"),
    "wait_for": ("Wait until the task has reached this phase, or `timeout_s` is over.", "running"),
    "wait_s": ("The longest time to wait for the decision of quota, in seconds.", 5),
}

_QUOTAS: Final = (
    "The quota in each pool, by the name of the pool.",
    {"default": {"limit_milli": 8000}},
)
_RANK: Final = (
    "Siblings with a higher rank get what is left over before the others (policy `quota`).",
    200,
)
_PREEMPT_MIN_RUNTIME: Final = (
    "For so many seconds a task is not preempted for the same project (policy `quota`); null: as "
    "in the department above, else 0.",
    600,
)
_RECLAIM_MIN_RUNTIME: Final = (
    "For so many seconds a task is not reclaimed for another project (policy `quota`); null: as in "
    "the department above, else 0.",
    1800,
)
FIELDS: Final[Mapping[type, Texts]] = {
    PolicyRef: {
        "name": ("The name of the policy.", "fair_share"),
        "version": ("The version of its meaning.", 1),
        "options": ("The options of the policy; an unknown one is refused.", {"among": "project"}),
    },
    PoolConfig: {
        "policy": ("The policy of the pool.", {"name": "priority"}),
        "placement": ("The name of the placement, which chooses nodes and GPUs.", "worst_fit"),
        "default_priority": (
            "The priority of jobs for which neither job nor project names one.",
            42,
        ),
        "node_timeout_s": ("A node that is silent for so long is lost.", 60),
        "start_timeout_s": ("An attempt that has not started after so long is revoked.", 300),
        "max_grace_s": ("The longest grace period that a job may have.", 3600),
        "fence": (
            "`kill`: an agent that cannot reach the log kills its tasks before their node is lost. "
            "It needs a `node_timeout_s` of at least 11.",
            "kill",
        ),
        "unequal_gangs": ("`replicas: auto` may use nodes of unequal size.", True),
        "gpuless_per_node": (
            "The most tasks without GPUs on a node at once, up to 2,048; null: 512.",
            64,
        ),
        "seed": ("The seed of policies and placements that draw at random.", 7),
        "pool_order": (
            "For tasks that list this pool before others. `idle_first`: idle capacity of a later "
            "pool comes before victims in this one. `strict`: victims in this one come first.",
            "strict",
        ),
        "gpu_placement": (
            "Which of a node's GPUs a share gets. `packed`: the fullest that holds it. `spread`: "
            "the emptiest. null: the placement chooses.",
            "spread",
        ),
    },
    Quota: {
        "deserved_milli": (
            "The thousandths of a GPU that it deserves in the pool (policy `quota`); null: none.",
            4000,
        ),
        "limit_milli": (
            "The most thousandths of a GPU held at once in the pool; null: no limit.",
            8000,
        ),
        "over_quota_weight": (
            "Its part of what siblings of its rank leave over, relative to them; 0: none (policy "
            "`quota`).",
            2,
        ),
        "deserved_unlimited": (
            "It deserves all GPUs of the pool; then omit `deserved_milli`.",
            False,
        ),
        "deserved_cpu_milli": (
            "The thousandths of a CPU that it deserves (policy `quota`); null: unlimited.",
            64_000,
        ),
        "deserved_memory_mib": (
            "The memory in MiB that it deserves (policy `quota`); null: unlimited.",
            524_288,
        ),
        "limit_cpu_milli": (
            "The most thousandths of a CPU held at once (policy `quota`); null: no limit.",
            128_000,
        ),
        "limit_memory_mib": (
            "The most memory in MiB held at once (policy `quota`); null: no limit.",
            1_048_576,
        ),
        "over_quota": (
            "Whether its tasks may hold more than it deserves (policy `quota`).",
            True,
        ),
    },
    DepartmentConfig: {
        "weight": ("Not supported: omit it.", 1),
        "quotas": _QUOTAS,
        "parent": (
            "The department that it is a part of; null: none. At most 8 levels.",
            "company",
        ),
        "rank": _RANK,
        "preempt_min_runtime_s": _PREEMPT_MIN_RUNTIME,
        "reclaim_min_runtime_s": _RECLAIM_MIN_RUNTIME,
    },
    ProjectConfig: {
        "department": ("The department of the project.", "research"),
        "weight": ("The weight of the project in a fair share among projects.", 2),
        "pools": ("The pools that it may use, in order of preference; empty: all.", ["h100"]),
        "node_types": ("The types of node that it may use; empty: all.", ["sxm"]),
        "kinds": ("The kinds of jobs that it may run; empty: all.", ["training"]),
        "best_priority": (
            "The smallest number, which is the highest priority, that its jobs may ask for.",
            20,
        ),
        "default_priority": (
            "The priority of its jobs that name none; null: that of the pool.",
            50,
        ),
        "limit_milli": (
            "The most thousandths of a GPU held at once in all pools; null: no limit.",
            8000,
        ),
        "max_min_runtime_s": ("The longest `min_runtime` that counts for its jobs.", 3600),
        "max_pending": ("The maximum number of tasks of one job; a larger job is refused.", 10_000),
        "quotas": _QUOTAS,
        "max_unfinished": (
            "The most tasks of the project that have not ended; null: the cell's `project_tasks`.",
            50_000,
        ),
        "rank": _RANK,
        "preempt_min_runtime_s": _PREEMPT_MIN_RUNTIME,
        "reclaim_min_runtime_s": _RECLAIM_MIN_RUNTIME,
        "default_pools": (
            "The pools of its jobs that name none, in order of preference; empty: those of the "
            "cell's `default_pools` that it may use, else all that it may use.",
            ["h100"],
        ),
        "kind_node_types": (
            "The types of node that its jobs of a kind may use, by kind; empty: all. Other kinds "
            "follow `node_types`.",
            {"interactive": ["pcie"]},
        ),
        "checkpoint_prefixes": (
            "The URIs of checkpoints of its tasks are within one of these; empty: any URI.",
            ["s3://runs/nlp"],
        ),
    },
    CellConfig: {
        "project_tasks": (
            "The most tasks of a project that have not ended; for projects without "
            "`max_unfinished`.",
            200_000,
        ),
        "user_tasks": (
            "The most tasks of a user that have not ended, over all projects.",
            100_000,
        ),
        "tasks_of": ("Other limits of single users.", {"ada": 250_000}),
        "default_pools": (
            "The pools of jobs that name none, in projects without `default_pools`, in order of "
            "preference.",
            ["default"],
        ),
    },
    Enrolment: {
        "pool": ("The pool that the node may join.", "h100"),
        "gpus": ("The most GPUs that it may have.", 8),
        "node_type": ("The type that it must have; null: any.", "sxm"),
        "labels": ("The labels that it may have.", {"rack": "r1"}),
        "address": ("The address that it must have; null: any.", "10.0.0.7"),
        "keys": (
            "Digests of its public keys (SHA-256 of the key in DER, hex); two during a rotation.",
            ["0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"],
        ),
    },
}

_AT: Final = "2026-11-23T09:41:03.000Z"
_DIGEST: Final = "49cf6131ef3d42c65c04c5882ff6059632a6e8a60bf24f80a7e2de4b471ac9eb"
_JOB: Final = "4kq7w2mz9c1f"
_TASK: Final = f"{_JOB}.0"
_NUMBERS: Final = {"asked_milli": 8000, "free_milli": 3000, "short_milli": 5000}
_STOP: Final = {
    "code": "priority",
    "rule": "better_priority",
    "for_task": "4hbpjt5b3pxs.0",
    "numbers": {"priority": 60, "for_priority": 5, "held_milli": 1000, "asked_milli": 8000},
    "about": None,
    "deadline_at": _AT,
    "requested_at": _AT,
}
_WAIT: Final = {
    "code": "insufficient_free",
    "wait_class": "not_now",
    "pool": "h100",
    "numbers": _NUMBERS,
    "about": None,
    "since_at": _AT,
    "cycle": 88_121,
}
_RESERVED: Final = {
    "pool": "h100",
    "slots": [{"node": "gpu-07", "slots": [3, 4]}],
    "until_at": _AT,
    "reserved_at": _AT,
}
_CHECKPOINT: Final = {"uri": f"s3://runs/{_JOB}/step-12000", "step": 12_000, "at": _AT}
_END: Final = {
    **{"outcome": "failed", "code": "exit", "exit_code": 3, "signal": None},
    **{"cycle": 88_121, "ended_at": _AT},
}
_RESOURCES: Final = {"gpus": 8, "gpu_milli": 1000, "cpu_milli": 32_000, "memory_mib": 262_144}
_USED: Final = "The thousandths of a GPU that running tasks hold."
_PENDING: Final = "The thousandths of a GPU that pending tasks ask for."
_IN_ORDER: Final = "The pools that it may run in, in order of preference."
_AMOUNTS: Final = {"gpu_milli": 8000, "cpu_milli": 64_000, "memory_mib": 524_288}
_BOUNDS: Final = {"gpu_milli": 8000, "cpu_milli": None, "memory_mib": None}
#: Of answers: by `Model.field`, else by the field's name, which means the same in each model.
ANSWERS: Final[Texts] = {
    "about": ("The name that the reason is about, such as a limit or an axis.", "nlp"),
    "actor": ("Who wrote the record: the kind and the id.", "user/ana"),
    "address": ("The address at which other nodes reach it.", "10.0.0.7"),
    "admitted_at": ("When quota admitted the job.", _AT),
    "allocated_at": ("When the scheduler allocated the slots.", _AT),
    "api": ("The version of the API.", "v1"),
    "asked": ("What the user asked for, before defaults.", {"priority": 60}),
    "asked_milli": ("The thousandths of a GPU that the task asks for in this pool.", 8000),
    "at": ("When it was recorded.", _AT),
    "attempt": ("The number of the attempt, starting at 1; 0: none yet.", 2),
    "avoid_nodes": ("The nodes that it never runs on.", ["gpu-07"]),
    "best_priority": FIELDS[ProjectConfig]["best_priority"],
    "bucket": ("The length of the buckets; null: one sum for the whole period.", "day"),
    "by": ("What the sums are grouped by.", "project"),
    "cause": ("The id of the record that led to this one.", "quota/main.1e083670e287/1/25"),
    "cell": ("The name of the cell.", "main"),
    "checkpoint": ("The last checkpoint that was reported.", _CHECKPOINT),
    "checkpoint_uri": ("The checkpoint that the first attempt starts from.", "s3://models/base"),
    "code": ("The code of the reason; the page Reasons explains each.", "insufficient_free"),
    "Problem.code": ("What is wrong; the page REST API lists all codes.", "not_found"),
    "FieldError.code": ("What is wrong with the field.", "int_type"),
    "command": ("The program and its arguments.", ["python3", "train.py"]),
    "complete": ("Whether the commit of the cycle was read too.", True),
    "config": ("The configuration, with defaults.", {"policy": {"name": "priority"}}),
    "Project.config": ("The configuration, with defaults.", {"department": "research"}),
    "Department.config": ("The configuration, with defaults.", {"weight": 1}),
    "count": ("The number of tasks in the group.", 17),
    "counted_most": ("No phase is counted further than this.", 100_000),
    "cpu_milli": ("Thousandths of a CPU.", 32_000),
    "Bounds.cpu_milli": ("Thousandths of a CPU; null: unlimited.", None),
    "cpu_milli_used": ("The thousandths of a CPU that tasks hold.", 8000),
    "created_ms": ("When the log was created, in milliseconds since 1970.", 1_795_406_239_360),
    "credential_id": ("The id of the token.", "laptop"),
    "cycle": ("The number of the cycle that recorded the reason.", 88_121),
    "Cycle.cycle": ("The number of the cycle.", 88_121),
    "Shares.cycle": ("The cycle that divided the pool; null: none did.", 88_121),
    "cycle_at": ("The time of that cycle.", _AT),
    "data": ("The event itself; its schema depends on type and version.", {"task_id": _TASK}),
    "deadline_at": ("When the agent kills what still runs.", _AT),
    "Node.deadline_at": ("When the remaining tasks of a draining node are stopped.", _AT),
    "decisions": ("The number of decisions of the cycle.", 3),
    "default_priority": ("The priority of jobs that name none.", 42),
    "department": ("The name of the department.", "research"),
    "default_pools": FIELDS[ProjectConfig]["default_pools"],
    "CellConfig.default_pools": FIELDS[CellConfig]["default_pools"],
    "departments": ("The departments whose parent it is.", ["vision"]),
    "QueueShare.deserved": ("What it deserves.", _BOUNDS),
    "deserved_milli": ("The thousandths of a GPU that it deserves; 0: none.", 4000),
    "Quota.deserved_milli": FIELDS[Quota]["deserved_milli"],
    "deserved_unlimited": ("Whether it deserves all GPUs of the pool.", False),
    "deserved_cpu_milli": FIELDS[Quota]["deserved_cpu_milli"],
    "deserved_memory_mib": FIELDS[Quota]["deserved_memory_mib"],
    "detail": ("What is wrong, in words.", "Task 4kq7w2mz9c1f.0 does not exist."),
    "disabled": ("Whether no task starts on it.", False),
    "disabled_reason": ("Why slots are disabled.", "memory errors"),
    "disabled_slots": ("The numbers of the disabled slots.", [0]),
    "Shares.divided_at": ("When the pool was divided; null: it was not.", _AT),
    "end": ("How the task ended; null while it has not.", _END),
    "End.cycle": ("The number of the cycle that ended it.", 88_121),
    "Attempt.end": ("How the attempt ended; null while it runs.", "requeued"),
    "ended_at": ("When it ended.", _AT),
    "enrolment": ("What the node may claim when it joins.", {"pool": "h100", "gpus": 8}),
    "env": ("Environment variables.", {"NCCL_DEBUG": "WARN"}),
    "epoch": ("The start of the writer that wrote it.", 1),
    "erased": ("Whether the texts of the job were erased.", False),
    "errors": (
        "The errors in single fields of the body.",
        [{"pointer": "/priority", "code": "int_type", "detail": "must be a whole number"}],
    ),
    "exit_code": ("The exit code; null if a signal ended it.", 3),
    "exit_zero": ("What exit code 0 means after a request to stop.", "stopped"),
    "exited_at": ("When it exited.", _AT),
    "QueueShare.fair_share": ("Its share of the pool at the time.", _AMOUNTS),
    "fence": FIELDS[PoolConfig]["fence"],
    "first": ("The offset of the first record.", 1204),
    "QueuedTasks.first": ("The first task of the group.", {"task_id": _TASK}),
    "Bounds.gpu_milli": ("Thousandths of a GPU; null: unlimited.", 8000),
    "QueueShare.held": ("What its tasks held, without those that were stopping.", _AMOUNTS),
    "Shares.items": (
        "Departments and projects, each after the department above it.",
        [{"name": "nlp"}],
    ),
    "QueueShare.level": ("Whether it is a department or a project.", "project"),
    "QueueShare.limit": ("The most that its tasks may hold.", _BOUNDS),
    "Bounds.memory_mib": ("Memory in MiB; null: unlimited.", None),
    "QueueShare.name": ("The name of the department or project.", "nlp"),
    "QueueShare.parent": ("The department above it; null: none.", "research"),
    "QueuedTasks.position": ("The place of the first task in the queue, from 1.", 3),
    "QueueShown.items": ("The groups of this page, in order.", [{"position": 1}]),
    "QueueShown.policy": ("The policy that orders the queue.", {"name": "priority"}),
    "TaskGroup.first": ("The first task of the group.", {"task_id": _TASK}),
    "for_task": ("The task that preempts it.", "4hbpjt5b3pxs.0"),
    "found": ("Why it is not ready, or what is restricted.", "the log is unavailable"),
    "from_at": ("The start of the period.", _AT),
    "gpu_memory_mib": ("The memory of each GPU, in MiB.", 81_920),
    "gpu_milli": ("Thousandths of a GPU.", 8000),
    "Resources.gpu_milli": (
        "The share of each GPU, in thousandths; 0 with `gpu_memory_mib`.",
        1000,
    ),
    "Resources.gpu_memory_mib": (
        "The share of each GPU as its memory, in MiB; 0: `gpu_milli` is the share.",
        0,
    ),
    "gpu_milli_free": (
        "The thousandths of a GPU that no task holds, without disabled slots; reserved slots that "
        "are idle are included.",
        3000,
    ),
    "gpu_milli_reserved": (
        "The thousandths of a GPU that are reserved for pending tasks, idle or not.",
        2000,
    ),
    "gpu_milli_seconds": ("Thousandths of a GPU, times seconds.", 28_800_000),
    "gpu_milli_used": (_USED, 5000),
    "gpuless_per_node": FIELDS[PoolConfig]["gpuless_per_node"],
    "gpus": ("The number of GPUs.", 8),
    "grace_s": ("The time between the signal and the kill, in seconds.", 120),
    "hint": ("What to do.", "try again"),
    "id": (
        "The id of the record: writer, epoch and number.",
        "scheduler/main.d3b7877bd11b/1/55",
    ),
    "image": ("The container image.", "registry.example.org/train:1.4"),
    "AdmittedSpec.image": ("Whether it needs a node that runs containers.", False),
    "SubmittedSpec.image": ("Whether it needs a node that runs containers.", False),
    "incarnation": ("The life of the agent's ledger.", "90c1d2e3f4a5"),
    "index": ("The number of the task in its job, starting at 0.", 0),
    "Slot.index": ("The number of the slot, starting at 0.", 0),
    "inputs": (
        "What the cycle consumed of each topic.",
        [{"topic": "admissions", "partition": 0, "first": 26, "next": 27, "refused": 0}],
    ),
    "isolation": ("How the node separates tasks.", "none"),
    "issuer": ("Who vouches for the token.", "file"),
    "items": ("The objects of this page.", [{"name": "default"}]),
    "job_id": ("The id of the job.", _JOB),
    "joined_at": ("When it joined.", _AT),
    "keys": FIELDS[Enrolment]["keys"],
    "kind": ("The kind of work.", "training"),
    "kind_node_types": FIELDS[ProjectConfig]["kind_node_types"],
    "kinds": FIELDS[ProjectConfig]["kinds"],
    "checkpoint_prefixes": FIELDS[ProjectConfig]["checkpoint_prefixes"],
    "labels": ("The labels.", {"team": "nlp"}),
    "last_index": ("The index of the last task of the group.", 19),
    "last_stop": ("The last stop of any attempt.", _STOP),
    "layout": ("Whether it is placed as replicas or on whole nodes.", "replicas"),
    "limit_milli": ("The most thousandths of a GPU held at once; null: no limit.", 8000),
    "limit_cpu_milli": FIELDS[Quota]["limit_cpu_milli"],
    "limit_memory_mib": FIELDS[Quota]["limit_memory_mib"],
    "log_id": ("The id of the log.", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"),
    "max_concurrent": ("The most tasks that run at once; null: no limit.", 3),
    "max_grace_s": FIELDS[PoolConfig]["max_grace_s"],
    "max_min_runtime_s": FIELDS[ProjectConfig]["max_min_runtime_s"],
    "max_pending": FIELDS[ProjectConfig]["max_pending"],
    "max_unfinished": FIELDS[ProjectConfig]["max_unfinished"],
    "project_tasks": FIELDS[CellConfig]["project_tasks"],
    "QueueShare.usage_milli": (
        "The thousandths of a GPU that its tasks held in the past, where recent time counts more; "
        "null: the pool has no usage_half_life_s.",
        6500,
    ),
    "QueueShare.requested": ("What its pending tasks requested in addition.", _AMOUNTS),
    "QueueShare.reserved": ("What was reserved for its tasks.", _AMOUNTS),
    "tasks_of": FIELDS[CellConfig]["tasks_of"],
    "user_tasks": FIELDS[CellConfig]["user_tasks"],
    "max_restarts": ("The most restarts after failures.", 3),
    "max_slots_milli": (
        "The most thousandths of a GPU that its tasks hold at once; null: no limit.",
        64_000,
    ),
    "memory_mib": ("Memory in MiB.", 262_144),
    "memory_mib_used": ("The memory that tasks hold, in MiB.", 65_536),
    "method": ("How the user authenticated.", "token"),
    "min_runtime_s": ("An attempt is not preempted before, in seconds.", 1200),
    "mode": ("How the log is stored.", "kafka"),
    "name": ("The name.", "default"),
    "Job.name": ("The name of the job.", "llm-sft"),
    "Cell.time_ahead_s": (
        "Seconds by which the cell's newest cycle is ahead of the clock, after a clock was set "
        "back. Its time then passes at half speed until they agree.",
        0,
    ),
    "Cell.config": ("The configuration.", {"user_tasks": 50_000}),
    "Task.name": ("The name of the job.", "llm-sft"),
    "next": ("The offset after the last record.", 1208),
    "next_cursor": ("The `cursor` of the next page; null on the last page.", "eyJrIjoiMSJ9"),
    "node": ("The name of the node.", "gpu-07"),
    "node_timeout_s": FIELDS[PoolConfig]["node_timeout_s"],
    "node_type": ("The type of the node; null: any.", "sxm"),
    "node_types": ("The types of node that it may use; empty: all.", ["sxm"]),
    "nodes": ("The nodes on which it runs.", ["gpu-07", "gpu-09"]),
    "Pool.nodes": ("The number of nodes.", 40),
    "nodes_without_share_limits": (
        "The nodes where it has a share of a GPU, and nothing limits it to that share.",
        ["gpu-07"],
    ),
    "now_at": ("The time of the cycle.", _AT),
    "numbers": ("The numbers of the decision.", _NUMBERS),
    "offset": ("The offset of the record in its partition.", 55),
    "options": FIELDS[PolicyRef]["options"],
    "outcome": ("succeeded, failed, cancelled or rejected.", "failed"),
    "over_quota": FIELDS[Quota]["over_quota"],
    "over_quota_weight": FIELDS[Quota]["over_quota_weight"],
    "params": ("The point of the search; null without a search.", {"lr": 0.1, "seed": 1}),
    "partition": ("The partition of the topic.", 0),
    "paused": ("Whether a user paused it.", False),
    "pending": ("The number of pending tasks.", 16),
    "pending_milli": (_PENDING, 16_000),
    "phase": ("The phase of the task.", "pending"),
    "phases": ("The number of tasks in each phase.", {"running": 3, "pending": 17}),
    "placement": FIELDS[PoolConfig]["placement"],
    "pointer": ("A JSON pointer to the field.", "/priority"),
    "policies": ("The policy of each pool in the cycle.", {"default": "priority"}),
    "policy": FIELDS[PoolConfig]["policy"],
    "pool": ("The name of the pool.", "h100"),
    "pool_order": FIELDS[PoolConfig]["pool_order"],
    "gpu_placement": FIELDS[PoolConfig]["gpu_placement"],
    "pools": (_IN_ORDER, ["h100", "a100"]),
    "Department.pools": ("Quota and use in each pool.", [{"pool": "h100"}]),
    "Project.pools": ("Quota and use in each pool.", [{"pool": "h100"}]),
    "Explain.pools": (
        "The reason in each pool.",
        [{"pool": "h100", "code": "insufficient_free"}],
    ),
    "position": ("The position in the log that this answer shows.", _POSITION),
    "preemptible": ("Whether other tasks may preempt it.", True),
    "parent": FIELDS[DepartmentConfig]["parent"],
    "preempt_min_runtime_s": _PREEMPT_MIN_RUNTIME,
    "preferred": ("Not supported yet.", None),
    "prev": ("The digest of the commit before it.", _DIGEST),
    "priority": ("A smaller number is a higher priority.", 42),
    "progress_permille": ("The progress that the task reported, in thousandths.", 350),
    "project": ("The name of the project.", "nlp"),
    "projects": ("The projects of the department.", ["nlp", "vision"]),
    "quotas": _QUOTAS,
    "rank": _RANK,
    "reason": ("The reason that an operator gave.", "new driver"),
    "reclaim_min_runtime_s": _RECLAIM_MIN_RUNTIME,
    "refusal": (
        "Why quota refused it; null if it did not.",
        {"code": "pool_not_allowed", "numbers": {}, "about": "h100"},
    ),
    "refused": ("The number of records that were refused.", 0),
    "released_at": ("When its slots were released.", _AT),
    "replica": ("The number of the replica, starting at 0.", 0),
    "replicas": ("The replicas of the attempt.", [{"replica": 0, "node": "gpu-07"}]),
    "replicas_max": ("The most replicas.", 2),
    "replicas_min": ("The fewest replicas.", 2),
    "request_id": ("The id of the request.", "main.12"),
    "request_ids": ("The ids of the requests.", ["main.12"]),
    "requested_at": ("When it was requested.", _AT),
    "reserved": (
        "The slots that are kept for the task, which waits until all are free.",
        _RESERVED,
    ),
    "Node.reserved": (
        "What is reserved for pending tasks, by task; the tasks start as soon as it is free.",
        [
            {
                **{"task_id": _TASK, "slots": [3, 4], "gpu_milli": 2000, "cpu_milli": 32_000},
                **{"memory_mib": 262_144, "until_at": _AT},
            }
        ],
    ),
    "reserved_at": ("When the slots were reserved.", _AT),
    "reserved_for": ("The pending tasks for which it is reserved.", [_TASK]),
    "required": ("Not supported yet.", None),
    "resources": ("What one replica needs.", _RESOURCES),
    "restarts": ("The number of restarts after failures.", 0),
    "revision": ("Increases with each change; the ETag contains it.", 3),
    "role": ("The role of an interactive job.", "notebook"),
    "RoleBinding.role": ("The role.", "operator"),
    "roles": ("The roles of the user.", [{"role": "user", "scope": "project", "name": "nlp"}]),
    "rule": ("The rule of the policy that applied.", "better_priority"),
    "run": ("The program; null after it was erased.", {"command": ["python3", "train.py"]}),
    "running": ("The number of running tasks.", 24),
    "runtime_estimate_s": ("How long a task would run undisturbed, in seconds.", 28_800),
    "scope": ("Where the role applies.", "project"),
    "script": ("The script for `sh -eu`.", "python3 train.py"),
    "secrets": ("Variables whose values come from the node's secrets.", {"HF_TOKEN": "shared/hf"}),
    "seed": FIELDS[PoolConfig]["seed"],
    "seen_at": ("When its agent was last heard.", _AT),
    "seq": ("The number of the record of its writer.", 55),
    "signal": ("The signal that ended it; null if it exited.", 9),
    "since_at": ("Since when the reason holds.", _AT),
    "slots": ("The slots.", [0, 1]),
    "ReservedShown.slots": ("The slots, by node.", _RESERVED["slots"]),
    "Node.slots": ("The slots, with what holds them.", [{"index": 0, "gpu_milli_used": 1000}]),
    "share_limits": (
        "What limits tasks to their shares of GPUs: `none` (nothing) or `mps`; null: not joined.",
        "none",
    ),
    "source": ("The writer of the record.", "scheduler/main.d3b7877bd11b"),
    "spec": ("The job with all defaults; null before it is admitted.", {"priority": 42}),
    "start_at": ("The start of the bucket.", _AT),
    "start_numbers": ("The numbers of the start.", {"priority": 42}),
    "start_rule": ("Why the attempt started.", "by_priority"),
    "start_timeout_s": FIELDS[PoolConfig]["start_timeout_s"],
    "started_at": ("When it started.", _AT),
    "state": ("The state of the node.", "ready"),
    "Request.state": ("Whether quota has decided, and how.", "accepted"),
    "state_digest": ("The digest of the scheduler's state after the cycle.", _DIGEST),
    "status": ("The HTTP status.", 404),
    "Health.status": ("The health.", "ready"),
    "step": ("The step at which it was saved.", 12_000),
    "stop": ("Why the attempt must stop; null without a request to stop.", _STOP),
    "stop_signal": ("The signal that asks its tasks to stop.", "TERM"),
    "subject": ("The task, job or object that it is about.", _TASK),
    "submitted_at": ("When it was submitted.", _AT),
    "task_id": ("The id of the task.", _TASK),
    "task_ids": ("The ids of the tasks.", [_TASK]),
    "tasks": ("The number of tasks.", 20),
    "Node.tasks": ("The tasks that hold something of it.", [_TASK]),
    "Slot.tasks": ("The tasks that hold something of it.", [_TASK]),
    "term": ("The term of the leader that decided it.", 4),
    "time_limit_s": ("The longest running time in seconds; null: no limit.", 43_200),
    "title": ("The code in words.", "not found"),
    "to_at": ("The end of the period.", _AT),
    "token": ("The token; only this answer contains it.", "yard_3f9a0c21b7..."),
    "token_id": ("The id of the token.", "t5f0c1e2d3a4"),
    "tokens": (
        "Its valid tokens, without the tokens themselves.",
        [{"id": "t5f0c1e2d3a4", "issued_at": _AT, "expires_at": None}],
    ),
    "TokenShown.id": ("The id of the token.", "t5f0c1e2d3a4"),
    "issued_at": ("When it was issued.", _AT),
    "expires_at": ("When it expires; null: it does not.", _AT),
    "UserShown.name": ("The name of the user.", "ana"),
    "topic": ("The topic of the record.", "decisions"),
    "topology": ("Not supported yet.", None),
    "trace_id": (
        "The id that the log lines of the request carry.",
        "0af7651916cd43dd8448eb211c80319c",
    ),
    "type": ("The type of the event.", "SlotsAllocated"),
    "Problem.type": ("The code as a URI.", "urn:yardmaster:problem:not_found"),
    "Request.type": ("The type of the request.", "CancelRequested"),
    "unblock": ("What would let the task start, in words.", "running tasks end"),
    "unequal_gangs": FIELDS[PoolConfig]["unequal_gangs"],
    "unschedulable": ("What happens while no node can ever hold it.", "wait"),
    "uri": ("Where the state was saved.", f"s3://runs/{_JOB}/step-12000"),
    "until_at": ("When the tasks that hold the slots must be gone; null: not known.", _AT),
    "used_milli": (_USED, 24_000),
    "user": ("The user.", "ana"),
    "version": ("The version.", 1),
    "newest": ("The newest version of the rules that the gateway's version knows.", 2),
    "rules": ("The version of the rules that decide in the cell; 0: none decided yet.", 1),
    "Version.version": ("The version of the gateway.", "0.1.0"),
    "wait": ("Why it waits, in the pool where it is closest to a start.", _WAIT),
    "wait_class": (
        "never: job, quota or cluster must change; held: a user must release it; not_now: time "
        "can help.",
        "not_now",
    ),
    "warnings": (
        "Why the job can never fit on the present nodes.",
        ["resources.gpus: 16 per replica, the largest node has 4"],
    ),
    "weight": ("The weight in a fair share.", 1),
    "working_dir": ("The folder to run in.", "/data/ana/llm"),
}
