"""How long a running task is spared by whatever policy: its job's minimum run time."""

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.tasks import Task


def min_runtime_until_ms(state: ClusterState, victim: Task) -> int:
    """Until when a task may not be stopped for another; 0: it may be."""
    run = victim.run
    least_s = victim.job.spec.min_runtime_s
    if run is None or not least_s:
        return 0
    since_ms = run.running_ms if victim.phase is Phase.RUNNING else state.now_ms
    return since_ms + least_s * 1000
