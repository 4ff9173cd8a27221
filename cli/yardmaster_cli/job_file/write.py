"""Write a submitted job as a job file, which a user can edit and submit again."""

from collections.abc import Sequence
from typing import Any

from yardmaster_cli.errors import CliError, Exit
from yardmaster_cli.output.formats import Row

Document = dict[str, Any]


def job_file(job: Row, params: Sequence[Row]) -> Document:
    """The job file of a job, with the defaults of its admission.

    `params` are the search points of its tasks in the order of their index; empty without a matrix.

    Raises:
        CliError: the job was erased.
    """
    if job["run"] is None:
        raise CliError(
            f"job {job['job_id']} was erased: its command is deleted", exit_code=Exit.NOT_FOUND
        )
    spec = job["spec"] or job["asked"]
    run = job["run"]
    return _given(
        {
            "version": 1,
            "name": job["name"],
            "project": job["project"],
            "kind": spec["kind"],
            "role": spec["role"],
            "preemptible": spec["preemptible"],
            "priority": spec["priority"],
            "weight": spec["weight"],
            "max_slots": _number(spec["max_slots_milli"]),
            "pools": spec["pools"],
            "node_types": spec["node_types"],
            "avoid_nodes": spec["avoid_nodes"],
            "resources": _resources(spec["resources"]),
            "replicas": _replicas(spec),
            "tasks": _tasks(spec, params),
            "min_runtime": _seconds(spec["min_runtime_s"]),
            "runtime_estimate": _seconds(spec["runtime_estimate_s"]),
            "time_limit": _seconds(spec["time_limit_s"]),
            "max_restarts": spec["max_restarts"],
            "unschedulable": spec["unschedulable"],
            "stop": _given(
                {
                    "signal": job["stop_signal"],
                    "grace": _seconds(spec["grace_s"]),
                    "exit_zero": spec["exit_zero"],
                }
            ),
            "checkpoint": _given({"start_from": spec["checkpoint_uri"]}),
            "run": _given(run | {"run_as": spec.get("run_as")}),
            "labels": job["labels"],
        }
    )


def _given(values: Document) -> Document:
    """The values that are not None."""
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _seconds(seconds: int | None) -> str | None:
    return None if seconds is None else f"{seconds}s"


def _number(milli: int | None) -> int | float | None:
    if milli is None:
        return None
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def _resources(request: Row) -> Document:
    gpus: Any = _number(request["gpus"] * request["gpu_milli"])
    gpu_memory_mib = request.get("gpu_memory_mib")
    if gpu_memory_mib:
        gpus = request["gpus"]
    elif request["gpus"] > 1 and request["gpu_milli"] < 1000:
        gpus = {"count": request["gpus"], "fraction": request["gpu_milli"] / 1000}
    found: Document = {"gpus": gpus, "cpus": _number(request["cpu_milli"])}
    if gpu_memory_mib:
        found["gpu_memory"] = f"{gpu_memory_mib}Mi"
    if request["memory_mib"]:
        found["memory"] = f"{request['memory_mib']}Mi"
    return found


def _replicas(spec: Row) -> Any:
    if spec.get("layout") == "whole_nodes":
        return "auto"
    low, high = spec["replicas_min"], spec["replicas_max"]
    return low if low == high else {"min": low, "max": high}


def _tasks(spec: Row, params: Sequence[Row]) -> Document | None:
    found: Document = {}
    if params:
        axes: dict[str, list[Any]] = {}
        for point in params:
            for axis, value in point.items():
                known = axes.setdefault(axis, [])
                # 1 and True are equal in Python, but are different points.
                if not any(value == one and type(value) is type(one) for one in known):
                    known.append(value)
        found["matrix"] = axes
    elif spec["tasks"] > 1:
        found["count"] = spec["tasks"]
    elif spec["max_concurrent"] is None:
        return None
    else:
        found["count"] = 1
    if spec["max_concurrent"] is not None:
        found["max_concurrent"] = spec["max_concurrent"]
    return found
