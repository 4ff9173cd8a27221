"""Faults drawn from a seed: the same seed gives the same faults on the same processes."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from yardmaster_schemas.topics import HEARTBEATS, INPUT_ORDER, TASK_LOGS, assignments

DAY_S: Final = 86_400
#: How far a clock is set off, in seconds.
STEPS_S: Final = (-365 * DAY_S, -DAY_S, -300, 300, DAY_S, 365 * DAY_S)
#: How far the broker's clock is set off, in seconds; it deletes expired records by this clock.
BROKER_STEPS_S: Final = (-DAY_S, -300, 300, DAY_S)
#: A process is stopped for up to this time, in seconds: longer than a session and than a fence.
STOPPED_S: Final = (1.0, 28.0)
#: A killed process stays away for up to this time, in seconds.
AWAY_S: Final = 4.0
#: Time between the starts of two faults, in seconds.
PAUSE_S: Final = (1.0, 5.0)
#: Records that a topic loses, up to this number.
LOST: Final = 60


class Kind(StrEnum):
    """The types of faults."""

    KILL = "kill"
    #: SIGSTOP, and SIGCONT later.
    STOP = "stop"
    #: The wall clock of a process is set off, and set right later.
    CLOCK = "clock"
    #: An agent is killed and loses its data directory, and with it the ledger.
    WIPE = "wipe"
    #: A second agent with the name of a node starts.
    TWIN = "twin"
    #: The broker is killed and loses the end of a topic; the operator repairs the log.
    CUT = "cut"
    #: All processes and tasks are killed, and topics that the broker does not sync lose their end.
    POWER = "power"
    #: The broker's wall clock is set off, and set right later.
    BROKER_CLOCK = "broker-clock"
    #: The processes of a machine are killed, and one bit of its fence is changed.
    FENCE = "fence"
    #: The broker is killed and loses the end of a topic that is soft state or a copy.
    SOFT = "soft"
    #: The processes of a machine are killed, and reading its newest snapshot hangs.
    HANG = "hang"


#: Kinds that need all processes.
WHOLE: Final = (Kind.CUT, Kind.POWER)
#: Kinds that need both processes of a machine.
OF_MACHINES: Final = (Kind.FENCE, Kind.HANG)
#: Kinds that hit the broker.
OF_BROKER: Final = (Kind.CUT, Kind.POWER, Kind.BROKER_CLOCK, Kind.SOFT)
#: Topics of soft state, which the broker does not sync.
SOFT_TOPICS: Final = (HEARTBEATS.name, TASK_LOGS.name)

#: Faults of a type per hundred faults.
WEIGHTS: Final[Mapping[Kind, int]] = {
    Kind.KILL: 36,
    Kind.STOP: 22,
    Kind.CLOCK: 12,
    Kind.WIPE: 6,
    Kind.TWIN: 4,
    Kind.CUT: 3,
    Kind.POWER: 3,
    Kind.BROKER_CLOCK: 4,
    Kind.FENCE: 3,
    Kind.SOFT: 4,
    Kind.HANG: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        after_s: the pause before it.
        hold_s: how long a process stays away, stopped, or with a wrong clock.
        step_s: how far the clock is set off.
        topic, records: what the broker loses, and how many records.
        bit: which bit of the file changes, modulo its size.
    """

    number: int
    kind: Kind
    target: str
    after_s: float
    hold_s: float = 0.0
    step_s: int = 0
    topic: str = ""
    records: int = 0
    bit: int = 0

    def __str__(self) -> str:
        if self.topic:
            return f"{self.number:3} {self.kind} {self.records} records of {self.topic}"
        more = f" by {self.step_s:+} s" if self.step_s else ""
        return f"{self.number:3} {self.kind} {self.target}{more}, held {self.hold_s:.1f} s"


def faults(seed: int, names: Sequence[str], kinds: Sequence[Kind]) -> Iterator[Fault]:
    """Yield faults without end.

    Args:
        names: the processes; agents start with `agent-`, and `kafka` is the broker.
        kinds: the types to draw from.
    """
    chance = random.Random(seed)
    agents = [name for name in names if name.startswith("agent-")]
    services = [name for name in names if name not in ("kafka", "redis")]
    machines = [name for name in services if name.startswith(("quota-", "scheduler-"))]
    copies = [assignments(name.removeprefix("agent-")).name for name in agents]
    number = 0
    while True:
        number += 1
        kind = chance.choices(kinds, [WEIGHTS[each] for each in kinds])[0]
        after_s = chance.uniform(*PAUSE_S)
        among = agents if kind in (Kind.WIPE, Kind.TWIN) else services
        if kind in (Kind.KILL, Kind.STOP):
            among = list(names)
        if kind in OF_MACHINES:
            among = machines
        target = "kafka" if kind in OF_BROKER else chance.choice(among)
        hold_s = chance.uniform(0, AWAY_S)
        if kind in (Kind.STOP, Kind.CLOCK, Kind.BROKER_CLOCK):
            hold_s = chance.uniform(*STOPPED_S)
        step_s = chance.choice(STEPS_S) if kind is Kind.CLOCK else 0
        if kind is Kind.BROKER_CLOCK:
            step_s = chance.choice(BROKER_STEPS_S)
        topic = chance.choice(INPUT_ORDER) if kind is Kind.CUT else ""
        if kind is Kind.SOFT:
            topic = chance.choice([*SOFT_TOPICS, *copies])
        records = chance.randint(1, LOST) if kind in (Kind.CUT, Kind.POWER, Kind.SOFT) else 0
        yield Fault(
            number=number,
            kind=kind,
            target=target,
            after_s=after_s,
            hold_s=hold_s,
            step_s=step_s,
            topic=topic,
            records=records,
            bit=chance.randrange(1 << 16) if kind is Kind.FENCE else 0,
        )
