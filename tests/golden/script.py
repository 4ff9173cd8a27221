"""The language of golden scripts: commands to a cell, and the trace of its decisions.

A script is blocks, separated by blank lines. A block is commands, a line `----` and the decisions
that followed; lines that start with `#` are comments. Commands:

    pool main preemption=no start_timeout=10     pool main node_timeout=60 fence=kill
    node n1 gpus=4 [pool= type= cpus= memory= life=]
    submit train replicas=2 gpus=3 [any field of a spec; gpus=0.5: a share; fixed: not preemptible]
    starts|ends|exits|releases|never-starts TASK [replica=] [code=] [signal=] [done]
    checkpoint TASK step=     cancel|pause|resume TASK [now]     priority|weight|max-slots JOB N
    project p [department=] limit=     department d limit=
    enroll NODE gpus=4 [pool= node_type=]     revoke NODE     erase JOB
    cordon|uncordon NODE     drain NODE within=60s     disable NODE slots=0,3 [stop=yes]
    silent NODE for=60s     leaves NODE     wait 10s     cycle     settle

A task is named by its job, and its index where the job has several: `array.3`.
"""

from collections.abc import Callable
from typing import Any

from yardmaster_core.testing import START_MS, Cell
from yardmaster_schemas.envelope import Event
from yardmaster_schemas.events import admissions as adm
from yardmaster_schemas.events import decisions as dec
from yardmaster_schemas.events import requests as req
from yardmaster_schemas.reasons import PolicyStop, Stop
from yardmaster_schemas.resources import Resources
from yardmaster_schemas.sources import next_incarnation

RULE = "----"
NOTHING = "(nothing)"
WORDS: dict[str, Any] = {"yes": True, "no": False}
SPEC = {
    "time_limit": "time_limit_s",
    "min_runtime": "min_runtime_s",
    "grace": "grace_s",
}


def run(text: str) -> tuple[str, Cell]:
    """Run a script; return it with its present traces, and the cell at its end."""
    cell = Cell()
    blocks = [_run_block(cell, block) for block in text.strip().split("\n\n")]
    return "\n\n".join(blocks) + "\n", cell


def _run_block(cell: Cell, block: str) -> str:
    commands = block.split(f"\n{RULE}")[0].splitlines()
    trace: list[str] = []
    asked = False
    for line in commands:
        if line.startswith("#") or not line.strip():
            continue
        verb, *words = line.split()
        if verb in ("cycle", "settle"):
            asked = True
            trace += [trace_line(cell, event) for event in _cycles(cell, verb)]
        else:
            _command(cell, verb, words)
    if not asked:
        return "\n".join(commands)
    return "\n".join([*commands, RULE, *(trace or [NOTHING])])


def _cycles(cell: Cell, verb: str) -> list[Event]:
    silent: dict[str, int] = cell.__dict__.setdefault("silent", {})
    heard = {name: cell.now_ms - for_ms for name, for_ms in silent.items()}
    silent.clear()
    decided = cell.cycle(silent=heard)
    assert not cell.refused, f"the cell did not believe {cell.refused}"
    return decided + cell.run_until_idle() if verb == "settle" else decided


def _command(cell: Cell, verb: str, words: list[str]) -> None:
    plain = [word for word in words if "=" not in word]
    named = {key.replace("-", "_"): _value(value) for key, value in _pairs(words)}
    handler = COMMANDS[verb]
    handler(cell, *plain, **named)


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return [
        (key, value) for word in words if "=" in word for key, _, value in [word.partition("=")]
    ]


def _value(text: str) -> Any:
    if text in WORDS:
        return WORDS[text]
    for convert in (int, float):
        try:
            return convert(text.removesuffix("s") if text[:-1].isdigit() else text)
        except ValueError:
            continue
    return tuple(text.split(",")) if "," in text else text


def _milli(gpus: float) -> int:
    return round(gpus * 1000)


def _task(name: str) -> tuple[str, int]:
    job, _, index = name.partition(".")
    return job, int(index or 0)


def _pool(cell: Cell, name: str, **options: Any) -> None:
    own = {f"{k}_s" if k.endswith("_timeout") else k: v for k, v in options.items()}
    if "fence" in own:
        own["fence"] = req.Fence(own["fence"])
    cell.pool(name, **own)


def _node(cell: Cell, name: str, gpus: int = 8, **offer: Any) -> None:
    words = {"type": "node_type", "cpus": "cpu_milli", "memory": "memory_mib"}
    fields = {words.get(key, key): value for key, value in offer.items()}
    if "cpu_milli" in fields:
        fields["cpu_milli"] = _milli(fields["cpu_milli"])
    life = fields.pop("life", 1)
    incarnation = f"{1:012x}"
    for _ in range(1, life):
        incarnation = next_incarnation(incarnation)
    cell.node(name, gpus=gpus, incarnation=incarnation, **fields)


def _submit(cell: Cell, name: str, *flags: str, **spec: Any) -> None:
    gpus = spec.pop("gpus", 1)
    whole = gpus == int(gpus)
    spec["resources"] = Resources(
        gpus=int(gpus) if whole else 1,
        gpu_milli=(1000 if gpus else 0) if whole else _milli(gpus),
        cpu_milli=_milli(spec.pop("cpus", 0)),
        memory_mib=spec.pop("memory", 0),
    )
    for word, field in SPEC.items():
        if word in spec:
            spec[field] = spec.pop(word)
    if "max_slots" in spec:
        spec["max_slots_milli"] = _milli(spec.pop("max_slots"))
    if "layout" in spec:
        spec["layout"] = req.Layout(spec["layout"])
    for several in ("pools", "node_types", "avoid_nodes"):
        if isinstance(spec.get(several), str):
            spec[several] = (spec[several],)
    if "unschedulable" in spec:
        spec["unschedulable"] = req.Unschedulable(spec["unschedulable"])
    cell.submit(name, preemptible="fixed" not in flags, **spec)


def _claims(method: str) -> Callable[..., None]:
    def command(cell: Cell, task: str, *flags: str, **how: Any) -> None:
        if "code" in how:
            how["exit_code"] = how.pop("code")
        if "image" in how:
            how["image"] = f"sha256:{how['image']:064x}"
        if "done" in flags:
            how["done"] = True
        name, index = _task(task)
        getattr(cell, method)(name, index, **how)

    return command


def _never_starts(cell: Cell, task: str, replica: int | None = None) -> None:
    name, index = _task(task)
    run_ = cell.task(name, index).run
    assert run_ is not None
    for one in range(len(run_.placements)) if replica is None else [replica]:
        cell.never_starts(name, index, one)


def _checkpoint(cell: Cell, task: str, step: int) -> None:
    name, index = _task(task)
    cell.checkpoints(name, step, index)


def _verdict(method: str) -> Callable[..., None]:
    def command(cell: Cell, task: str, *flags: str) -> None:
        name, _, index = task.partition(".")
        how = {"immediate": True} if "now" in flags else {}
        getattr(cell, method)(name, int(index) if index else None, **how)

    return command


def _project(cell: Cell, name: str, department: str = "d", limit: float | None = None) -> None:
    milli = None if limit is None else _milli(limit)
    cell.entitle(name, department=department, limit_milli=milli)


def _disable(cell: Cell, node: str, slots: Any = (), stop: bool = False) -> None:
    several = slots if isinstance(slots, tuple) else (slots,)
    cell.disable(node, *(int(slot) for slot in several), stop=stop)


def _silent(cell: Cell, node: str, **how: int) -> None:
    cell.__dict__.setdefault("silent", {})[node] = how["for"] * 1000


def _wait(cell: Cell, time: str) -> None:
    cell.now_ms += int(float(time.removesuffix("s")) * 1000)


COMMANDS: dict[str, Callable[..., None]] = {
    "pool": _pool,
    "node": _node,
    "submit": _submit,
    "starts": _claims("starts"),
    "ends": _claims("ends"),
    "exits": _claims("exits"),
    "releases": _claims("releases"),
    "never-starts": _never_starts,
    "checkpoint": _checkpoint,
    "cancel": _verdict("cancel"),
    "pause": _verdict("pause"),
    "resume": _verdict("resume"),
    "priority": lambda cell, job, to: cell.set_priority(job, int(to)),
    "weight": lambda cell, job, to: cell.set_weight(job, int(to)),
    "max-slots": lambda cell, job, to: cell.set_max_slots(job, int(to)),
    "project": _project,
    "department": lambda cell, name, limit: cell.entitle_department(name, main=_milli(limit)),
    "disable": _disable,
    "cordon": lambda cell, node: cell.cordon(node),
    "uncordon": lambda cell, node: cell.uncordon(node),
    "drain": lambda cell, node, within: cell.drain(node, within_s=within),
    "enroll": lambda cell, node, **bounds: cell.enroll(node, **bounds),
    "revoke": lambda cell, node: cell.revoke(node),
    "erase": lambda cell, job: cell.erase(job),
    "leaves": lambda cell, node: cell.leaves(node),
    "silent": _silent,
    "wait": _wait,
}


# The trace


def trace_line(cell: Cell, event: Event) -> str:
    """Render a decision as one line of the trace."""
    words = [event.TYPE]
    match event:
        case dec.NodeSilenceObservedV1():
            words += [event.node, f"heard={_moment(event.last_heard_at_ms)}"]
        case dec.NodeLostV1():
            words += [event.node, event.cause]
            words += [_name(cell, closed.task_id, closed.replica) for closed in event.closed]
        case dec.SlotsAllocatedV1():
            words += [_name(cell, event.task_id), *_attempt(event.attempt), *_pool_word(event.pool)]
            words += [f"{p.node}:{','.join(map(str, p.slots))}" for p in event.placements]
            words += [f"share={p.gpu_milli / 1000:g}" for p in event.placements[:1] if _shares(p)]
            words += [f"port={event.master_port}"] if event.master_port else []
            words += [f"step={event.checkpoint.step}"] if event.checkpoint else []
            words += [f"image={int(event.image[7:], 16)}"] if event.image else []
            words += [event.start.rule]
        case dec.TaskUnschedulableV1():
            words += [_name(cell, event.task_id), *_pool_word(event.pool), event.wait.code]
            words += _numbers(event.wait.numbers)
            about = event.wait.about
            words += [f"about={_name(cell, about)}"] if about and about != "gpus" else []
        case dec.SlotsReservedV1():
            words += [_name(cell, event.task_id), *_pool_word(event.pool)]
            words += [f"{p.node}:{','.join(map(str, p.slots))}" for p in event.placements]
            words += [f"victims={event.victims}"]
        case dec.ReservationDroppedV1():
            words += [_name(cell, event.task_id), str(event.code)]
        case dec.ClaimantsRankedV1():
            words += [
                f"{_name(cell, each.claimant)}={':'.join(map(str, each.rank[:1])) or 'none'}"
                for each in event.ranks
            ]
        case dec.SharesDividedV1():
            words += [
                f"{each.name}={each.fair_share.gpu_milli / 1000:g}:{each.held.gpu_milli / 1000:g}"
                for each in event.queues
            ]
        case dec.PreemptionRequestedV1() | dec.StopRequestedV1():
            words += [_name(cell, event.task_id), *_stop(cell, event.stop)]
            words += [f"grace={event.grace_s}s"]
        case dec.StopOverdueV1():
            words += [_name(cell, event.task_id)]
        case dec.FailedStartsExpiredV1():
            words += [_name(cell, event.task_id)]
        case dec.AllocationRevokedV1():
            words += [_name(cell, event.task_id), *_stop(cell, event.stop)]
        case dec.TaskRequeuedV1():
            words += [_name(cell, event.task_id), event.code]
            words += [f"restarts={event.restarts}"] if event.restarts else []
            words += [f"until={_moment(event.not_before_ms)}"] if event.not_before_ms else []
        case dec.TaskEndedV1():
            words += [_name(cell, event.task_id), event.outcome, event.code]
            words += [f"code={event.exit_code}"] if event.exit_code is not None else []
            words += [f"signal={event.signal}"] if event.signal is not None else []
    return " ".join(str(word) for word in words)


def _name(cell: Cell, task_id: str, replica: int | None = None) -> str:
    job, _, index = task_id.partition(".")
    admitted = [e for e in cell.history if isinstance(e, adm.TaskAdmittedV1) and e.job_id == job]
    if not index or not admitted:
        return task_id
    name = job.rstrip("0")
    if admitted[0].spec.tasks > 1:
        name += f".{index}"
    return f"{name}/{replica}" if replica and replica is not None else name


def _attempt(number: int) -> list[str]:
    return [f"attempt={number}"] if number > 1 else []


def _pool_word(pool: str) -> list[str]:
    return [f"pool={pool}"] if pool != "main" else []


def _shares(placement: dec.Placement) -> bool:
    return 0 < placement.gpu_milli < 1000


def _stop(cell: Cell, stop: Stop | PolicyStop) -> list[str]:
    words: list[str] = [stop.code]
    words += [f"for={_name(cell, stop.for_task)}"] if stop.for_task else []
    words += [stop.rule] if stop.rule else []
    words += [f"about={stop.about}"] if stop.about else []
    return words + _numbers(stop.numbers)


def _numbers(numbers: dict[str, int]) -> list[str]:
    words = []
    for key, number in numbers.items():
        if key.endswith("_at_ms"):
            words.append(f"{key.removesuffix('_at_ms')}={_moment(number)}")
        elif key.endswith("_milli"):
            words.append(f"{key.removesuffix('_milli')}={number / 1000:g}")
        else:
            words.append(f"{key}={number}")
    return words


def _moment(at_ms: int) -> str:
    return f"{(at_ms - START_MS) / 1000:+g}s"
