"""The text of one task or job that `yard show` and `yard explain` print."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from yardmaster.control_characters import plain
from yardmaster_cli.output.cells import (
    NOTHING,
    clock_time,
    gpus,
    mebibytes,
    span,
)
from yardmaster_cli.output.columns import ended, wait_words
from yardmaster_cli.output.exits import killed_after_grace
from yardmaster_cli.output.formats import LABEL_WIDTH, Output, Row
from yardmaster_cli.times import parse_time
from yardmaster_schemas.counts import count_of

#: The texts of wait classes.
_CLASS_WORDS: Final = {"never": "never", "held": "held", "not_now": "not now"}
#: Explanations of end codes, with what to do.
END_TEXTS: Final = {
    "start_failed": "too many starts failed in a row; yard logs shows the reason of each",
    "no_executor": "run.image needs a node with a container engine that its agent can use",
    "secret_missing": "the node does not have the secret; yard logs names it",
    "details_missing": "the command to run was erased or cannot be read",
    "directory_missing": "run.working_dir is not a directory on the node",
    "context_missing": "the uploaded folder cannot be used; yard logs says why",
    "reserved_variable": "run.env sets a variable that the agent sets; yard logs names it",
    "image_missing": "the registry has no such image; yard explain has its words",
    "image_refused": "the registry refuses the image, or its name is not valid; yard explain has "
    "its words",
    "commit_missing": "there is no such commit or repository; yard explain has the words of git",
    "commit_refused": "the git server refuses the node, or asks for a login; yard explain has "
    "the words of git",
    "commit_unusable": "the commit has files that no working folder may have; yard explain says "
    "which",
    "image_changed": "a node ran another image than it was given; check its agent and engine",
    "decision_too_large": "its allocation exceeds the size of a record; request fewer replicas",
}


def _labelled(label: str, text: str) -> str:
    return f"{label.ljust(LABEL_WIDTH)}{text}"


def numbers(values: Mapping[str, int], *, without: Sequence[str] = ()) -> str:
    """The numbers of a reason as text: `free 1, short 3`."""
    parts = []
    for key, value in values.items():
        if key in without:
            continue
        if key.endswith("_cpu_milli"):
            parts.append(f"{_words(key, '_cpu_milli')} {count_of(gpus(value), 'CPU')}")
        elif key.endswith("_memory_mib"):
            parts.append(f"{_words(key, '_memory_mib')} {mebibytes(value)}")
        elif key.endswith("_gpus"):
            parts.append(f"{_words(key, '_gpus')} {count_of(value, 'GPU')}")
        elif key.endswith("_milli"):
            parts.append(f"{_words(key, '_milli')} {gpus(value)}")
        elif key.endswith("_at_ms"):
            parts.append(f"{_words(key, '_at_ms')} {_utc(value)}")
        elif key.endswith("_s"):
            parts.append(f"{_words(key, '_s')} {span(value)}")
        else:
            parts.append(f"{_words(key, '')} {value}")
    return ", ".join(parts)


def _words(key: str, unit: str) -> str:
    return key.removesuffix(unit).replace("_", " ")


def _utc(at_ms: int) -> str:
    seconds = at_ms // 1000 % 86_400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"


def needs(task: Row) -> str:
    """The resources that a task's replicas request: `2 x (8 GPU, 32 CPU, 256 GiB)`."""
    request = task["resources"]
    if request.get("gpu_memory_mib"):
        count = f"{request['gpus']} x " if request["gpus"] > 1 else ""
        parts = [f"{count}{mebibytes(request['gpu_memory_mib'])} of a GPU"]
    elif request["gpus"] > 1 and request["gpu_milli"] < 1000:
        parts = [f"{request['gpus']} x {gpus(request['gpu_milli'])} GPU"]
    else:
        parts = [f"{gpus(request['gpus'] * request['gpu_milli'])} GPU"]
    if request.get("cpu_milli"):
        parts.append(f"{gpus(request['cpu_milli'])} CPU")
    if request.get("memory_mib"):
        parts.append(mebibytes(request["memory_mib"]))
    low, high = task["replicas_min"], task["replicas_max"]
    if task.get("layout") == "whole_nodes":
        each = f", each with {', '.join(parts[1:])}" if parts[1:] else ""
        return f"{parts[0]} on one node or on whole nodes{each}"
    if high == 1:
        return ", ".join(parts)
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"{count} x ({', '.join(parts)})"


def task_lines(out: Output, task: Row, attempts: Sequence[Row]) -> list[str]:
    """The lines of `yard show TASK`."""
    lines = [_title(task)]
    pools = ", ".join(task["pools"]) or NOTHING
    avoided = f"   not on {', '.join(task['avoid_nodes'])}" if task.get("avoid_nodes") else ""
    lines.append(_labelled("Needs", f"{needs(task)}   pools {pools}{avoided}"))
    if task.get("params"):
        point = ", ".join(f"{key}={value}" for key, value in task["params"].items())
        lines.append(_labelled("Params", plain(point)))
    if task["phase"] in ("running", "starting", "stopping"):
        lines.append(
            _labelled("Runs", f"on {', '.join(task['nodes'])} since {_at(out, task['started_at'])}")
        )
    if task.get("preparing"):
        lines.append(_labelled("Prepares", preparing_words(task["preparing"])))
    lines += _run_lines(task)
    if task.get("wait"):
        lines.append(_labelled("Waits", _waits(out, task["wait"])))
    if task.get("reserved"):
        lines.append(_labelled("Reserved", reserved_words(out, task["reserved"])))
    if task["phase"] == "stopping" and task.get("stop"):
        lines.append(_labelled("Stops", stop_words(out, task["stop"])))
    if task.get("end"):
        at = _at(out, task.get("ended_at"))
        lines.append(_labelled("Ended", f"{_outcome(task['end'])}, {at}"))
        lines += _end_text(task["end"])
        last = max(attempts, key=lambda attempt: attempt["attempt"], default=None)
        if last is not None and (killed := killed_after_grace(last)) is not None:
            lines.append(_labelled("", killed))
    if task.get("refusal"):
        lines.append(_labelled("Refused", refusal_words(task["refusal"])))
    if task.get("checkpoint"):
        kept = task["checkpoint"]
        lines.append(
            _labelled("Checkpoint", f"{kept['uri']}, step {kept['step']}, {_at(out, kept['at'])}")
        )
    if attempts:
        lines += attempts_table(out, attempts, task["phase"])
    return lines


def _run_lines(task: Row) -> list[str]:
    """The lines with what all attempts of a task run: the digest of the image, and the user."""
    digest = task.get("image_digest")
    return [*([_labelled("Image", digest)] if digest else []), *_user_lines(task)]


def _user_lines(shown: Row) -> list[str]:
    user = shown.get("run_as")
    return [_labelled("Runs as", f"{user['uid']}:{user['gid']}")] if user else []


def preparing_words(preparing: Row) -> str:
    """How far the start of a task is: `pulling image, 41 % (2 of 7 layers, 1.2 of 2.9 GiB)`."""
    if ahead := preparing["starts_ahead"]:
        return f"waiting to start, after {count_of(ahead, 'other start')} on its node"
    done, total = preparing["bytes_done"], preparing["bytes_total"]
    layers = f"{preparing['layers_done']} of {count_of(preparing['layers'], 'layer')}"
    if not total:
        return f"pulling image ({layers})"
    unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
    amounts = f"{done / unit:.1f} of {total / unit:.1f} {name}"
    return f"pulling image, {done * 100 // total} % ({layers}, {amounts})"


def _title(task: Row) -> str:
    attempt = task["attempt"]
    phase = task["phase"]
    if phase in ("submitted", "pending"):
        phase += f", attempt {attempt + 1} next" if attempt else ""
    elif attempt:
        phase += f", attempt {attempt}"
    if task.get("paused"):
        phase += ", paused"
    department = task.get("department")
    place = f"{task['project']} / {department}" if department else task["project"]
    parts = [f"{task['task_id']} {plain(task['name'])}", phase, place]
    if task.get("priority") is not None:
        parts.append(f"priority {task['priority']}")
    return "   ".join(parts)


def _at(out: Output, at: str | None) -> str:
    if at is None:
        return NOTHING
    return clock_time(at) if out.terminal else at


def _waits(out: Output, wait: Row) -> str:
    text = wait_words(wait)
    if wait.get("pool"):
        text += f" in {wait['pool']}"
    since = wait.get("since_at")
    if since:
        at_ms = parse_time(since)
        age = "" if at_ms is None else f" ({span((out.now_ms() - at_ms) / 1000)})"
        text += f" since {_at(out, since)}{age}"
    shown = _recorded(wait)
    return f"{text}   {shown}" if shown else text


def _recorded(wait: Row, *, without: Sequence[str] = ()) -> str:
    """The numbers of a wait, and the cycle that recorded them."""
    shown = numbers(wait.get("numbers") or {}, without=without)
    if shown and wait.get("cycle") is not None:
        shown += f" (as of cycle {wait['cycle']})"
    return shown


#: The resources that a wait can be about. Any other subject is a task, project or department.
_RESOURCES: Final = ("gpus", "cpus", "memory", "gpu_memory", "gpuless")
#: The numbers of a wait that state the request of the task.
_REQUEST_NUMBERS: Final = (
    "asked_gpus",
    "asked_cpu_milli",
    "asked_memory_mib",
    "asked_milli",
    "asked",
)


def _request(wait: Row) -> str:
    """The request of a task for the resource that it waits for: `16`, `1000 CPUs`."""
    found = {key: wait["numbers"][key] for key in _REQUEST_NUMBERS[1:3] if key in wait["numbers"]}
    return numbers(found).replace("asked ", "") if found else gpus(wait["asked_milli"])


def stop_words(out: Output, stop: Row, *, over: bool = False) -> str:
    """The origin, rule and deadline of a stop: `quota, rule R (nlp), for ID, grace until 12:31:00`.

    `over`: the task has stopped, so no grace period runs.
    """
    text = str(stop["code"])
    if stop.get("rule"):
        text += f", rule {stop['rule']}"
    if stop.get("about"):
        text += f" ({stop['about']})"
    if stop.get("for_task"):
        text += f", for {stop['for_task']}"
    if stop.get("overdue_at") and not over:
        text += f", overdue since {_at(out, stop['overdue_at'])}"
    elif stop.get("deadline_at") and not over:
        text += f", grace until {_at(out, stop['deadline_at'])}"
    return text


#: The most nodes of a reservation that one line names.
_MAX_NODES: Final = 4


def reserved_words(out: Output, reserved: Row) -> str:
    """The slots that are reserved for a task: `slots 3 and 4 of gpu-07, until 12:31`."""
    parts = [_slots_of(one) for one in reserved["slots"][:_MAX_NODES]]
    more = len(reserved["slots"]) - _MAX_NODES
    text = "; ".join(parts) + (f"; and of {count_of(more, 'more node')}" if more > 0 else "")
    until = reserved.get("until_at")
    return f"{text}, until {_at(out, until)}" if until else text


def _slots_of(one: Row) -> str:
    slots = [str(slot) for slot in one["slots"]]
    if not slots:
        return f"a place on {one['node']}"
    listed = slots[0] if len(slots) == 1 else f"{', '.join(slots[:-1])} and {slots[-1]}"
    return f"{'slot' if len(slots) == 1 else 'slots'} {listed} of {one['node']}"


def refusal_words(refusal: Row) -> str:
    """The text of a refusal: `limit_exceeded nlp: limit 8, asked 16`."""
    text = str(refusal["code"])
    if refusal.get("not_listed"):
        owner = f"{refusal['list_owner']} {refusal['about']}"
        return f"{text}: {refusal['not_listed']} is not in the list of {owner}"
    if refusal.get("about"):
        text += f" {refusal['about']}"
    shown = numbers(refusal.get("numbers") or {})
    return f"{text}: {shown}" if shown else text


#: Ends of attempts that no stop was requested for, and that are not the task's own.
_OF_NODE: Final = ("node_lost", "engine_restarted")


def attempts_table(out: Output, attempts: Sequence[Row], phase: str) -> list[str]:
    """A line for each attempt, the newest first; `phase` is that of the task."""
    newest = max(one["attempt"] for one in attempts)
    rows: list[list[Any]] = []
    for one in sorted(attempts, key=lambda row: -row["attempt"]):
        stop = one.get("stop")
        by = NOTHING
        if stop:
            by = f"{stop['code']} for {stop['for_task']}" if stop.get("for_task") else stop["code"]
        elif one.get("end") in _OF_NODE:
            by = one["end"]
        rows.append(
            [
                one["attempt"],
                _attempt_end(one, over=one["attempt"] < newest or phase == "pending"),
                ",".join(one["nodes"]),
                _at(out, one.get("started_at")),
                _at(out, one.get("ended_at")),
                by,
            ]
        )
    return out.table(["ATTEMPT", "END", "NODES", "STARTED", "ENDED", "STOPPED BY"], rows)


def _attempt_end(attempt: Row, *, over: bool) -> str:
    """The end of an attempt; if a stopped attempt is over and the task is not, it was requeued."""
    if attempt.get("end") is None:
        return "running" if attempt.get("started_at") else "starting"
    stopped = attempt.get("stop") or attempt["end"] in _OF_NODE
    return "requeued" if over and stopped else str(attempt["end"])


def job_lines(out: Output, job: Row, task_table: Sequence[str]) -> list[str]:
    """The lines of `yard show JOB` for a job with several tasks, which `task_table` lists."""
    department = job.get("department")
    place = f"{job['project']} / {department}" if department else job["project"]
    phases = ", ".join(f"{count} {phase}" for phase, count in job["phases"].items() if count)
    parts = [
        f"{job['job_id']} {plain(job['name'])}",
        f"{count_of(job['tasks'], 'task')}: {phases}",
        place,
    ]
    if job.get("priority") is not None:
        parts.append(f"priority {job['priority']}")
    lines = ["   ".join(parts)]
    spec = job.get("spec") or job["asked"]
    shape = {
        "resources": spec["resources"],
        "replicas_min": spec["replicas_min"],
        "replicas_max": spec["replicas_max"],
        "layout": spec.get("layout"),
    }
    pools = ", ".join(spec.get("pools") or ()) or NOTHING
    text = f"{needs(shape)} each   pools {pools}"
    if spec.get("max_concurrent"):
        text += f"   at most {spec['max_concurrent']} at once"
    lines.append(_labelled("Needs", text))
    lines += _user_lines(spec)
    if job.get("refusal"):
        lines.append(_labelled("Refused", refusal_words(job["refusal"])))
    return [*lines, *task_table]


def explain_lines(out: Output, why: Row, position: str | None) -> list[str]:
    """The lines of `yard explain TASK`."""
    lines = [_explain_title(why, position)]
    pools = why.get("pools") or []
    if pools:
        rows = [
            [
                wait["pool"],
                wait_words(wait),
                _request(wait),
                _pool_numbers(wait),
            ]
            for wait in pools
        ]
        lines += out.table(["POOL", "CODE", "ASKED", "NUMBERS"], rows, right="ASKED")
        lines += [line for wait in pools if (line := _share_line(wait))]
    if why.get("preparing"):
        lines.append(_labelled("Prepares", preparing_words(why["preparing"])))
    lines += _run_lines(why)
    if why.get("reserved"):
        lines.append(_labelled("Waits for", reserved_words(out, why["reserved"])))
    if why.get("unblock"):
        lines.append(_unblock_line(why))
    if why.get("start_rule") and why["phase"] in ("starting", "running", "stopping"):
        shown = numbers(why.get("start_numbers") or {})
        lines.append(
            _labelled("Started", f"rule {why['start_rule']}{': ' + shown if shown else ''}")
        )
    if why.get("nodes_without_fraction_limits"):
        lines.append(_labelled("Fraction", _unlimited_words(why["nodes_without_fraction_limits"])))
    if why.get("stop"):
        lines += _stop_lines(out, "Stop", why["stop"])
    elif why.get("last_stop"):
        lines += _stop_lines(out, "Last stop", why["last_stop"], over=True)
    if why.get("last_drop"):
        lines += _drop_lines(out, why["last_drop"])
    if why.get("end"):
        lines.append(_labelled("End", _end_words(why["end"])))
        lines += _end_text(why["end"])
    if why.get("refusal"):
        lines.append(_labelled("Refused", refusal_words(why["refusal"])))
    return lines


#: The suffix of each amount's name in a share, and its unit.
_SHARED: Final = (("_milli", "GPU"), ("_cpu_milli", "CPU"), ("_memory_mib", ""))


def _share_line(wait: Row) -> str | None:
    """The line that says why a task takes no slots from other projects, or None."""
    if wait["code"] not in ("insufficient_free", "fragmented"):
        return None
    found = wait.get("numbers") or {}
    for unit, name in _SHARED:
        keys = [f"{key}{unit}" for key in ("asked", "used", "fair_share")]
        if keys[2] not in found or keys[0] not in found:
            continue
        asked, used, share = (found[key] for key in keys)

        def amount(value: int, name: str = name) -> str:
            return count_of(gpus(value), name) if name else mebibytes(value)

        pool = wait["pool"]
        if used + asked > share:
            text = (
                f"its project would hold {amount(used + asked)}, its share of {pool} is "
                f"{amount(share)}: it takes none from other projects"
            )
        else:
            others = found.get("others_above", 0)
            text = (
                f"its project would hold {amount(used + asked)} of its share of {amount(share)} of "
                f"{pool}; projects that it may take from: {others}"
            )
        # The numbers may have changed since a cycle recorded them, so the text names this cycle.
        cycle = wait.get("cycle")
        return _labelled("Fair share", text if cycle is None else f"{text} (as of cycle {cycle})")
    return None


def _unlimited_words(nodes: Sequence[str]) -> str:
    """The sentence about nodes that do not limit tasks to their fractions of GPUs."""
    named = ", ".join(nodes[:_MAX_NODES])
    more = len(nodes) - _MAX_NODES
    if more > 0:
        named += f" and {more} more"
    if len(nodes) == 1:
        return f"node {named} does not enforce fractions: tasks there may use more than theirs"
    return f"nodes {named} do not enforce fractions: tasks there may use more than theirs"


def _unblock_line(why: Row) -> str:
    """The line that says when the task can start: a time, a command, or a condition."""
    pools = why.get("pools") or []
    codes = {wait["code"] for wait in pools}
    if codes == {"paused"}:
        return _labelled("Starts when", f"someone runs: yard resume {why['task_id']}")
    retries = [wait["numbers"].get("until_at_ms") for wait in pools]
    if codes and codes <= {"restart_backoff", "start_backoff"} and None not in retries:
        other_node = ", on another node if possible" if codes == {"start_backoff"} else ""
        return _labelled("Retries", f"at {_utc(min(retries))}{other_node}")
    return _labelled("Starts when", plain(why["unblock"]))


def _pool_numbers(wait: Row) -> str:
    """The subject of a wait and its numbers: `nlp used 24, fair share 32`, `gpus, free 0`.

    The numbers that state the request are left out, because they have a column of their own.
    """
    if wait["code"] == "no_matching_node" and not wait["numbers"].get("nodes"):
        return "the pool has no nodes"
    shown = _recorded(wait, without=(*_REQUEST_NUMBERS, "left_by_pool"))
    about = wait.get("about")
    between = ", " if about in _RESOURCES else " "
    return between.join(part for part in (about, shown) if part) or NOTHING


def _end_words(end: Row) -> str:
    """The end of a task and its time: `failed, exit 3, in cycle 12 (2026-01-31T12:00:00Z)`."""
    return f"{_outcome(end)}, in cycle {end['cycle']} ({end['ended_at']})"


def _outcome(end: Row) -> str:
    """The phase and code of an end: `failed, exit 3`; only the phase if the code repeats it."""
    outcome, code = str(end["outcome"]), ended(end)
    return outcome if code == outcome else f"{outcome}, {code}"


def _end_text(end: Row) -> list[str]:
    """The explanation of an end code, if the code needs one."""
    text = END_TEXTS.get(end["code"])
    return [] if text is None else [_labelled("", text)]


def _explain_title(why: Row, position: str | None) -> str:
    text = f"{why['task_id']}: {why['phase']}"
    if why.get("wait_class"):
        text += f", {_CLASS_WORDS.get(why['wait_class'], why['wait_class'])}"
    known = []
    if why.get("cycle") is not None:
        known.append(f"cycle {why['cycle']}")
    if why.get("cycle_at"):
        known.append(f"{clock_time(why['cycle_at'])}Z")
    if position:
        known.append(position)
    return f"{text} ({', '.join(known)})" if known else text


def _drop_lines(out: Output, drop: Row) -> list[str]:
    """The lines about reserved slots that a task lost: `passed at 12:31:00, for ID`."""
    text = f"{drop['code']} at {_at(out, drop['dropped_at'])}"
    if drop.get("about"):
        text += f" ({drop['about']})"
    if drop.get("for_task"):
        text += f", for {drop['for_task']}"
    lines = [_labelled("Lost slots", text)]
    both = {k: v for k, v in (drop.get("numbers") or {}).items() if not k.endswith("_at_ms")}
    if both:
        lines.append(_labelled("", numbers(both)))
    return lines


def _stop_lines(out: Output, label: str, stop: Row, *, over: bool = False) -> list[str]:
    lines = [_labelled(label, stop_words(out, stop, over=over))]
    shown = numbers(stop.get("numbers") or {})
    if shown:
        lines.append(_labelled("", shown))
    return lines
