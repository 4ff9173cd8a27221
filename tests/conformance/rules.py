"""The rules of the policy `quota`, each with the change of the code that deletes it.

The code of a rule follows the comment `# rule: NAME` in the source of `yardmaster_core`: the next
line, with the lines that are indented below it. `deleted_rules` applies the changes one by one: at
least one scenario or test must fail. A rule that is not here is either pinned by KAI's scenarios
alone, or an early refusal of what a later check refuses too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yardmaster_core

CORE: Final = Path(yardmaster_core.__file__).parent
MARK: Final = re.compile(r"^ *# rule: (.*)\n", re.MULTILINE)
#: Comments, then a line, the lines that are indented below it, and a line that closes its bracket.
MARKED: Final = re.compile(
    r"(?:^ *#.*\n)*(^( *)[^ #\n].*\n(?:^\2 +.*\n|^\n(?=\2 ))*(?:^\2[)\]}].*\n)?)", re.M
)
HEADER: Final = re.compile(r"\A( *)(el)?if\b(?:.*\n)*?.*:\n")
#: `Rule.old` for the condition of an `if`.
CONDITION: Final = "CONDITION"
#: Which file contains the mark of a rule, by the rule's name.
FILES: Final = {
    name: path.relative_to(CORE).as_posix()
    for path in sorted(CORE.rglob("*.py"))
    for name in MARK.findall(path.read_text())
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and its deletion: in its code, `old` becomes `new`; without `old`, all of it."""

    name: str
    new: str
    old: str | None = None

    @property
    def file(self) -> str:
        """The file of `yardmaster_core` that contains its code."""
        return FILES[self.name]

    def deleted_from(self, text: str) -> str:
        """Return the text of the file without the rule.

        Raises:
            ValueError: the text does not contain the code of the rule exactly once.
        """
        marks = [mark for mark in MARK.finditer(text) if mark[1] == self.name]
        code = MARKED.match(text, marks[0].end()) if len(marks) == 1 else None
        if code is None:
            raise ValueError(f"{self.file} contains {len(marks)} marks of the rule {self.name}")
        return text[: code.start(1)] + self._deleted(code[1], code[2]) + text[code.end(1) :]

    def _deleted(self, code: str, indent: str) -> str:
        if self.old is None:
            return "".join(f"{indent}{line}\n" for line in self.new.splitlines())
        if self.old == CONDITION:
            return HEADER.sub(rf"\1\2if {self.new}:\n", code)
        if code.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old} is not exactly once in:\n{code}")
        return code.replace(self.old, self.new)


def _never(name: str) -> Rule:
    return Rule(name, "False", CONDITION)


def _always(name: str) -> Rule:
    return Rule(name, "True", CONDITION)


def _removed(name: str) -> Rule:
    return Rule(name, "")


def _orders() -> Iterator[Rule]:
    """Yield the rules that order queues, and the tasks within a project."""
    yield Rule("order: above its share last", "over_utilized = False")
    yield Rule("order: any resource", "all(over)", "any(over)")
    yield Rule("order: all resources (kai)", "any(over)", "all(over)")
    yield Rule("order: deserved first", "within_deserved = False")
    yield Rule("order: deserved first, within the sum over pools", "True", "guaranteed")
    yield Rule("order: above its share with the task later", "above_with_task = False")
    yield Rule("order: higher rank", "higher_rank_first = 0")
    yield Rule("order: a share of all that is requested", "without_share = False")
    yield Rule("order: smaller part with the task", "part_with_task = 0")
    yield Rule("order: smaller part now", "part_now = 0")
    yield _removed("order: smaller share")
    yield Rule("order: older queue", "*(-part for part in queue.age),")
    yield Rule("order: victims in reverse", "return place")
    yield Rule("order: found victims count as taken", "taken=NOTHING,")
    yield Rule("order: wait for a preemption of the project", "return False")
    yield Rule("order: impossible tasks last", "False", "never_fits(self._pool, shape)")
    yield Rule("order: tasks beyond a limit last", "False")
    yield _removed("order: tasks beyond what is deserved last")
    yield Rule("order: failed starts last", "at = turn")
    yield Rule("order: earlier submission", "return found")
    yield Rule("project: the priority", "return never, group.shape.preemptible")
    yield Rule("project: not preemptible first", "return never, group.priority")
    yield Rule("project: only the priority (kai)", "return non_preemptible_first")


def _preemptions() -> Iterator[Rule]:
    """Yield the rules that say which tasks may be preempted, reclaimed or moved."""
    yield Rule("preempt: strictly lower", "<", "<=")
    yield _never("preempt: any priority for a task that cannot be preempted")
    yield Rule("preempt: at a limit", "return None")
    yield Rule("preempt: lower priorities only (kai)", "non_preemptible_first = True")
    yield Rule("victims: lowest priority first", "reverse=False", "reverse=True")
    yield Rule(
        "victims: latest submission first",
        "[*of[priority].reverse_scan()][::-1]",
        "of[priority].reverse_scan()",
    )
    yield _always("victims: only preemptible tasks")

    yield _removed("protections: of the job")
    yield Rule("protections: of queues", "least_s = victim.job.spec.min_runtime_s")
    yield Rule("protections: of the nearest queue", "(queue,)", "queue.ancestors()")
    yield Rule("protections: preempt has its own", "reclaim=True", "reclaim=False")
    yield Rule("protections: lca", "victim_queue", "reclaimee")
    yield _never("protections: queue")
    yield _never("protections: delay of preempt")
    yield Rule("protections: delay of reclaim", "False", "delayed_until_ms(view, task)")
    yield Rule("protections: delay of moves", "False", "delayed_until_ms(view, task)")

    yield Rule("reclaim: pre-check", "return True")
    yield Rule("reclaim: pre-check of each resource", "return after[0] <= fair[0]")
    yield Rule("reclaim: victims by what is requested", "return True")
    yield Rule("reclaim: each chunk must be above the share or what is deserved", "pass")
    yield Rule("reclaim: each chunk reduces what is left", "pass")
    yield Rule("reclaim: above its share", "False")
    yield _removed("reclaim: above what is deserved, for a deserving queue")
    yield Rule(
        "reclaim: only a deserving queue takes from a share",
        "or not _is_within_deserved(reclaimee, remaining)",
    )
    yield _never("reclaim: a share takes nothing that is deserved")
    yield Rule("reclaim: saturation guard", "return True")
    yield _never("reclaim: saturation below the share")
    yield _never("reclaim: saturation without a share")
    yield Rule("reclaim: saturation_permille", "saturation = 1000")
    yield Rule("reclaim: first ancestors that differ", "return first, second")

    yield _never("moves: max_moves")
    yield _never("moves: every task has a new place")
    yield Rule("moves: moved tasks are not judged", "gone = list(needed)")
    yield _always("moves: unnecessary victims keep running")
    yield _never("moves: beyond the share after every reclaim")
    yield _never("moves: for preemptible tasks only (kai)")
    yield Rule("moves: for any task (document)", "not shape.preemptible", CONDITION)

    yield Rule(
        "actions: order of the document",
        '"document": ("allocate", "consolidation", "reclaim", "preempt"),',
    )
    yield Rule(
        "actions: order of kai", '"kai": ("allocate", "preempt", "consolidation", "reclaim"),'
    )
    yield Rule("actions: only those listed", "actions = ACTIONS[self.order]")
    yield Rule("actions: allocate", "return True")


def _quotas() -> Iterator[Rule]:
    """Yield the rules about limits and deserved amounts."""
    yield _never("limits")
    yield _never("at_deserved")
    yield Rule(
        "limits and at_deserved at every level", "(project_queue,)", "project_queue.ancestors()"
    )
    yield _always("at_deserved: not for preemptible tasks")
    yield Rule(
        "at_deserved: counts tasks that are not preemptible", "queue.used", "queue.non_preemptible"
    )
    yield Rule("limits: of requested resources only", "", ", among=request")
    yield _never("exceeds_limit and exceeds_deserved")
    yield _never("over-quota off")
    yield Rule("unlimited next to 0", "gpus = quota.deserved_milli or 0")
    yield Rule("a department without a quota deserves the sum", "NOTHING", "added(queue.children)")
    yield Rule("a project without a quota deserves no GPUs", "UNLIMITED", "(0, None, None)")
    yield Rule("a project without a quota may use any CPUs", "NOTHING", "(0, None, None)")

    yield Rule("sum over pools: is all that is guaranteed", "return True")
    yield Rule("sum over pools: what exceeds it is reclaimed", "0", "max(0, left[i] - bound)")
    yield Rule(
        "sum over pools: unlimited in one pool",
        "(sum(queue.deserved[0] or 0 for queue in queues), None, None)",
        "added(queues)",
    )
    yield Rule("sum over pools: bounds tasks that are not preemptible", "return None")

    yield Rule("GPU memory: the part of the node's GPUs", "40", "self.gpu_memory_mib")
    yield Rule(
        "GPU memory: deserved counts the largest GPUs",
        "most_milli(shape)",
        "milli_for_limits(shape, task)",
    )
    yield Rule("GPU memory: shares count the smallest GPUs", "least_milli", "most_milli")


def _shares() -> Iterator[Rule]:
    """Yield the rules that divide a pool."""
    yield Rule("shares: limits bound requests", "return total")
    yield Rule("shares: weights", "weight = 1")
    yield _never("shares: by weight")
    yield _always("shares: in proportion to what is deserved")
    yield _never("shares: equal if nothing is deserved")
    yield Rule("shares: weights are of GPUs", "(weight, weight, weight)", "(weight, 1, 1)")
    yield Rule("shares: deserved first", "queue.name: min(0, queue.demand)")
    yield Rule(
        "shares: no more than requested",
        "queue.name: total if queue.deserved is None else queue.deserved",
    )
    yield Rule("shares: the rank", "0", "queue.rank")
    yield Rule("shares: higher rank first", "reverse=False", "reverse=True")
    yield Rule("shares: the weight", "offered = Fraction(give, len(unmet))")
    yield Rule(
        "shares: weight 0 gets nothing",
        "if not rest:\n    continue\n"
        "if not weight:\n    dealt[queue.name] += rest\n    return 0, False",
    )
    yield _always("shares: past use")
    yield Rule("shares: usage_weight_permille", "usage_weight=Fraction(1),")
    yield Rule(
        "shares: past use decays",
        "return max(self.average, held + ((self.average - held) * factor >> FACTOR_BITS))",
    )
    yield Rule("shares: whole units", "part = int(offered)")
    yield Rule("shares: largest remainder", "", "-remainders[queue.name], ")
    yield Rule("shares: remainders go out", "part = 0")
    yield Rule("shares: unused parts are shared", "pass")
    yield Rule(
        "shares: impossible tasks request nothing", "True", "fits_usable_nodes(self._pool, shape)"
    )
    yield Rule(
        "shares: level by level",
        "while parent.parent is not None:\n    parent = parent.parent\n"
        "total = parent.fair[resource]",
    )
    yield Rule("shares: what a queue keeps is no more than its limit", "return most")


def _pools() -> Iterator[Rule]:
    """Yield the rules that say which pools and node types a task may use."""
    yield Rule("pools: idle later pool before victims", "return False")
    yield _never("pools: strict")
    yield Rule("pools: default list of the project", "", "config.default_pools or ")
    yield Rule("pools: default list of the cell", "", "_of_cell(state, config) or ")
    yield _never("pools: allowed list")
    yield Rule("node types: per kind", "return config.node_types")
    yield _never("node types: the job's are a subset")
    yield Rule("node types: those of the project by default", "node_types=spec.node_types,")


_ALL: Final = (*_orders(), *_preemptions(), *_quotas(), *_shares(), *_pools())
#: By file.
RULES: Final = tuple(sorted(_ALL, key=lambda rule: rule.file))
