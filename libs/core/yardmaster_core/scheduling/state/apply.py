"""How each event changes the state: one applier per event version.

Only the appliers change the state. Appliers of decisions can be undone while a draft is open;
appliers of inputs need not be. A repeated event changes nothing. An event that contradicts the
state stops the machine; claims are checked by `refusal` first.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from yardmaster_core.errors import ImpossibleEvent
from yardmaster_core.scheduling.state.appliers import (
    claimants,
    decisions,
    entitlements,
    jobs,
    nodes,
    reports,
    reservations,
)
from yardmaster_core.scheduling.state.cluster import ClusterState
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import machine as mac
from yardmaster_schemas.events import node_events as nev
from yardmaster_schemas.events.users import ACCESS_CHANGES
from yardmaster_schemas.reasons import EndCode

Applier = Callable[[ClusterState, Any, str], None]


def apply(state: ClusterState, event: Event, record_id: str = "") -> ClusterState:
    """The state after `event`; the given state must not be used any more.

    `record_id` is the id of the event's record, or empty for a decision that has no record yet.

    Raises:
        ImpossibleEvent: the event contradicts the state.
    """
    applier = APPLIERS.get(type(event))
    if applier is not None:
        if not state.inputs_ended and _is_planned(event):
            state.end_inputs()
        applier(state, event, record_id)
        if type(event) in DISTURBING:
            state.disturb()
    elif type(event) not in IGNORED:
        raise ImpossibleEvent(event=event.TYPE, found="the scheduler has no applier for it")
    return state


APPLIERS: Final[Mapping[type[Event], Applier]] = {
    adm.PoolConfiguredV1: entitlements.pool_configured_v1,
    adm.PoolDeletedV1: entitlements.pool_deleted_v1,
    adm.EntitlementsChangedV1: entitlements.entitlements_changed_v1,
    adm.TaskAdmittedV1: jobs.task_admitted_v1,
    adm.CancelAcceptedV1: jobs.cancel_accepted_v1,
    adm.TaskPausedV1: jobs.task_paused_v1,
    adm.TaskResumedV1: jobs.task_resumed_v1,
    adm.PriorityChangedV1: jobs.priority_changed_v1,
    adm.WeightChangedV1: jobs.weight_changed_v1,
    adm.MaxSlotsChangedV1: jobs.max_slots_changed_v1,
    adm.NodeCordonedV1: nodes.node_cordoned_v1,
    adm.NodeUncordonedV1: nodes.node_uncordoned_v1,
    adm.NodeDrainingV1: nodes.node_draining_v1,
    adm.NodeSlotsChangedV1: nodes.node_slots_changed_v1,
    adm.NodeEnrolledV1: nodes.node_enrolled_v1,
    adm.NodeRevokedV1: nodes.node_revoked_v1,
    adm.DetailsErasedV1: jobs.details_erased_v1,
    nev.NodeJoinedV1: nodes.node_joined_v1,
    nev.NodeDrainedV1: nodes.node_drained_v1,
    nev.TaskStartedV1: reports.task_started_v1,
    nev.TaskPreparingV1: reports.task_preparing_v1,
    nev.CheckpointDoneV1: reports.checkpoint_done_v1,
    nev.TaskProgressedV1: reports.task_progressed_v1,
    nev.TaskExitedV1: reports.task_exited_v1,
    nev.SlotsReleasedV1: reports.slots_released_v1,
    dec.SlotsAllocatedV1: decisions.slots_allocated_v1,
    dec.SlotsReservedV1: reservations.slots_reserved_v1,
    dec.ReservationDroppedV1: reservations.reservation_dropped_v1,
    dec.ClaimantsRankedV1: claimants.claimants_ranked_v1,
    dec.SharesDividedV1: claimants.shares_divided_v1,
    dec.PreemptionRequestedV1: decisions.preemption_requested_v1,
    dec.StopRequestedV1: decisions.stop_requested_v1,
    dec.AllocationRevokedV1: decisions.allocation_revoked_v1,
    dec.StopOverdueV1: decisions.stop_overdue_v1,
    dec.TaskRequeuedV1: decisions.task_requeued_v1,
    dec.FailedStartsExpiredV1: decisions.failed_starts_expired_v1,
    dec.TaskUnschedulableV1: decisions.task_unschedulable_v1,
    dec.TaskEndedV1: decisions.task_ended_v1,
    dec.AllocationUnwritableV1: decisions.allocation_unwritable_v1,
    dec.NodeSilenceObservedV1: nodes.node_silence_observed_v1,
    dec.NodeLostV1: nodes.node_lost_v1,
}

#: The decisions that the planner may make, but for the ends of tasks. Those about tasks and nodes
#: come before: of the others, only these follow from a look at the whole pool.
PLANNED: Final[frozenset[type[Event]]] = frozenset(
    {
        dec.SlotsAllocatedV1,
        dec.SlotsReservedV1,
        dec.ReservationDroppedV1,
        dec.ClaimantsRankedV1,
        dec.SharesDividedV1,
        dec.PreemptionRequestedV1,
        dec.StopRequestedV1,
        dec.TaskUnschedulableV1,
    }
)


def _is_planned(event: Event) -> bool:
    """Whether the planner may have made a decision."""
    if isinstance(event, dec.TaskEndedV1):
        return event.code is EndCode.UNSCHEDULABLE
    return type(event) in PLANNED


#: Events that change what tasks may get, other than the starts and stops that cycles decide and the
#: answers to them.
DISTURBING: Final[frozenset[type[Event]]] = frozenset(
    {
        *(applied for applied in APPLIERS if applied.__module__ == adm.__name__),
        nev.NodeJoinedV1,
        nev.NodeDrainedV1,
        dec.NodeSilenceObservedV1,
        dec.NodeLostV1,
        dec.TaskEndedV1,
    }
)

#: Events of the scheduler's topics that do not affect its decisions.
IGNORED: Final[frozenset[type[Event]]] = frozenset(
    {
        adm.CellConfiguredV1,
        adm.TaskRejectedV1,
        adm.RequestRefusedV1,
        *ACCESS_CHANGES,
        mac.TermStartedV1,
        mac.CycleCommittedV1,
        mac.RulesEnabledV1,
        mac.SnapshotTakenV1,
    }
)
