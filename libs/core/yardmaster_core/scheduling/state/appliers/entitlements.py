"""Appliers of pools, departments and projects."""

from collections.abc import Collection

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers.attempts import schedule_decision, watch_start
from yardmaster_core.scheduling.state.appliers.claimants import set_rank, set_user_rank
from yardmaster_core.scheduling.state.appliers.usages import follow_half_life
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_core.scheduling.state.phases import Phase
from yardmaster_core.scheduling.state.pools import Pool
from yardmaster_core.scheduling.state.projects import Department, Project
from yardmaster_schemas.events import admissions as adm


def pool_configured_v1(state: ClusterState, event: adm.PoolConfiguredV1, _: str) -> None:
    pool = state.pool(event.pool)
    if pool.revision == event.revision and pool.config == event.config:
        return  # a repeat
    if pool.config is None or pool.config.policy.name != event.config.policy.name:
        pool.shares = None
    pool.config = event.config
    pool.revision = event.revision
    for index in pool.indexes:
        index.limit_gpuless(event.config.gpuless_per_node)
        index.node_orders.clear()
    pool.policy_cache.clear()
    _follow_policy(state, pool)
    state.dirty[pool] = None
    for task in pool.reserved:
        schedule_decision(state, task)
    state.wake_index.wake_all(pool)
    # The start timeout may have changed for attempts that are starting.
    for node in pool.nodes.values():
        for task in node.open.values():
            if task.run is not None and task.phase is Phase.STARTING:
                watch_start(state, task, task.run)
                schedule_decision(state, task)


def _follow_policy(state: ClusterState, pool: Pool) -> None:
    """Give the pool the index of its policy, and regroup tasks if other tasks are equal now."""
    former = pool.index.traits
    pool.index = state.policies.index(pool)
    follow_half_life(state, pool, former.usage_half_life_ms)
    if pool.index.traits.impossible_block != former.impossible_block:
        for group in pool.groups.values():
            state.wake_index.remove_wait(pool, group)
            state.wake_index.store_wait(pool, group)
    if former.follows_pools or pool.index.traits.follows_pools:
        for other in state.pools.values():
            if other.index.traits.follows_pools:
                other.index.input_changed(from_next_cycle=False)
    for claimant in list(pool.ranked):
        set_rank(state, pool, claimant, ())
    for name in list(pool.user_ranks):
        set_user_rank(state, pool, name, ())
    if pool.index.traits.equal_within == former.equal_within:
        return
    for other in state.pools.values():
        other.index.owners_changed()
    for job in state.jobs.values():
        separation = state.separation(job.spec.pools)
        if separation == (job.separate, job.by_user):
            continue
        waiting = [task for task in job.tasks if task.group is not None]
        for task in waiting:
            state.dequeue(task)
        job.set_separate(*separation)
        state.dirty[job] = None
        for task in waiting:
            state.enqueue(task)
            if task.reserved is not None:
                schedule_decision(state, task)


def pool_deleted_v1(state: ClusterState, event: adm.PoolDeletedV1, _: str) -> None:
    pool = state.pool(event.pool)
    pool.config = None
    pool.shares = None
    _follow_policy(state, pool)
    pool.revision = 0
    for index in pool.indexes:
        index.limit_gpuless(None)
    for task in pool.reserved:
        schedule_decision(state, task)
    state.dirty[pool] = None


def entitlements_changed_v1(state: ClusterState, event: adm.EntitlementsChangedV1, _: str) -> None:
    if event.level is adm.Level.DEPARTMENT:
        department = _department(state, event.name)
        left = state.chain_of(department)
        department.config = event.department
        department.revision = event.revision
        state.nest_departments()
        state.dirty[department] = None
        _moved(state, left, state.chain_of(department))
    else:
        parent = event.project.department if event.project is not None else None
        project = project_of(state, event.name, parent)
        project.config = event.project
        project.revision = event.revision
        state.dirty[project] = None
    for pool in state.pools.values():
        pool.index.owners_changed()
        pool.index.input_changed(from_next_cycle=False)
    state.wake_index.entitled[event.name] = None


def reconsider_entitled(state: ClusterState) -> None:
    """Reconsider what depends on the entitlements that this cycle's inputs changed, once for all of
    them: groups of these projects and departments, groups that wait for a limit, reserved slots.
    """
    entitled = state.wake_index.entitled
    if not entitled:
        return
    concerned = {
        project.name
        for project in state.projects.values()
        if not entitled.keys().isdisjoint(state.owners_of(project))
    }
    for pool in state.pools.values():
        for group in pool.groups.values():
            if group.shape.project in concerned:
                state.wake_index.wake(pool, group)
    # What a queue deserves may follow from what its siblings, or the queues in it, deserve.
    state.wake_index.wake_limited()
    _check_reservations(state, entitled)


def _check_reservations(state: ClusterState, owners: Collection[str]) -> None:
    """Mark tasks of these owners with reserved slots: the cycle decides about these slots."""
    for pool in state.pools.values():
        for task in pool.reserved:
            if not set(owners).isdisjoint(state.owners_of(task.job.project)):
                schedule_decision(state, task)


def _moved(state: ClusterState, left: tuple[str, ...], joined: tuple[str, ...]) -> None:
    """Reconsider what depends on the limits of departments, after tasks moved to other departments.

    The departments in `left` hold less: groups that wait for their limits are woken. The
    departments in `joined` hold more: the planner decides whether their tasks keep their reserved
    slots.
    """
    if left == joined:
        return
    for owner in left:
        state.wake_index.wake_limited_by(owner)
    _check_reservations(state, joined)


def _department(state: ClusterState, name: str) -> Department:
    found = state.departments.get(name)
    if found is None:
        found = state.departments[name] = Department(name)
        state.dirty[found] = None
    return found


def project_of(state: ClusterState, name: str, department: str | None) -> Project:
    """The project `name`, created in `department` or moved there (None: as it is).

    Raises:
        ImpossibleEvent: there is no such project and `department` is None.
    """
    found = state.projects.get(name)
    if found is None:
        if department is None:
            raise ImpossibleEvent(event="EntitlementsChanged", found=f"no project {name}")
        found = state.projects[name] = Project(name, _department(state, department))
    elif department is not None and found.department.name != department:
        _move_project(state, found, _department(state, department))
    state.dirty[found] = None
    return found


def _move_project(state: ClusterState, project: Project, department: Department) -> None:
    old = project.department
    for name, milli in project.used_milli.items():
        old.used_milli[name] = old.used_milli.get(name, 0) - milli
        department.used_milli[name] = department.used_milli.get(name, 0) + milli
    for pool in state.pools.values():
        milli = pool.reserved_milli.get(project, 0)
        if milli:
            pool.reserved_milli[old] -= milli
            pool.reserved_milli[department] = pool.reserved_milli.get(department, 0) + milli
    state.dirty[old] = state.dirty[department] = None
    project.department = department
    for pool, group in state.wake_index.limited_groups():
        if state.projects[group.shape.project].department is old:
            state.wake_index.wake(pool, group)
    _moved(state, state.chain_of(old), state.chain_of(department))
