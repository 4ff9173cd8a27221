"""The version of the rules by which the machines decide.

`yard replay verify` recomputes a cycle only with the rules that decided it. So increase `RULES`
with each change after which the same state and inputs could lead to other decisions: a policy's
order, a default that is resolved while deciding, a new decision. Do not increase it for a change of
speed, or for an event type that no log contains yet. Until 0.1 is tagged there is no log to keep:
rules 1 change in place.

A commit names the rules of its cycle (`CycleCommitted.rules`). A log never returns to lower rules.
A new log starts with `RULES`. A log that began with older rules keeps them, so that the release
before can still read it, until an operator switches it (RulesRequested, `yard upgrade finish`). The
cycle that changes to higher rules contains a RulesEnabled: in quota's topic as the verdict on
RulesRequested, and then in the scheduler's topic, because the scheduler follows quota.

So a program can decide by all rules from `OLDEST_RULES`, the rules of the release before, to
`RULES`: code that differs between rules reads `state.rules`. An event type or version names the
rules N that introduce it (`@event(..., rules=N)`). Under rules below N, a leader does not write
such an event, and refuses an agent's claim of it as unknown. A field of the state that only rules
from N on set must not change the digest under rules below N. The first leader switches a log with
rules below `OLDEST_RULES` to `OLDEST_RULES`.

| rules | since |
| --- | --- |
| 1 | 0.1 |
"""

from typing import Final

#: The newest rules.
RULES: Final = 1
#: The rules of the release before. Increase it, and remove the older rules, after a release.
OLDEST_RULES: Final = 1
