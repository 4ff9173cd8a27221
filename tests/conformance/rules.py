"""The rules of the policy `quota`, each with the change of the code that deletes it.

`deleted_rules` applies the changes one by one: at least one scenario or test must fail. A rule that
is not here is either pinned by KAI's scenarios alone, or an early refusal of what a later check
refuses too.
"""

from dataclasses import dataclass
from typing import Final

QUOTA: Final = "scheduling/policies/quota"
CLAIMING: Final = "scheduling/policies/claiming"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and its deletion: in a file of `yardmaster_core`, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    def deleted_from(self, text: str) -> str:
        """Return the text of the file without the rule.

        Raises:
            ValueError: the text does not contain the code of the rule exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.file} contains {found} times: {self.old}")
        return text.replace(self.old, self.new)


def _order(name: str, old: str, new: str) -> Rule:
    return Rule(f"order: {name}", f"{QUOTA}/order.py", old, new)


def _place(name: str, old: str, new: str) -> Rule:
    return Rule(f"order: {name}", f"{QUOTA}/queue_heap.py", old, new)


def _represents(name: str, old: str, new: str) -> Rule:
    return Rule(f"order: {name}", f"{QUOTA}/index.py", old, new)


def _preempt(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/preempt.py", old, new)


def _reclaim(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/reclaim.py", old, new)


def _consolidation(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/consolidation.py", old, new)


def _start(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/start.py", old, new)


def _project(name: str, old: str, new: str) -> Rule:
    return Rule(f"project: {name}", f"{QUOTA}/project_order.py", old, new)


def _actions(name: str, old: str, new: str) -> Rule:
    return Rule(f"actions: {name}", f"{QUOTA}/options.py", old, new)


def _policy(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/quota.py", old, new)


def _queues(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{QUOTA}/queues.py", old, new)


def _division(name: str, old: str, new: str) -> Rule:
    return Rule(f"shares: {name}", f"{QUOTA}/division.py", old, new)


def _claiming(name: str, old: str, new: str) -> Rule:
    return Rule(name, f"{CLAIMING}/index.py", old, new)


def _protections(name: str, old: str, new: str) -> Rule:
    return Rule(f"protections: {name}", "scheduling/policies/min_runtime.py", old, new)


def _sums(name: str, old: str, new: str) -> Rule:
    return Rule(f"sum over pools: {name}", f"{QUOTA}/pool_sums.py", old, new)


def _moves(name: str, old: str, new: str) -> Rule:
    return Rule(f"moves: {name}", "scheduling/planner/moving_search.py", old, new)


def _pools(name: str, old: str, new: str) -> Rule:
    return Rule(f"pools: {name}", "scheduling/planner/pool_preference.py", old, new)


def _admission(name: str, old: str, new: str) -> Rule:
    return Rule(name, "admission/submission.py", old, new)


_ALL: Final = (
    _place("above its share last", "all(above) if all_over else any(above),", "False,"),
    _place("any resource", "all(above) if all_over else any(above),", "all(above),"),
    _place("all resources (kai)", "all(above) if all_over else any(above),", "any(above),"),
    _place("deserved first", "        not starved,\n", ""),
    _place(
        "deserved first, within the sum over pools",
        "        guaranteed\n        and (",
        "        (",
    ),
    _place("higher rank", "        -queue.rank,\n", ""),
    _place(
        "a share of all that is requested",
        "        bool((task[0] and not most[0]) or (task[1] and not most[1])"
        " or (task[2] and not most[2])),\n",
        "",
    ),
    _place(
        "smaller part with the task",
        "            (next_gpu << 32) // most_gpu,\n"
        "            (next_cpu << 32) // most_cpu,\n"
        "            (next_memory << 32) // most_memory,\n",
        "            0,\n            0,\n",
    ),
    _place(
        "smaller part now",
        "        max((gpu << 32) // most_gpu, (cpu << 32) // most_cpu,"
        " (memory << 32) // most_memory),\n",
        "",
    ),
    _place("smaller share", "        *most,\n", ""),
    _place("older queue", "*queue.age,", "*(-part for part in queue.age),"),
    _order("victims in reverse", "return tuple(-part for part in own)", "return own"),
    _order("found victims count as taken", "taken=taken.get(queue, NOTHING),", "taken=NOTHING,"),
    _order(
        "wait for a preemption of the project",
        "        return bool(ahead) and min(ahead or ()) < self._rank(entry)",
        "        return False",
    ),
    _represents(
        "impossible tasks last",
        "never_fits(self._pool, shape) or any(",
        "any(",
    ),
    _represents(
        "tasks beyond a limit last",
        "                exceeded(ask, queue.limit) is not None\n                or (",
        "                (",
    ),
    _represents(
        "tasks beyond what is deserved last",
        "                or (not shape.preemptible and"
        " exceeded(ask, queue.deserved) is not None)\n",
        "",
    ),
    _project(
        "the priority",
        "    return never, group.shape.preemptible, group.priority",
        "    return never, group.shape.preemptible",
    ),
    _project(
        "not preemptible first",
        "    return never, group.shape.preemptible, group.priority",
        "    return never, group.priority",
    ),
    _project(
        "only the priority (kai)",
        "return by_priority if follows_kai(view) else firm_first",
        "return firm_first",
    ),
    _order("failed starts last", "turn + self._late * group.shape.start_failed", "turn"),
    _order("earlier submission", "        return *found, task.key\n", "        return found\n"),
    # Preempt
    _claiming("preempt: strictly lower", "priority <= below:", "priority < below:"),
    _preempt(
        "preempt: any priority for a firm task",
        "    below = None if document and not job.shape.preemptible else job.priority",
        "    below = job.priority",
    ),
    _preempt(
        "preempt: lower priorities only (kai)",
        "    document = not follows_kai(view)\n",
        "    document = True\n",
    ),
    _claiming("victims: lowest priority first", "sorted(of, reverse=True)", "sorted(of)"),
    _claiming(
        "victims: latest submission first",
        "of[priority].reverse_scan()",
        "[*of[priority].reverse_scan()][::-1]",
    ),
    Rule(
        "victims: only preemptible tasks",
        "scheduling/state/appliers/decisions.py",
        "    if task.job.spec.preemptible:\n        state.may_be_preempted(task, pool)",
        "    state.may_be_preempted(task, pool)",
    ),
    # Protections
    _protections(
        "of the job",
        "    least_s = max(least_s, victim.job.spec.min_runtime_s)\n",
        "",
    ),
    _protections(
        "of queues",
        "    least_s = max(least_s, victim.job.spec.min_runtime_s)\n",
        "    least_s = victim.job.spec.min_runtime_s\n",
    ),
    Rule(
        "protections: of the nearest queue",
        f"{QUOTA}/protections.py",
        "    for each in queue.ancestors():",
        "    for each in (queue,):",
    ),
    _preempt(
        "protections: preempt has its own",
        "queue_min_runtime_s(project_queue(view, task), reclaim=False)",
        "queue_min_runtime_s(project_queue(view, task), reclaim=True)",
    ),
    _reclaim(
        "protections: lca",
        "        return queue_min_runtime_s(other, reclaim=True)\n"
        "    return queue_min_runtime_s(differing(leaf, other)[1], reclaim=True)",
        "        return queue_min_runtime_s(other, reclaim=True)\n"
        "    return queue_min_runtime_s(other, reclaim=True)",
    ),
    _reclaim(
        "protections: queue",
        '    if view.options.min_runtime_of == "queue":',
        "    if False:",
    ),
    _preempt(
        "protections: delay of preempt",
        "    if delayed_until_ms(view, task):\n        return\n    job",
        "    job",
    ),
    _reclaim(
        "protections: delay of reclaim",
        "if delayed_until_ms(view, task) or not stays",
        "if not stays",
    ),
    _consolidation(
        "protections: delay of moves",
        "if not may_move_others(view, task) or delayed_until_ms(view, task):",
        "if not may_move_others(view, task):",
    ),
    # Reclaim
    _reclaim(
        "reclaim: pre-check",
        "    return after[0] <= fair[0] and after[1] <= fair[1] and after[2] <= fair[2]",
        "    return True",
    ),
    _reclaim(
        "reclaim: pre-check of each resource",
        "    return after[0] <= fair[0] and after[1] <= fair[1] and after[2] <= fair[2]",
        "    return after[0] <= fair[0]",
    ),
    _reclaim(
        "reclaim: victims by what is requested",
        "    return over or not below",
        "    return True",
    ),
    _reclaim(
        "reclaim: each chunk must be above the share or what is deserved",
        "            return False\n        amounts",
        "            pass\n        amounts",
    ),
    _reclaim(
        "reclaim: each chunk reduces what is left",
        "            taken[queue] = plus(taken.get(queue, NOTHING), amounts)",
        "            pass",
    ),
    _reclaim(
        "reclaim: above its share",
        "            any(is_over_share(its, remaining, i) for i in RESOURCES)\n            or (",
        "            (",
    ),
    _reclaim(
        "reclaim: above what is deserved, for a deserving queue",
        "            or (deserves and not _deserves(its, remaining))\n",
        "",
    ),
    _reclaim(
        "reclaim: only a deserving queue takes from a share",
        "            or (deserves and not _deserves(its, remaining))\n",
        "            or not _deserves(its, remaining)\n",
    ),
    _reclaim(
        "reclaim: saturation guard",
        "    return not any(\n        _saturates",
        "    return not any(\n        0 and _saturates",
    ),
    _reclaim(
        "reclaim: saturation below the share",
        "    if after <= own.fair[i]:\n        return False\n",
        "",
    ),
    _reclaim(
        "reclaim: saturation without a share",
        "    if not own.fair[i] or not its.fair[i]:\n        return False\n",
        "",
    ),
    _reclaim(
        "reclaim: saturation_permille",
        "    saturation = view.options.saturation_permille\n",
        "    saturation = 1000\n",
    ),
    _queues(
        "reclaim: first ancestors that differ",
        "        if x is not y:\n            return x, y\n",
        "        return a, b\n",
    ),
    # Quotas
    _start(
        "limits",
        "        if found is not None:\n            return _wait(WaitCode.AT_LIMIT",
        "        if False:\n            return _wait(WaitCode.AT_LIMIT",
    ),
    _start(
        "at_deserved",
        "            if found is not None:\n                return _wait(WaitCode.AT_DESERVED",
        "            if False:\n                return _wait(WaitCode.AT_DESERVED",
    ),
    _start(
        "limits and at_deserved at every level",
        "    for queue in leaf.ancestors():\n",
        "    for queue in (leaf,):\n",
    ),
    _start(
        "at_deserved: not for preemptible tasks",
        "        if not group.shape.preemptible:\n            found",
        "        if True:\n            found",
    ),
    _start(
        "at_deserved: counts tasks that are not preemptible",
        "plus(minus(queue.firm, mine), ask)",
        "plus(minus(queue.used, mine), ask)",
    ),
    _start("limits: of requested resources only", "queue.limit, of=ask)", "queue.limit)"),
    _start("exceeds_limit and exceeds_deserved", "    if asked > bound:\n", "    if False:\n"),
    _queues(
        "over-quota off",
        "        if not quota.over_quota:\n",
        "        if False:\n",
    ),
    _queues(
        "unlimited next to 0",
        "None if quota.deserved_unlimited else quota.deserved_milli or 0",
        "quota.deserved_milli or 0",
    ),
    _queues(
        "a department without a quota deserves the sum",
        "return added(queue.children) if queue.children else",
        "return NOTHING if queue.children else",
    ),
    _queues(
        "a project without a quota deserves no GPUs",
        "if queue.children else (0, None, None)",
        "if queue.children else UNLIMITED",
    ),
    _queues(
        "a project without a quota may use any CPUs",
        "if queue.children else (0, None, None)",
        "if queue.children else NOTHING",
    ),
    # Shares
    _queues("shares: limits bound requests", "within(total, self.limit)", "total"),
    _queues(
        "shares: weights",
        "        weight = quota.over_quota_weight if quota is not None else 1\n",
        "        weight = 1\n",
    ),
    _queues("shares: by weight", "    if by_weight:\n", "    if False:\n"),
    _queues("shares: in proportion to what is deserved", "    if by_weight:\n", "    if True:\n"),
    _queues(
        "shares: equal if nothing is deserved",
        "    if not by_weight and any(equal):\n",
        "    if False:\n",
    ),
    _queues("shares: weights are of GPUs", "(weight, 1, 1)", "(weight, weight, weight)"),
    _division(
        "deserved first",
        "min(total if queue.deserved is None else queue.deserved, queue.wish)",
        "min(0, queue.wish)",
    ),
    _division(
        "no more than requested",
        "min(total if queue.deserved is None else queue.deserved, queue.wish)",
        "total if queue.deserved is None else queue.deserved",
    ),
    _division(
        "the rank",
        "        ranks.setdefault(queue.rank, []).append(queue)\n",
        "        ranks.setdefault(0, []).append(queue)\n",
    ),
    _division("higher rank first", "sorted(ranks, reverse=True)", "sorted(ranks)"),
    _division(
        "the weight",
        "offered = Fraction(give * weight, weights)",
        "offered = Fraction(give, len(unmet))",
    ),
    _division(
        "weight 0 gets nothing",
        "        if not weight or not rest:\n            continue\n",
        "        if not rest:\n            continue\n"
        "        if not weight:\n            dealt[queue.name] += rest\n"
        "            return 0, False\n",
    ),
    _division("past use", "    if not usage_weight:\n", "    if True:\n"),
    _policy(
        "shares: usage_weight_permille",
        "usage_weight=Fraction(options.usage_weight_permille, 1000)",
        "usage_weight=Fraction(1)",
    ),
    Rule(
        "shares: past use decays",
        "scheduling/state/decayed_usage.py",
        "        return held + ((self.average - held) * factor >> FACTOR_BITS)",
        "        return max(self.average, held + ((self.average - held) * factor >> FACTOR_BITS))",
    ),
    _division("whole units", "part = offered // unit * unit", "part = int(offered)"),
    _division("largest remainder", "-remainders[queue.name], ", ""),
    _division("remainders go out", "part = min(unit, rest)", "part = 0"),
    _division("unused parts are shared", "again = again or wanted < offered", "pass"),
    Rule(
        "shares: impossible tasks request nothing",
        f"{QUOTA}/index.py",
        " and not never_fits(self._pool, shape)",
        "",
    ),
    Rule(
        "shares: level by level",
        f"{QUOTA}/shares.py",
        "    total = parent.fair[resource]\n",
        "    while parent.parent is not None:\n        parent = parent.parent\n"
        "    total = parent.fair[resource]\n",
    ),
    Rule(
        "shares: what a queue keeps is no more than its limit",
        f"{QUOTA}/shares.py",
        "        return most if limit is None else min(most, limit)",
        "        return most",
    ),
    # Moves
    _moves(
        "max_moves",
        "        if claim.max_moves is not None and len(needed) > claim.max_moves:\n"
        "            return None\n",
        "",
    ),
    _moves(
        "every task has a new place",
        "            elif claim.max_moves is not None:\n                return None\n",
        "",
    ),
    _moves(
        "moved tasks are not judged",
        "[victim for victim in needed if victim not in moved]",
        "list(needed)",
    ),
    _moves(
        "unnecessary victims keep running",
        "            if held.total < shape.replicas:\n                self._remove(victim)",
        "            if True:\n                self._remove(victim)",
    ),
    _consolidation(
        "moves: for preemptible tasks only (kai)",
        "    if follows_kai(view) and not shape.preemptible:\n        return False\n",
        "",
    ),
    _consolidation(
        "moves: for any task (document)",
        "    if follows_kai(view) and not shape.preemptible:\n",
        "    if not shape.preemptible:\n",
    ),
    # Actions
    _actions(
        "order of the document",
        '"document": ("allocate", "preempt", "consolidation", "reclaim")',
        '"document": ("allocate", "consolidation", "reclaim", "preempt")',
    ),
    _actions(
        "order of kai",
        '"kai": ("allocate", "consolidation", "reclaim", "preempt")',
        '"kai": ("allocate", "preempt", "consolidation", "reclaim")',
    ),
    _actions(
        "only those listed",
        "self.actions if self.actions is not None else ACTIONS[self.order]",
        "ACTIONS[self.order]",
    ),
    _policy(
        "actions: allocate",
        '    return "allocate" in options.in_order',
        "    return True",
    ),
    # GPU memory
    Rule(
        "GPU memory: the part of the node's GPUs",
        "scheduling/state/node_capacity.py",
        "return share_of(shape.gpu_memory_mib, self.gpu_memory_mib)",
        "return share_of(shape.gpu_memory_mib, 40)",
    ),
    Rule(
        "GPU memory: deserved counts the largest GPUs",
        f"{CLAIMING}/amounts.py",
        "pool.least_milli(shape) if",
        "pool.most_milli(shape) if",
    ),
    Rule(
        "GPU memory: shares count the smallest GPUs",
        f"{CLAIMING}/amounts.py",
        "pool.most_milli(shape) if",
        "pool.least_milli(shape) if",
    ),
    # Pools
    _pools(
        "idle later pool before victims",
        "        return any(other.can_start(task) for other in self._among(later))",
        "        return False",
    ),
    _pools(
        "strict",
        "        if self.planned[pool].strict_order:\n            return False\n",
        "",
    ),
    _sums(
        "is all that is guaranteed",
        "sums is None or exceeded(plus(sums.standing, more), sums.deserved) is None",
        "True",
    ),
    _sums("what exceeds it is reclaimed", "max(0, left[i] - bound)", "0"),
    _sums(
        "unlimited in one pool",
        "added(queues)",
        "(sum(queue.deserved[0] or 0 for queue in queues), None, None)",
    ),
    _start(
        "sum over pools: bounds tasks that are not preemptible",
        "        return _wait_for_sum(view, leaf, task)\n",
        "        return None\n",
    ),
    _admission(
        "pools: default list of the project", "config.default_pools or _of_cell", "_of_cell"
    ),
    _admission(
        "pools: default list of the cell",
        "config.default_pools or _of_cell(state, config) or",
        "config.default_pools or",
    ),
    _admission(
        "pools: allowed list",
        "        if config.pools and pool not in config.pools:\n"
        "            return _rejected(job_id, AdmissionCode.POOL_NOT_ALLOWED, about=pool)\n",
        "",
    ),
    _admission(
        "node types: per kind",
        "    return config.kind_node_types.get(kind, config.node_types)",
        "    return config.node_types",
    ),
    _admission(
        "node types: the job's are a subset",
        "        if allowed and node_type not in allowed:\n",
        "        if False:\n",
    ),
    _admission(
        "node types: those of the project by default",
        "node_types=spec.node_types or _node_types(spec.kind, config),",
        "node_types=spec.node_types,",
    ),
)

#: By file.
RULES: Final = tuple(sorted(_ALL, key=lambda rule: rule.file))
