"""A slow and simple model of Determined's planner, from its pseudo-code, without the parts that
Yardmaster leaves out (docs/reference/policies.md). Equal agents keep the order of their list.

Its terms are those of a scenario: agents, groups, tasks. It does not import the core.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction

from yardmaster_simulation.conformance.determined_form import Options, PlanningPass, Task

Fit = list[tuple[int, int]]


@dataclass(slots=True)
class Agent:
    """The free slots of an agent."""

    name: str
    slots: int
    places: int
    takes_tasks: bool
    used: int = 0
    places_used: int = 0

    @property
    def empty(self) -> int:
        return self.slots - self.used if self.takes_tasks else 0

    @property
    def empty_places(self) -> int:
        return self.places - self.places_used if self.takes_tasks else 0


Agents = list[Agent]


def agents_of(given: PlanningPass) -> Agents:
    """The agents, without the slots of running tasks."""
    agents = [
        Agent(a.id, a.slots, a.max_zero_slot, a.enabled and not a.draining) for a in given.agents
    ]
    for task in given.tasks:
        hold(agents, task, held(agents, task))
    return agents


def held(agents: Agents, task: Task) -> Fit:
    names = [agent.name for agent in agents]
    return [(names.index(on.agent), on.slots_held) for on in task.on]


def hold(agents: Agents, task: Task, fit: Fit, sign: int = 1) -> None:
    for index, slots in fit:
        agents[index].used += sign * slots
        agents[index].places_used += sign * (task.slots == 0)


def fits(agents: Agents, task: Task, options: Options) -> Fit | None:
    """The number of slots per agent that the task would get."""
    allowed = [i for i, a in enumerate(agents) if a.name not in task.blocked_agents]

    def rank(i: int) -> tuple[Fraction, int]:
        a, best = agents[i], options.fitting_policy == "best"
        empty, all_ = (a.empty, a.slots) if a.used or task.slots else (a.empty_places, a.places)
        return -(Fraction(1, 1 + empty) if best else Fraction(empty, all_ or 1)), i

    single = [
        i
        for i in allowed
        if task.slots <= agents[i].empty and (task.slots or agents[i].empty_places > 0)
    ]
    if single:
        return [(min(single, key=rank), task.slots)]
    if task.single_agent or task.slots <= 1:
        return None
    whole = [i for i in allowed if not agents[i].used and agents[i].empty]
    sizes = sorted({agents[i].empty for i in whole}, reverse=True)
    of = {n: sorted((i for i in whole if agents[i].empty == n), key=rank) for n in sizes}
    for n in sizes:
        if task.slots % n == 0 and len(of[n]) * n >= task.slots:
            return [(i, n) for i in of[n][: task.slots // n]]
    if options.allow_heterogeneous_fits:
        found: Fit = []
        need = task.slots
        for n in sizes:
            found += [(i, n) for i in of[n][: need // n]]
            need = task.slots - sum(slots for _, slots in found)
        return found if not need else None
    return None


class ByPriority:
    """One pass of the priority planner."""

    def __init__(self, given: PlanningPass) -> None:
        self.options = given.options
        self.starts: set[str] = set()
        self.stops: set[str] = set()
        #: Tasks that fit after a preemption in the same pass. They start where the slots that are
        #: idle and not reserved suffice; a pass counts slots and does not say which are reserved.
        self.unsure: set[str] = set()
        priorities = {group.id: group.priority for group in given.groups}
        places = given.options.queue_positions
        self.position = {
            task.id: places.get(task.group, task.created_order) for task in given.tasks
        }
        self.priority = {task.id: priorities[task.group] or 0 for task in given.tasks}
        for zero in (False, True):
            self._pass(agents_of(given), [t for t in given.tasks if (t.slots == 0) is zero])

    def _ordered(self, tasks: Iterable[Task]) -> list[Task]:
        return sorted(tasks, key=lambda task: (self.position[task.id], task.created_order))

    def _pass(self, agents: Agents, tasks: Sequence[Task]) -> None:
        self.agents = agents
        self.running = self._ordered(task for task in tasks if not task.waits)
        behind = stopping = False
        for priority in sorted({self.priority[task.id] for task in tasks if task.waits}):
            waiting = self._ordered(
                task for task in tasks if task.waits and self.priority[task.id] == priority
            )
            # A task that may not start reserves nothing and preempts nothing.
            may = [task for task in waiting if not behind or self._may_be_lent_to(task)]
            left = []
            for task in may:
                fit = fits(self.agents, task, self.options)
                if fit is None:
                    left.append(task)
                    continue
                hold(self.agents, task, fit)
                (self.unsure if stopping else self.starts).add(task.id)
            behind |= bool(left)
            if self.options.preemption:
                for task in left:
                    stopping |= self._have_stopped(task)

    def _may_be_lent_to(self, task: Task) -> bool:
        return bool(self.options.preemption) and not task.non_preemptible

    def _have_stopped(self, task: Task) -> bool:
        """Preempt others so that the task fits, unless it already fits or cannot."""
        agents = deepcopy(self.agents)
        victims: list[Task] = []
        fit = fits(agents, task, self.options)
        for victim in [] if fit is not None else self._victims(task):
            hold(agents, victim, held(agents, victim), -1)
            victims.append(victim)
            fit = fits(agents, task, self.options)
            if fit is not None:
                break
        if fit is None:
            return False
        for victim in victims[-2::-1]:
            # Most valuable victim first: does the task still fit without preempting it?
            hold(agents, victim, held(agents, victim))
            if fits(agents, task, self.options) is None:
                hold(agents, victim, held(agents, victim), -1)
            else:
                victims.remove(victim)
        fit = fits(agents, task, self.options)
        assert fit is not None
        hold(agents, task, fit)
        self.agents = agents
        self.stops |= {victim.id for victim in victims}
        return bool(victims)

    def _victims(self, task: Task) -> list[Task]:
        own = self.priority[task.id]
        found = [
            victim
            for victim in reversed(self.running)
            if not victim.non_preemptible
            and victim.id not in self.stops
            and (
                self.priority[victim.id] > own
                or (
                    self.priority[victim.id] == own
                    and self.position[victim.id] > self.position[task.id]
                )
            )
        ]
        return sorted(found, key=lambda victim: -self.priority[victim.id])
