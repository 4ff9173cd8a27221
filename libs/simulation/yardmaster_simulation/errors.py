"""The errors of simulations.

```
SimulationError   Unending  Endless  BadWorkload  BadOrganization
```
"""

from yardmaster_schemas.errors import YardmasterError


class SimulationError(YardmasterError):
    """The simulation cannot be run: {found}."""

    code = "simulation"


class Unending(SimulationError):
    """At {now_ms} ms the scheduler still makes decisions after {cycles} cycles: decisions undo each
    other without end, which is a fault of the policy. Please report it with the workload.
    """

    code = "unending"


class Endless(SimulationError):
    """{open} tasks have not ended {days} days of the run's time after the last job was submitted:
    nodes fail too often for them. Use fewer node failures or more frequent checkpoints.
    """

    code = "endless"


class BadWorkload(SimulationError):
    """{path}: {found}."""

    code = "bad_workload"


class BadOrganization(SimulationError):
    """Quota refuses a configuration of the workload ({request}): {code} {about}. Name pools that
    the workload has, and departments that the organization has.
    """

    code = "bad_organization"
