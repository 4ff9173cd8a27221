"""The version of the rules by which the machines decide.

`yard replay verify` recomputes a cycle only with the rules that decided it. So increase `RULES`
with each change after which the same state and inputs could lead to other decisions: a policy's
order, a default that is resolved while deciding, a new decision. Do not increase it for a change of
speed, or for an event type that no log contains yet.

A commit names the rules of its cycle (`CycleCommitted.rules`; 0 in logs written before versions
were recorded). A log never returns to lower rules. A new log starts with `RULES`. A log that began
with older rules keeps them, so that the release before can still read it, until an operator
switches it (RulesRequested, `yard upgrade finish`). The cycle that changes to higher rules contains
a RulesEnabled: in quota's topic as the verdict on that request; the scheduler follows quota.

So this program decides by all rules from `OLDEST_RULES`, those of the release before, to `RULES`:
a decision that differs asks `state.rules`, and an event type or version names the rules that
introduce it (`@event(..., rules=N)`). Below N, a leader refuses to write it, and a claim of it is
refused as unknown. A field of the state that only newer rules set must not change the digest below
them. A log of rules below `OLDEST_RULES` is switched to `OLDEST_RULES` by the first leader.

| rules | since |
| --- | --- |
| 0 | before versions were recorded |
| 1 | failed starts are counted by themselves; a reported exit decides before a lost node |
| 2 | an operator switches a log to newer rules; nodes whose tasks are another user say so |
| 3 | reservations are events; idle capacity of a later pool before victims in an earlier one |
| 4 | a request whose epoch is more than an hour ahead of its append time is refused |
| 5 | only an incarnation of its own ledger replaces a node that is up |
| 6 | ended jobs leave the states; quota reads their ends and limits unfinished tasks |
| 7 | epochs of agents are bounded; ranks of claimants, policies of stops are events; see below |
| 8 | quotas of CPUs and memory, ranks, minimum run times of queues, nested departments |
| 8 | default pools, node types of kinds, the order of pools; admissions name the user |
| 8 | shares of GPUs by memory; which GPU of a node a share gets |
"""

from typing import Final

from yardmaster_schemas.resources import GPU_MEMORY_RULES

#: The newest rules.
RULES: Final = 8
#: The rules of the release before. Increase it, and remove the older rules, after a release.
OLDEST_RULES: Final = 1
#: The oldest rules whose decisions the scheduler of this program recomputes. Below them it decides
#: what the release before reads, but not always the same.
OLDEST_RECOMPUTED: Final = 3
#: Since these rules ended jobs leave the states, and quota reads `decisions` for their ends.
ENDED_LEAVE: Final = 6
#: Since these rules the epochs of agents are bounded, as those of gateways are.
BOUNDED_AGENT_EPOCHS: Final = 7
#: Since these rules `best_fit` splits no unused GPU while a shared one has enough left.
SHARED_GPUS_FIRST: Final = 7
#: Since these rules a paused task leaves its place under max_concurrent to another task.
PAUSED_LEAVE_PLACES: Final = 7
#: Since these rules a task that starts on its reserved slots is preempted only once it runs; then
#: the tasks that it passed are considered again.
RESERVED_STARTS_RUN: Final = 7
#: Since these rules what victims release beyond the reserved slots is offered to the other tasks at
#: once, and not only when it is free.
SURPLUS_OFFERED: Final = 7
#: Since these rules `fair_share` starts tasks that cannot be preempted before it divides the rest.
FIRM_STARTS_FIRST: Final = 7
#: Since these rules tasks with a minimum run time start on no capacity that a task with
#: `victims_protected` may get.
PROTECTED_DO_NOT_PASS: Final = 7
#: Since these rules a group at a limit is considered when its owner holds less, the first of its
#: equals before the others.
LIMITS_BY_OWNER: Final = 7
#: Since these rules a wait reason names the CPU or memory that is short.
SHORT_RESOURCE_NAMED: Final = 7
#: Since these rules a task with GPUs may preempt tasks without GPUs for their CPUs or memory.
VICTIMS_WITHOUT_GPUS: Final = 7
#: Since these rules a drain gives tasks that cannot be preempted, which it stops at its deadline,
#: their grace period.
DRAINS_GIVE_GRACE: Final = 7
#: Since these rules the equals of a task in a strict queue are considered when it leaves its
#: reserved slots.
EQUALS_FOLLOW_RESERVED: Final = 7
#: Since these rules a slot or place that is disabled or reserved, and still held, counts as nothing
#: when a victim search counts the replicas that a node holds, and not as less than nothing.
HELD_COUNT_NOTHING: Final = 7
#: Since these rules a task that needs containers leaves its reserved slots on a node that joins
#: again without them.
RESERVED_ON_IMAGES: Final = 8
#: Since these rules a wait for capacity is recorded again if another share decides.
SHARES_NAMED: Final = 8
#: Since these rules the configuration of a department counts for the projects of departments below
#: it too, and the reservations of other projects are checked when a project joins theirs.
DEPARTMENTS_NEST: Final = 8
#: Since these rules a node says what limits tasks to their shares of GPUs.
SHARE_LIMITS_REPORTED: Final = 8
#: Since these rules the admission of a job names the user who submitted it.
USERS_ADMITTED: Final = 8
#: Since these rules tasks may request memory of GPUs, and nodes that join say how much theirs have.
GPU_MEMORY: Final = GPU_MEMORY_RULES
