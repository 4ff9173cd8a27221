"""Histories of a full cluster: few nodes, more work than they hold, and quotas that fit or not.

Every job arrives early. Then agents only answer starts and stops, tasks end now and then, and a
node may be lost. Replicas may release their slots one after another, and tasks of some jobs do not
release them at all. What a policy promises on a full cluster must hold at the end (`FullPlayer`).
"""

import random
from typing import Any, Final

from tests.histories.entitlement import assert_entitled_tasks_wait_for_nothing
from tests.histories.free_capacity import WHOLE
from tests.histories.inputs import OPTIONS, Input
from tests.histories.player import OPEN
from tests.histories.properties import CheckedPlayer
from yardmaster_core.scheduling.state.phases import ReplicaState
from yardmaster_core.testing import job_id
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.resources import Resources

#: The policies with such histories.
FULL: Final = ("quota", "starved_first", "fair_share", "priority", "fitgpp")
NODES: Final = ("n1", "n2", "n3")
PROJECTS: Final = ("p", "q", "r", "s")
DEPARTMENTS: Final = ("d", "e")
USERS: Final = ("ann", "bob", "cy")
#: Options that a history takes from the defaults of its policy, unless it draws them.
RARE: Final = 0.25
#: The longest minimum run time and grace period of these histories (s).
LONGEST_S: Final = 600
#: Time after the end of a grace period at which a task that holds its slots is overdue (s).
OVERDUE_S: Final = 60
#: Times that the cell comes to rest, at most, as minimum run times, graces and back-offs end.
MOST_RESTS: Final = 60


def full_cluster(seed: int, policy: str) -> list[Input]:
    """Return the inputs of the history of this seed for one of `FULL`."""
    return _Inputs(random.Random(f"full {policy} {seed}"), policy).all()


class _Inputs:
    """Draws the inputs of one history."""

    def __init__(self, chance: random.Random, policy: str) -> None:
        self.chance = chance
        self.policy = policy
        #: Every second history has only what makes projects take slots from each other.
        plain = chance.random() < 0.5
        self.pools = ("main", "side") if not plain and chance.random() < 0.4 else ("main",)
        self.types = ("a", "b") if chance.random() < 0.25 else ("any",)
        self.fractions = chance.random() < (0.2 if plain else 0.5)
        self.protected = not plain and chance.random() < 0.7
        self.gangs = not plain and chance.random() < 0.7
        self.ended = 0.0 if plain else 0.1
        self.largest = chance.choice((2, 3, 4, 4, 5, 8))
        self.jobs = 0
        self.names: list[str] = []

    def all(self) -> list[Input]:
        """Return a cluster, the jobs, and what happens to them, also when slots are released."""
        inputs = self.cluster()
        # Drawn apart, so that the jobs of a seed do not depend on it.
        chance = random.Random(f"releases {self.chance.random()}")
        if chance.random() < 0.4:
            inputs.insert(0, Input("stagger", {"most": chance.choice((1, 1, 2))}))
        if chance.random() < 0.3:
            jobs = [name for name in self.names if chance.random() < 0.4]
            inputs += [Input("stick", {"job": name}) for name in jobs]
            # More work comes when some tasks do not release their slots.
            inputs += [Input("submit", self.submit()) for _ in jobs[:3]]
        return inputs

    def cluster(self) -> list[Input]:
        """Return a cluster, the jobs, and what happens to them."""
        chance = self.chance
        inputs = [Input("configure_pool", self.pool(name)) for name in self.pools]
        if self.policy == "quota":
            inputs += [Input("organize", self.department(name)) for name in DEPARTMENTS]
            inputs += [Input("organize", self.project(name)) for name in PROJECTS]
        nodes = NODES[: chance.randint(1, 3)]
        inputs += [Input("join", self.node(name)) for name in nodes]
        lost = chance.randint(3, 14) if chance.random() < 0.3 else None
        for number in range(chance.randint(4, 14)):
            inputs.append(Input("submit", self.submit()))
            if number == lost:
                inputs.append(
                    Input("change_node", {"name": nodes[-1], "how": "silent", "for_s": 70})
                )
            how = chance.random()
            if how < 0.4:
                inputs.append(Input("round", {"after_s": chance.choice((1, 10, 60))}))
            elif how < 0.5:
                inputs.append(Input("start", {"number": chance.randrange(100)}))
            elif how < 0.5 + self.ended:
                values = {"number": chance.randrange(100), "after_s": 0}
                inputs.append(Input("finish", values))
        return inputs

    def pool(self, name: str) -> dict[str, Any]:
        chance = self.chance
        pool: dict[str, Any] = {"pool": name, "policy": self.policy}
        for option in _OPTIONS_OF[self.policy]:
            if chance.random() < RARE:
                pool[option] = chance.choice(OPTIONS[option])
        return pool

    def node(self, name: str) -> dict[str, Any]:
        chance = self.chance
        return {
            "name": name,
            "gpus": chance.choice((self.largest, self.largest, chance.randint(1, self.largest))),
            "pool": chance.choice(self.pools),
            "node_type": chance.choice(self.types),
            "cpu_milli": 64_000,
            "memory_mib": 64_000,
        }

    def quota(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "deserved_milli": chance.choice((0, 0, 1000, 1000, 2000, 3000, 4000, 1333)),
            "over_quota_weight": chance.choice((0, 1, 1, 1, 3, 4)),
        }

    def department(self, name: str) -> dict[str, Any]:
        quotas = {}
        if self.chance.random() < 0.5:
            quotas = {pool: self.quota() for pool in self.pools}
        return {"name": name, "config": {"parent": None, "quotas": quotas}}

    def project(self, name: str) -> dict[str, Any]:
        quotas = {pool: self.quota() for pool in self.pools if self.chance.random() < 0.9}
        config: dict[str, Any] = {"department": self.chance.choice(DEPARTMENTS), "quotas": quotas}
        config["rank"] = self.chance.choice((100, 100, 100, 50, 200))
        return {"name": name, "config": config}

    def submit(self) -> dict[str, Any]:
        chance = self.chance
        gpus = chance.choice((1, 1, 1, 2, self.largest, chance.randint(1, self.largest)))
        resources = Resources(gpus=gpus, gpu_milli=1000)
        if self.fractions and chance.random() < 0.4:
            resources = Resources(gpus=1, gpu_milli=chance.choice((300, 500, 700)))
        spec: dict[str, Any] = {
            "resources": resources,
            "priority": chance.choice((20, 42, 42, 42, 60)),
            "tasks": chance.choice((1, 1, 1, 2, 4)),
            "grace_s": chance.choice((0, 30, LONGEST_S)),
        }
        if self.gangs and chance.random() < 0.4:
            spec["replicas"] = chance.choice((2, 3))
        if self.protected and chance.random() < 0.4:
            protection = {"min_runtime_s": chance.choice((30, LONGEST_S))}
            spec |= chance.choice(({"preemptible": False}, protection))
        if len(self.types) > 1 and chance.random() < 0.5:
            spec["node_types"] = (chance.choice(self.types),)
        if len(self.pools) > 1:
            orders = (("main",), ("side",), ("main", "side"), ("side", "main"))
            spec["pools"] = chance.choice(orders)
        if self.policy == "starved_first":
            spec["user"] = chance.choice(USERS)
        name = f"job{self.jobs:02d}"
        self.jobs += 1
        self.names.append(name)
        at_once = chance.random() < 0.7
        return {"name": name, "project": chance.choice(PROJECTS), "at_once": at_once, "spec": spec}


_OPTIONS_OF: Final = {
    "quota": (
        *("order", "over_quota", "max_moves", "saturation_permille", "min_runtime_of"),
        *("reserve_oldest_s", "over_subscribed"),
    ),
    "starved_first": ("owners", "non_preemptible_permille", "reserve_oldest_s"),
    "fair_share": ("variant", "among"),
    "priority": ("backfill", "impossible_block"),
    "fitgpp": ("s_milli", "p", "backfill_s"),
}


class FullPlayer(CheckedPlayer):
    """A player that checks what must hold on a full cluster.

    Progress: with obedient agents and no input the cell comes to rest, also after each deadline
    that passes; and no task is preempted more often than there are tasks.

    Failure: the tasks of some jobs never release their slots. The cell comes to rest all the same,
    and then no slots of such a task are reserved. Later they do, and it comes to rest again.

    Entitlement: see `entitlement.py`.
    """

    #: A gang that releases its slots one by one takes as many cycles.
    MOST_ROUNDS = 400

    def __init__(self) -> None:
        super().__init__()
        #: The most replicas that act on their stop at once; None: all.
        self.most_stops: int | None = None
        #: The jobs with tasks that do not act on a stop.
        self.stuck: set[str] = set()

    def stagger(self, *, most: int) -> None:
        """From now on at most this number of replicas act on their stop between two cycles."""
        self.most_stops = most

    def stick(self, *, job: str) -> None:
        """From now on the tasks of a job do not act on a stop."""
        if job in self.jobs:
            self.stuck.add(job_id(job))

    def stop_replicas(self) -> bool:
        """End replicas that have a stop request; return whether there was one."""
        if self.most_stops is None and not self.stuck:
            return super().stop_replicas()
        stopping = [
            (task, replica, was)
            for was in (ReplicaState.EXITED, ReplicaState.ALLOCATED, ReplicaState.STARTED)
            for task, replica in self.replicas(was)
            if task.run is not None and task.run.stop is not None and task.job.id not in self.stuck
        ]
        for task, replica, was in stopping[: self.most_stops]:
            about = self.cell._about(task, replica)
            if was is ReplicaState.STARTED:
                self.claim(nev.TaskExitedV1(**about, exit_code=0))
                if self.most_stops is not None:
                    continue  # it releases its slots later
            never = was is ReplicaState.ALLOCATED
            self.claim(nev.SlotsReleasedV1(**about, never_started=never))
        return bool(stopping)

    def come_to_rest(self) -> None:
        """Come to rest, then again each time that something is due; and once again when the tasks
        that did not act on their stop do.
        """
        begun = len(self.cell.preempted)
        self._rest_until_nothing_is_due()
        if self.stuck:
            self._no_slots_of_stuck_tasks_are_reserved()
            self.stuck.clear()
            self._rest_until_nothing_is_due()
        # From here on others check how long a task waits.
        self.most_stops = None
        preemptions = len(self.cell.preempted) - begun
        tasks = len(self.state.tasks)
        assert preemptions <= tasks * tasks, f"{preemptions} preemptions of {tasks} tasks"
        assert_entitled_tasks_wait_for_nothing(self.state)

    def _rest_until_nothing_is_due(self) -> None:
        super().come_to_rest()
        for _ in range(MOST_RESTS):
            due_ms = self.cell.machine.due_ms(self.state)
            horizon_ms = self.cell.now_ms + (LONGEST_S + OVERDUE_S) * 1000
            if due_ms is None or due_ms > horizon_ms:
                break
            self.wait_until_due()
            super().come_to_rest()
        else:
            raise AssertionError("the cell still decides after all deadlines have passed")

    def _no_slots_of_stuck_tasks_are_reserved(self) -> None:
        for task, replica in self.replicas(*OPEN):
            run = task.run
            if run is None or run.stop is None or task.job.id not in self.stuck:
                continue
            held = run.placements[replica]
            whole = held.gpu_milli == WHOLE
            for other in self.state.tasks.values():
                for kept in other.reserved.placements if whole and other.reserved else ():
                    taken = kept.node == held.node and set(kept.slots) & set(held.slots)
                    assert not taken, f"{other.id} waits for slots of {task.id}, which is stuck"
