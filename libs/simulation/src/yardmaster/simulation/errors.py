"""What can go wrong in a simulation, as one small tree.

```
SimulationError   Unending  BadWorkload
```
"""

from yardmaster.schemas.errors import YardmasterError


class SimulationError(YardmasterError):
    """The simulation cannot be run: {found}."""

    code = "simulation"


class Unending(SimulationError):
    """The scheduler does not come to rest at {now_ms} ms after {cycles} cycles: two decisions take
    each other back for ever, which is a fault of the policy. Please report it with the workload.
    """

    code = "unending"


class BadWorkload(SimulationError):
    """{path}: {found}."""

    code = "bad_workload"
