"""The minimum run time of a job: until it has passed, no policy preempts its tasks for others."""

from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.tasks import Task


def min_runtime_until_ms(state: ClusterState, victim: Task) -> int:
    """Return the moment (ms since the epoch) until which a task must not be preempted; 0: it may
    be.
    """
    run = victim.run
    least_s = victim.job.spec.min_runtime_s
    if run is None or not least_s:
        return 0
    since_ms = run.running_ms if victim.phase is Phase.RUNNING else state.now_ms
    return since_ms + least_s * 1000
