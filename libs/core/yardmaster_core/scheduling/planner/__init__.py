"""Decides which tasks start, which are preempted, and why the others stay pending.

The steps of one cycle; each module has one of them:

    inputs -> apply -> wake ----------------------+      the state, between decisions
                                                  |
    begin_cycle -> lifecycle -> plan -> share_records -> end_cycle
                                 |
          for each pool, in turns by name:
          start_ready -> reclaim -> group_queue -> limits -> placement -> start
                                        ^              (does not fit) |
                                        |                             v
                                        |              reserve slots that are being released
                                        |                             | (none suffice)
                                        |                             v
                                        +-- next task    victim_search, moving_search -> preempt
                                                                      | (no victims)
                                                                      v
                                                                 wait_reasons

Every decision of these steps goes through `draft`, which applies it to the state at once.

Terms:

- Cycle: one run of these steps; its decisions are appended to the log as one batch.
- Draft: the decisions of a cycle while it is being decided; they are rolled back at its end.
- Group: the pending tasks of one shape and priority; one result applies to all of them.
- Shape: the request of a task (GPUs, CPU, memory, node types); equal requests share a shape.
- Awake: the planner considers an awake group; a group with a wait reason sleeps until an event
  wakes it (`state/wake_index.py`).
- Wait reason: why a group is pending in a pool: a code, and the numbers behind it.
- Turn: a group's chance to get slots; the first turn is to start, each further turn is for one
  preemption action of the policy.
- Preemption action: one way of the policy to preempt others, with the victims that it permits.
- Victim: a running task that may be preempted for another task.
- Reservation: the slots of one pending task, on which no other task starts.
- Future capacity: the free capacity once all stopping tasks have released their slots.
- Claimant: the job, user or project among which the policy divides the pool.
- Tier: the first element of the policy's sort key; all groups of a tier have a turn before any of
  them has the next.
- Rank: the place of a claimant in the listed queue of a pool, which the cycle records. (The setting
  `rank` of a project or department is its order among siblings, under `quota`.)

Start reading at `plan`; `policy` defines what a policy supplies. Must not import a policy, and
changes state only through `draft`.
"""
