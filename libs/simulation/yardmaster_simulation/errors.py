"""What can go wrong in a simulation, as one small tree.

```
SimulationError   Unending  Endless  BadWorkload
```
"""

from yardmaster_schemas.errors import YardmasterError


class SimulationError(YardmasterError):
    """The simulation cannot be run: {found}."""

    code = "simulation"


class Unending(SimulationError):
    """The scheduler does not come to rest at {now_ms} ms after {cycles} cycles: two decisions take
    each other back for ever, which is a fault of the policy. Please report it with the workload.
    """

    code = "unending"


class Endless(SimulationError):
    """{open} tasks have not ended {days} days of the run's time after the last job was submitted:
    nodes fail too often for them. Let nodes fail less often, or tasks save their state more often.
    """

    code = "endless"


class BadWorkload(SimulationError):
    """{path}: {found}."""

    code = "bad_workload"
