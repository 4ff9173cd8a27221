"""The inputs of a random history, drawn from a seed.

An input is plain data, so that any part of a history is a history too. Names are few, so that
inputs conflict. Each history omits some kinds of inputs and prefers others, so that some histories
are mostly preemptions, others mostly lost nodes.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from yardmaster_core.scheduling.planner.placement import PLACEMENTS
from yardmaster_core.scheduling.policies import POLICIES
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.events.node_events import ExecutorKind
from yardmaster_schemas.reasons import StartFailure
from yardmaster_schemas.resources import Resources

NODES: Final = ("n1", "n2", "n3", "n4")
POOLS: Final = ("main", "side")
PROJECTS: Final = ("p", "p", "q", "r")
#: With this number of jobs, no input of a history adds more.
MOST_JOBS: Final = 24
#: The most inputs after the first jobs.
MOST_INPUTS: Final = 80

WHOLE: Final = (
    Resources(gpus=1, gpu_milli=1000),
    Resources(gpus=2, gpu_milli=1000),
    Resources(gpus=1, gpu_milli=1000, cpu_milli=3000),
    Resources(gpus=3, gpu_milli=1000, memory_mib=3000),
)
SHARED: Final = (
    Resources(gpus=1, gpu_milli=500),
    Resources(gpus=1, gpu_milli=300, cpu_milli=2000),
    Resources(gpus=2, gpu_milli=500),
    Resources(gpus=1, gpu_memory_mib=30),
    Resources(gpus=2, gpu_memory_mib=15),
    Resources(cpu_milli=2000),
    Resources(cpu_milli=3000, memory_mib=5000),
)
#: More GPUs than any node has.
TOO_LARGE: Final = Resources(gpus=9, gpu_milli=1000)
PRIORITIES: Final = (10, 40, 40, 42, 60, 60)
LIMITS_MILLI: Final = (None, None, None, 0, 1000, 3000, 6000)
LIES: Final = ("author", "attempt", "task", "incarnation", "place", "new")

#: What happens to a task, or to a node on which it holds slots or has reserved some.
DISTURBANCES: Final = (
    *("cancel", "kill", "pause", "set_priority", "succeed"),
    *("drain", "cordon", "lose", "leave", "disable", "empty"),
)

#: The policies' options; `OPTIONS` lists every option of every policy.
OPTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "preemption": (True, True, True, False),
    "backfill": (True, True, False),
    "impossible_block": (False, False, True),
    "variant": ("demand_proportional", "max_min"),
    "among": ("job", "project"),
    "release": ("for_others",),
    "s_milli": (0, 500, 4000),
    "p": (1, 2, None),
    "backfill_s": (None, None, 5, 600),
    "order": ("document", "document", "kai"),
    "actions": (*[None] * 5, ["allocate", "reclaim"], ["allocate", "consolidation", "preempt"]),
    "over_quota": ("deserved", "weight"),
    "over_subscribed": ("first", "proportional"),
    "max_moves": (16, 16, 1, 0),
    "saturation_permille": (1000, 1000, 1500, 0),
    "preemption_delay_s": (*[0] * 5, 20),
    "min_runtime_of": ("lca", "queue"),
    "owners": ("user", "user", "project"),
    "reserve_oldest_s": (None, 5, 600),
    "non_preemptible_permille": (500, 500, 1000, 250),
    "usage_half_life_s": (0, 0, 60, 3600),
    "usage_weight_permille": (1000, 0, 5000),
}
#: Policies with histories of their own, with quotas or users. The others keep the histories of
#: their seeds.
OF_THEIR_OWN: Final = ("quota", "starved_first")
USERS: Final = ("ann", "ann", "bob", "cy", None)
DESERVED_MILLI: Final = (None, 0, 1000, 1000, 2000, 2000, 3000, 4000)
#: Departments of these histories; the parent of each is one of those before it.
DEPARTMENTS: Final = ("d", "e", "f", "g")
QUOTA_PROJECTS: Final = ("p", "q", "r", "s")
ORDERS: Final = (*req.PoolOrder, req.PoolOrder.IDLE_FIRST)
RANKS: Final = (100, 100, 100, 50, 200)

#: How often each kind of input comes, relative to the others.
WEIGHTS: Final[Mapping[str, int]] = {
    **{"submit": 10, "urgent": 4, "stop_or_resume": 5, "change_job": 4},
    **{"configure_pool": 2, "entitle": 3, "join": 2, "change_node": 5},
    **{"start": 6, "exit": 5, "release": 3, "obey": 5, "report": 1, "finish": 3},
    **{"cycle": 8, "round": 6, "wait_until_due": 3, "become_idle": 3, "restart": 2},
    **{"lie": 1, "repeat": 1},
}
#: The same in the histories of a policy, where it differs.
WEIGHTS_OF: Final[Mapping[str | None, Mapping[str, int]]] = {
    "quota": {
        **WEIGHTS,
        **{"submit": 16, "organize": 5, "disturb": 4, "entitle": 1},
        **{"start": 8, "round": 10, "restart": 4},
    },
}


@dataclass(frozen=True, slots=True)
class Input:
    """An input: the method of `HistoryPlayer` that plays it, and its arguments."""

    kind: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{self.kind}({shown})"


def history(seed: int, policy: str | None = None) -> list[Input]:
    """Return the inputs of the history of this seed, for one of `OF_THEIR_OWN` or the others."""
    name = "history" if policy is None else f"{policy} history"
    return _Inputs(random.Random(f"{name} {seed}"), policy).all()


class _Inputs:
    """Draws the inputs of one history."""

    def __init__(self, chance: random.Random, only: str | None) -> None:
        self.chance = chance
        self.only = only
        self.with_quotas = only == "quota"
        self.jobs = 0
        #: Options of jobs that this history uses.
        self.unusual = [kind for kind in _UNUSUAL if chance.random() < 0.6]
        self.cpu_only = chance.random() < 0.5
        self.largest = chance.choice((3, 3, 3, 4, 8))

    def all(self) -> list[Input]:
        """Return a cluster with jobs, then inputs of random kinds."""
        chance = self.chance
        inputs = [
            Input("configure_pool", self.pool("side")),
            Input("configure_pool", self.pool("main")),
        ]
        if self.with_quotas:
            names = (*DEPARTMENTS, *QUOTA_PROJECTS)
            inputs += [
                Input("organize", self.organize(name)) for name in names if chance.random() < 0.8
            ]
        inputs += [
            Input("join", self.node(name) | {"pool": "main"})
            for name in NODES[: chance.randint(1, 4)]
        ]
        first = chance.randint(3, 10) if self.with_quotas else chance.randint(2, 5)
        inputs += [Input("submit", self.submit() | {"at_once": False}) for _ in range(first)]
        of = WEIGHTS_OF.get(self.only, WEIGHTS)
        kinds = [kind for kind in of if chance.random() < 0.8]
        weights = [of[kind] * chance.choice((1, 1, 2, 4)) for kind in kinds]
        for kind in chance.choices(kinds, weights, k=chance.randint(20, MOST_INPUTS)):
            if self.jobs < MOST_JOBS or kind not in ("submit", "urgent"):
                inputs.append(Input(kind, _DRAWN[kind](self)))
        return inputs

    def number(self) -> int:
        return self.chance.randrange(100)

    def job(self) -> str:
        """Return the name of a job that was submitted, most likely one of the last."""
        newest = max(1, self.jobs)
        at = newest - 1 - int(self.chance.expovariate(1 / 4))
        return f"job{max(0, at):02d}"

    # Pools

    def policy(self) -> dict[str, Any]:
        """Return a policy, every second time `priority`, with any of its options."""
        chance = self.chance
        policies = [each for each in POLICIES.values() if each.name not in OF_THEIR_OWN]
        policy = chance.choice((policies[0], chance.choice(policies)))
        if self.only is not None and chance.random() < 0.9:
            policy = POLICIES[self.only, 1]
        options: Any = policy.options
        chosen = {each.name: chance.choice(OPTIONS[each.name]) for each in fields(options)}
        return {"policy": policy.name, **chosen}

    def pool(self, name: str) -> dict[str, Any]:
        chance = self.chance
        timeout_s = chance.choice((30, 60))
        return {
            "pool": name,
            "node_timeout_s": timeout_s,
            "start_timeout_s": timeout_s,
            "placement": chance.choice(("best_fit", *sorted(PLACEMENTS))),
            "gpu_placement": chance.choice((None, None, *req.GpuPlacement)),
            "seed": chance.randrange(3),
            "unequal_gangs": chance.choice((False, False, True)),
            "gpuless_per_node": chance.choice((None, None, None, 0, 1, 2)),
            **({"pool_order": chance.choice(ORDERS)} if self.with_quotas else {}),
            **self.policy(),
        }

    def configure_pool(self) -> dict[str, Any]:
        return self.pool(self.chance.choice(POOLS))

    def entitle(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "name": chance.choice((*PROJECTS, "department d", "department e", "spare pool")),
            "department": chance.choice(("d", "e")),
            "limit_milli": chance.choice(LIMITS_MILLI),
            "main": chance.choice(LIMITS_MILLI),
        }

    def organize(self, name: str | None = None) -> dict[str, Any]:
        """Return the configuration of a department or project, with quotas."""
        chance = self.chance
        if name is None:
            name = chance.choice((*DEPARTMENTS, *QUOTA_PROJECTS, *QUOTA_PROJECTS))
        pools = chance.choice((("main",), ("main",), POOLS, ("side",), ()))
        config: dict[str, Any] = {
            "rank": chance.choice(RANKS),
            "preempt_min_runtime_s": chance.choice((None, None, None, 0, 30)),
            "reclaim_min_runtime_s": chance.choice((None, None, None, 0, 30)),
            "quotas": {pool: self.quota() for pool in pools},
        }
        if name in DEPARTMENTS:
            above = DEPARTMENTS[: DEPARTMENTS.index(name)]
            config["parent"] = chance.choice((None, *above, *above[-2:]))
        else:
            config["department"] = chance.choice(DEPARTMENTS)
            config["limit_milli"] = chance.choice((*[None] * 9, 3000))
            config["pools"] = chance.choice((*[()] * 8, ("main",), ("side",)))
        return {"name": name, "config": config}

    def quota(self) -> dict[str, Any]:
        """Return settings of a quota in a pool."""
        chance = self.chance
        return {
            "deserved_milli": chance.choice(DESERVED_MILLI),
            "deserved_unlimited": chance.random() < 0.05,
            "limit_milli": chance.choice((*[None] * 12, 2000, 4000)),
            "over_quota_weight": chance.choice((0, 1, 1, 2, 3)),
            "deserved_cpu_milli": chance.choice((*[None] * 3, 2000, 0)),
            "deserved_memory_mib": chance.choice((*[None] * 5, 3000)),
            "limit_cpu_milli": chance.choice((*[None] * 12, 4000)),
            "limit_memory_mib": chance.choice((*[None] * 12, 6000)),
            "over_quota": chance.random() < 0.93,
        }

    # Jobs

    def spec(self) -> dict[str, Any]:
        """Return the spec of a job with at most two unusual options; with more, hardly any job
        would start.
        """
        chance = self.chance
        resources = chance.choice((*WHOLE, *WHOLE, *SHARED, TOO_LARGE))
        if self.largest > 3 and chance.random() < 0.3:
            resources = Resources(gpus=chance.randint(2, self.largest), gpu_milli=1000)
        if not self.cpu_only and not resources.gpus:
            resources = WHOLE[0]
        spec: dict[str, Any] = {
            "priority": chance.choice(PRIORITIES),
            "preemptible": chance.choice((True, True, True, False)),
            "resources": resources,
            "replicas": chance.choice((1, 1, 1, 1, 2, 3)),
            "tasks": chance.choice((1, 1, 2, 4)),
        }
        if self.unusual:
            for kind in chance.choices(self.unusual, k=chance.choice((0, 0, 1, 1, 2))):
                spec |= _UNUSUAL[kind](chance)
        return spec

    def user(self) -> dict[str, Any]:
        """Return the user of a job, where the policy asks for users."""
        return {"user": self.chance.choice(USERS)} if self.only == "starved_first" else {}

    def submit(self) -> dict[str, Any]:
        chance = self.chance
        self.jobs += 1
        return {
            "name": f"job{self.jobs - 1:02d}",
            "project": chance.choice(QUOTA_PROJECTS if self.with_quotas else PROJECTS),
            "at_once": chance.random() < 0.5,
            "spec": self.spec() | self.user(),
        }

    def urgent(self) -> dict[str, Any]:
        chance = self.chance
        self.jobs += 2
        urgent = {
            "resources": chance.choice(WHOLE),
            "replicas": chance.choice((1, 1, 2)),
            "priority": chance.randint(1, 9),
            "preemptible": chance.choice((True, False)),
            **self.user(),
        }
        low = {"priority": chance.randint(61, 64), "tasks": chance.randint(1, 4), **self.user()}
        return {
            "name": f"job{self.jobs - 2:02d}",
            **({"project": chance.choice(QUOTA_PROJECTS)} if self.with_quotas else {}),
            "spec": urgent,
            "low_name": f"job{self.jobs - 1:02d}",
            "low": chance.choice((None, low)),
        }

    def stop_or_resume(self) -> dict[str, Any]:
        chance = self.chance
        hows = ("cancel", "kill", "erase", "pause", "pause", "resume", "resume")
        return {
            "job": self.job(),
            "index": chance.choice((None, None, 0)),
            "how": chance.choice(hows),
        }

    def change_job(self) -> dict[str, Any]:
        chance = self.chance
        what = chance.choice(("set_priority", "set_priority", "set_weight", "set_max_slots"))
        values = {
            "set_priority": PRIORITIES,
            "set_weight": (1, 2, 5),
            "set_max_slots": (None, 1, 2, 4),
        }
        return {"job": self.job(), "what": what, "value": chance.choice(values[what])}

    # Nodes

    def node(self, name: str) -> dict[str, Any]:
        chance = self.chance
        return {
            "name": name,
            "gpus": chance.choice((*range(self.largest + 1), self.largest, self.largest)),
            "gpu_memory_mib": chance.choice((0, 40, 40, 80)),
            "pool": chance.choice(("main", "main", "main", "side")),
            "node_type": chance.choice(("any", "any", "sxm")),
            "executors": chance.choice(
                (tuple(ExecutorKind), tuple(ExecutorKind), (ExecutorKind.PROCESS,))
            ),
        }

    def join(self) -> dict[str, Any]:
        return self.node(self.chance.choice(NODES))

    def change_node(self) -> dict[str, Any]:
        hows = (
            *("again", "leave", "cordon", "uncordon", "uncordon", "drain", "silent", "silent"),
            *("enroll", "revoke", "disable", "disable", "empty", "enable"),
        )
        return {
            "name": self.chance.choice(NODES),
            "how": self.chance.choice(hows),
            "for_s": self.chance.choice((1, 40, 70)),
        }

    def disturb(self) -> dict[str, Any]:
        return {
            "number": self.number(),
            "of": self.chance.choice(("victim", "claimant", "runs")),
            "how": self.chance.choice(DISTURBANCES),
        }

    # Agents

    def start(self) -> dict[str, Any]:
        return {"number": self.chance.choice((None, None, self.number()))}

    def exit(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "number": self.number(),
            "how": chance.choice(
                (
                    {"exit_code": 0},
                    {"exit_code": 0},
                    {"exit_code": 3},
                    {"exit_code": 255},
                    {"signal": 9},
                )
            ),
            "done": chance.choice((True, False)),
            "free": chance.choice((True, True, False)),
        }

    def release(self) -> dict[str, Any]:
        failures = (None, *[StartFailure.OTHER] * 3, *StartFailure)
        return {"number": self.number(), "failure": self.chance.choice(failures)}

    def report(self) -> dict[str, Any]:
        return {"number": self.number(), "step": self.chance.randrange(6)}

    def finish(self) -> dict[str, Any]:
        return {"number": self.number(), "after_s": self.chance.choice((0, 0, 10, 60))}

    # Faults and time

    def lie(self) -> dict[str, Any]:
        return {"number": self.number(), "what": self.chance.choice(LIES)}

    def repeat(self) -> dict[str, Any]:
        return {"number": self.number(), "what": self.chance.choice(("last", "claim"))}

    def cycle(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "after_s": chance.choice((0, 0, 0, 0, 1, 5, 29, 61)),
            "limit": chance.choice((1, 2, 3, 1000, 1000, 1000, 1000)),
        }

    def round(self) -> dict[str, Any]:
        return {"after_s": self.chance.choice((1, 5, 20, 61))}

    def nothing(self) -> dict[str, Any]:
        return {}


_Draw = Callable[[_Inputs], dict[str, Any]]
_DRAWN: Final[Mapping[str, _Draw]] = {
    kind: getattr(_Inputs, kind, _Inputs.nothing) for kind in WEIGHTS_OF["quota"]
}


def _whole_nodes(chance: random.Random) -> dict[str, Any]:
    resources = Resources(
        gpus=chance.choice((2, 3, 4, 4, 6, 9)), gpu_milli=1000, cpu_milli=chance.choice((0, 3000))
    )
    return {"layout": req.Layout.WHOLE_NODES, "replicas": 1, "resources": resources}


#: Options of a job that most jobs do not have.
_UNUSUAL: Final[Mapping[str, Callable[[random.Random], dict[str, Any]]]] = {
    "max_concurrent": lambda chance: {"max_concurrent": chance.randint(1, 2)},
    "pools": lambda chance: {
        "pools": chance.choice((("side",), ("main", "side"), ("side", "main")))
    },
    "node_types": lambda chance: {
        "node_types": chance.choice((("sxm",), ("sxm", "any"), ("none",)))
    },
    "max_slots": lambda chance: {"max_slots_milli": chance.choice((1000, 4000))},
    "min_runtime": lambda chance: {"min_runtime_s": chance.choice((5, 30, 60))},
    "time_limit": lambda chance: {"time_limit_s": chance.choice((5, 60))},
    "restarts": lambda chance: {"max_restarts": chance.randint(1, 2)},
    "unschedulable": lambda _: {"unschedulable": req.Unschedulable.FAIL},
    "image": lambda _: {"image": True},
    "exit_zero": lambda _: {"exit_zero": req.ExitZero.FINISHED},
    "avoid_nodes": lambda chance: {
        "avoid_nodes": chance.choice((("n1",), ("n1", "n2"), ("n2", "n3")))
    },
    "whole_nodes": _whole_nodes,
    "grace": lambda chance: {"grace_s": chance.choice((0, 5, 120))},
}
