"""The version of the rules by which the machines decide.

`yard replay verify` recomputes a cycle only with the rules that decided it. So increase `RULES`
with each change after which the same state and inputs could lead to other decisions: a policy's
order, a default that is resolved while deciding, a new decision. Do not increase it for a change of
speed, or for an event type that no log contains yet.

A commit names the rules of its cycle (`CycleCommitted.rules`; 0 in logs written before versions
were recorded). A log never returns to lower rules. The cycle that changes to higher rules contains
a RulesEnabled, which the new leader's shell adds as an observation.

| rules | since |
| --- | --- |
| 0 | before versions were recorded |
| 1 | failed starts are counted by themselves; a reported exit decides before a lost node |
"""

from typing import Final

RULES: Final = 1
