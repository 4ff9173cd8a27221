"""The arguments of `yard simulate`: workloads, policies with options, seeds and nodes."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from yardmaster.job_file.read import where_to_look
from yardmaster.yaml_tree import nearest, scalar
from yardmaster_cli.errors import BadUsage
from yardmaster_core.scheduling.planner.placement import PLACEMENTS
from yardmaster_core.scheduling.policies import POLICIES, check
from yardmaster_schemas.events.requests import PolicyRef, PoolConfig
from yardmaster_schemas.reasons import AdmissionCode
from yardmaster_simulation.report import POLICY, SEED
from yardmaster_simulation.sources import (
    Csv,
    Movable,
    Openb,
    Philly,
    Recorded,
    TrialAndError,
    Waves,
)
from yardmaster_simulation.study import Case
from yardmaster_simulation.synthetic import DEMAND_SETS, Mix
from yardmaster_simulation.traces import Columns, Equal

WORKLOADS: Final = (
    f"{'|'.join(DEMAND_SETS)}, waves:SCALE, philly:FILE[#CLUSTER], openb:PODS,NODES, csv:FILE, "
    "log:FILE"
)
#: Options for some workloads only, the start of their error, and the workloads.
_ONLY_FOR: Final = (
    (("te_share", "load"), "--te-share and --load are", (*DEMAND_SETS, "philly", "csv")),
    (("grace",), "--grace is", tuple(DEMAND_SETS)),
    (("preemptible",), "--preemptible and --not-preemptible are", ("waves",)),
    (("since", "until"), "--from and --to are", ("philly", "csv")),
    (("columns", "where"), "--columns and --where are", ("csv",)),
    (("cell",), "--cell is", ("log",)),
)
#: Options that need another option.
_WITH: Final = {"node_repair": "node_fails", "checkpoint_cost": "checkpoint_every"}
#: The policy of the pools of the workload.
OWN: Final = "own"
MAX_SEEDS: Final = 1000
MAX_RUNS: Final = 10_000


def check_options(text: str, options: Mapping[str, Any]) -> None:
    """Check that the given options apply to the workload.

    Raises: BadUsage.
    """
    given = {name for name, value in options.items() if value not in (None, ())}
    kind = text.partition(":")[0]
    for names, begin, kinds in _ONLY_FOR:
        if given.intersection(names) and kind not in kinds:
            raise BadUsage(f"{begin} only for {', '.join(kinds)}")
    for name, other in _WITH.items():
        if name in given and other not in given:
            one, needed = (f"--{each.replace('_', '-')}" for each in (name, other))
            raise BadUsage(f"{one} needs {needed}")


def source(
    text: str,
    mix: Mix,
    columns: Columns | None,
    cell: str,
    *,
    preemptible: bool,
    since: str | None = None,
    until: str | None = None,
) -> Movable:
    """The workload of the argument.

    Raises: BadUsage.
    """
    if text in DEMAND_SETS:
        return TrialAndError(mix)
    kind, _, rest = text.partition(":")
    if not rest:
        raise BadUsage(f"unknown workload {text}", hint=f"workloads: {WORKLOADS}")
    match kind:
        case "waves":
            if not rest.isdecimal() or not 1 <= int(rest) <= 1000:
                raise BadUsage(f"{text}: the scale is a whole number from 1 to 1000")
            return Waves(int(rest), preemptible)
        case "philly":
            path, _, cluster = rest.partition("#")
            return Philly(_file(path), cluster or None, since, until)
        case "openb":
            pods, comma, nodes = rest.partition(",")
            if not comma:
                raise BadUsage(f"{text}: two files are needed, openb:PODS,NODES")
            return Openb(_file(pods), _file(nodes))
        case "csv":
            if columns is None:
                raise BadUsage(
                    f"{text}: the columns are not given",
                    hint="name them with --columns submit=COLUMN,run=COLUMN,gpus=COLUMN",
                )
            return Csv(_file(rest), replace(columns, since=since, until=until))
        case "log":
            return Recorded(_file(rest), cell)
    raise BadUsage(f"unknown workload {text}", hint=f"workloads: {WORKLOADS}")


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise BadUsage(f"{path}: there is no such file", hint=where_to_look(path))
    return path.resolve()


def columns_of(text: str | None, where: Sequence[str]) -> Columns | None:
    """The columns of `--columns` and `--where`.

    Raises: BadUsage.
    """
    if text is None:
        return None
    return Columns(
        names=dict(_pair(item, "--columns") for item in text.split(",")),
        where=dict(_pair(item, "--where") for item in where),
    )


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or not value:
        raise BadUsage(f"{option} {text}: expected KEY=VALUE")
    return key.strip(), value.strip()


def policies(texts: Sequence[str]) -> list[PolicyRef | None]:
    """The requested policies: `fitgpp:s_milli=1000|4000,p=1` stands for two; None: that of the
    workload.

    Raises: BadUsage.
    """
    found: list[PolicyRef | None] = []
    for text in texts:
        name, _, rest = text.partition(":")
        if name == OWN and not rest:
            found.append(None)
            continue
        pairs = [_pair(item, "--policy") for item in rest.split(",")] if rest else []
        values = [
            [(key.replace("-", "_"), scalar(v)) for v in value.split("|")] for key, value in pairs
        ]
        found += [
            _policy(text, PolicyRef(name=name, options=dict(options)))
            for options in itertools.product(*values)
        ]
    return found


def _policy(text: str, ref: PolicyRef) -> PolicyRef:
    names = sorted({name for name, _ in POLICIES})
    if ref.name not in names:
        like = nearest(ref.name, names)
        hint = f"did you mean {like}?" if like else f"policies: {', '.join(names)}"
        raise BadUsage(f"unknown policy {ref.name}", hint=hint)
    if check(PoolConfig(policy=ref)) not in (None, AdmissionCode.POLICY_FOR_SIMULATIONS):
        hint = "options of each policy: docs/reference/policies.md"
        raise BadUsage(
            f"--policy {text}: {ref.name} does not have these options or values", hint=hint
        )
    return ref


def placements(texts: Sequence[str]) -> list[str | None]:
    """The requested placements; None: that of the workload.

    Raises: BadUsage.
    """
    for text in texts:
        if text not in PLACEMENTS:
            raise BadUsage(f"unknown placement {text}", hint=f"placements: {', '.join(PLACEMENTS)}")
    return list(texts) or [None]


def seeds(text: str) -> list[int]:
    """`7`, `1,2,5` or `100..107`.

    Raises: BadUsage.
    """
    found: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", item.strip())
        if match is None:
            raise BadUsage(f"--seed {text}: write 7, 1,2,5 or 100..107")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MAX_SEEDS:
            raise BadUsage(f"--seed {text}: {item} is empty, or more than {MAX_SEEDS}")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def nodes(text: str | None) -> Equal | None:
    """Parse `309x8`, 309 nodes with 8 GPUs each; None: the nodes of the workload.

    Raises: BadUsage.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]?)", text)
    if match is None or int(match[2]) > 64:
        raise BadUsage(f"--nodes {text}: write NODESxGPUS, as 309x8 (1 to 64 GPUs each)")
    return Equal(int(match[1]), int(match[2]))


def cases(
    refs: Sequence[PolicyRef | None], places: Sequence[str | None], numbers: Sequence[int]
) -> list[Case]:
    """One run for each combination.

    Raises: BadUsage.
    """
    found = [
        _case(ref, place, seed) for ref, place, seed in itertools.product(refs, places, numbers)
    ]
    if len(found) > MAX_RUNS:
        raise BadUsage(f"{len(found)} runs are too many; at most {MAX_RUNS} are possible")
    if len({case.name for case in found}) < len(found):
        raise BadUsage("two of the runs are identical: leave one out")
    return found


def _case(ref: PolicyRef | None, place: str | None, seed: int) -> Case:
    labels: dict[str, str | int] = {POLICY: _label(ref)}
    if place is not None:
        labels["placement"] = place
    labels[SEED] = seed
    words = (re.sub(r"[^A-Za-z0-9_.]+", "-", str(value)) for value in labels.values())
    name = "-".join(word.strip("-") for word in words)
    return Case(name=name, labels=labels, seed=seed, policy=ref, placement=place)


def _label(ref: PolicyRef | None) -> str:
    if ref is None:
        return OWN
    options = ", ".join(f"{key}={value}" for key, value in ref.options.items())
    return f"{ref.name} ({options})" if options else ref.name
