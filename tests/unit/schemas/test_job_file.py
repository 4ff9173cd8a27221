"""The job file: accepted and refused values, and their form in the log."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from yardmaster_schemas.events.details import GitCommit, StopSignal
from yardmaster_schemas.events.requests import ExitZero, Kind, Layout, SubmittedSpec, Unschedulable
from yardmaster_schemas.job_file import JobSpec, parse_job, parts_of
from yardmaster_schemas.resources import Resources

LEAST: dict[str, Any] = {"project": "nlp", "run": {"command": ["torchrun", "t.py"]}}
WHOLE = LEAST | {
    "version": 1,
    "name": "llm-sft",
    "kind": "training",
    "role": None,
    "preemptible": True,
    "priority": 42,
    "weight": 1,
    "max_slots": 64,
    "pools": ["h100", "a100"],
    "node_types": ["sxm"],
    "topology": None,
    "resources": {"gpus": 8, "cpus": 32, "memory": "256Gi"},
    "replicas": 2,
    "tasks": {"matrix": {"lr": [0.1, 0.01], "seed": [1, 2]}, "max_concurrent": 2},
    "min_runtime": "20m",
    "time_limit": "12h",
    "max_restarts": 0,
    "unschedulable": "wait",
    "stop": {"signal": "TERM", "grace": "2m", "exit_zero": "stopped"},
    "checkpoint": {"start_from": "s3://models/base"},
    "labels": {"team": "alignment"},
}


GIT = {"url": "https://git.example.org/team/repo", "commit": "0f" * 20}
DATA = {"source": "datasets", "target": "/data"}


def mounting(*mounts: dict[str, str]) -> dict[str, Any]:
    return {"run": {"command": ["a"], "image": "a", "mounts": list(mounts)}}


def parse(**changes: Any) -> JobSpec:
    return parse_job(json.dumps(LEAST | changes))


def refused(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        parse(**changes)
    return str(caught.value)


def test_the_example_of_the_interface_is_parsed_completely() -> None:
    spec = parse_job(json.dumps(WHOLE))
    sent = parts_of(spec).requested
    assert sent.resources == Resources(gpus=8, gpu_milli=1000, cpu_milli=32_000, memory_mib=262_144)
    assert (sent.replicas_min, sent.replicas_max, sent.tasks) == (2, 2, 4)
    assert (sent.min_runtime_s, sent.time_limit_s, sent.grace_s) == (
        1200,
        43_200,
        120,
    )
    assert (sent.max_slots_milli, sent.max_concurrent) == (64_000, 2)
    assert (sent.kind, sent.unschedulable) == (Kind.TRAINING, Unschedulable.WAIT)
    assert (sent.exit_zero, spec.stop.signal) == (ExitZero.STOPPED, StopSignal.TERM)
    assert sent.checkpoint_uri == "s3://models/base"


def test_missing_values_are_left_to_the_defaults_of_project_and_pool() -> None:
    sent = parts_of(parse()).requested
    assert (sent.preemptible, sent.priority, sent.weight, sent.grace_s) == (None,) * 4
    assert (sent.tasks, sent.replicas_min) == (1, 1)


@pytest.mark.parametrize(
    ("said", "cpu_milli"), [({}, 1000), ({"cpus": 0}, 0), ({"cpus": 2.5}, 2500)]
)
def test_a_replica_requests_one_cpu_by_default(said: dict[str, Any], cpu_milli: int) -> None:
    assert parts_of(parse()).requested.resources == Resources(cpu_milli=1000)
    sent = parts_of(parse(resources={"gpus": 1, **said}, replicas=2)).requested
    assert sent.resources == Resources(gpus=1, gpu_milli=1000, cpu_milli=cpu_milli)


@pytest.mark.parametrize("memory", ["10", 10, "1.5", 0])
def test_memory_without_a_unit_is_refused_with_a_suggestion(memory: object) -> None:
    assert f"{memory} has no unit; write {memory}Mi or {memory}Gi" in refused(
        resources={"memory": memory}
    )


def test_the_request_names_the_image_and_the_mounts_for_the_lists() -> None:
    read = {"source": "datasets", "target": "/data"}
    write = {"source": "scratch", "target": "/a", "read_only": False}
    again = {"source": "scratch", "target": "/b"}
    run = {"command": ["a"], "image": "team/train:1.4", "mounts": [again, write, read]}
    found = parts_of(parse(run=run)).requested
    assert (found.image, found.mounts) == ("docker.io/team/train", ("datasets", "scratch:rw"))
    assert parts_of(parse()).requested.image is None
    assert parts_of(parse()).requested.run_as is None
    named = run | {"run_as": {"uid": 1500, "gid": 100}}
    assert str(parts_of(parse(run=named)).requested.run_as) == "1500:100"


@pytest.mark.parametrize(
    ("gpus", "slots"),
    [
        (0, (0, 0)),
        (8, (8, 1000)),
        (2.0, (2, 1000)),
        (0.5, (1, 500)),
        (0.001, (1, 1)),
        ({"count": 2, "fraction": 0.5}, (2, 500)),
        ({"count": 1, "fraction": 1}, (1, 1000)),
    ],
)
def test_gpus_are_whole_or_equal_parts(gpus: object, slots: tuple[int, int]) -> None:
    found = parts_of(parse(resources={"gpus": gpus})).requested.resources
    assert (found.gpus, found.gpu_milli) == slots


@pytest.mark.parametrize(
    ("gpus", "word"),
    [
        (1.5, "count: 2"),
        (0.0005, "multiple of 0.001"),
        ({"count": 1, "memory": "20Gi"}, "their memory as gpu_memory: 20Gi"),
        ({"count": 0, "fraction": 0.5}, "greater than or equal to 1"),
        ({"count": 1}, "fraction"),
        (-1, "greater than or equal to 0"),
        (2000, "1024"),
        ("1", "valid integer"),
        (True, "valid integer"),
        (None, "valid"),
    ],
)
def test_ambiguous_numbers_of_gpus_are_refused(gpus: object, word: str) -> None:
    assert word in refused(resources={"gpus": gpus})


@pytest.mark.parametrize(
    ("resources", "slots"),
    [
        ({"gpu_memory": "20Gi"}, (1, 20_480)),
        ({"gpus": 1, "gpu_memory": "512Mi"}, (1, 512)),
        ({"gpus": 2.0, "gpu_memory": "1Gi"}, (2, 1024)),
    ],
)
def test_gpus_are_shared_by_their_memory(resources: dict[str, Any], slots: tuple[int, int]) -> None:
    found = parts_of(parse(resources=resources)).requested.resources
    assert (found.gpus, found.gpu_memory_mib, found.gpu_milli) == (*slots, 0)


@pytest.mark.parametrize(
    ("resources", "word"),
    [
        ({"gpus": 0.5, "gpu_memory": "20Gi"}, "gpus must be a whole number with gpu_memory"),
        ({"gpus": {"count": 2, "fraction": 0.5}, "gpu_memory": "1Gi"}, "must be a whole number"),
        ({"gpus": 0, "gpu_memory": "20Gi"}, "gpus must be at least 1 with gpu_memory"),
        ({"gpu_memory": "0Gi"}, "gpu_memory must be at least 1Mi"),
        ({"gpu_memory": "20"}, "20 has no unit; write 20Mi or 20Gi"),
    ],
)
def test_memory_of_gpus_that_contradicts_the_rest_is_refused(
    resources: dict[str, Any], word: str
) -> None:
    assert word in refused(resources=resources)


def test_whole_nodes_are_not_requested_by_memory_of_gpus() -> None:
    assert "only for whole GPUs" in refused(replicas="auto", resources={"gpu_memory": "20Gi"})


def test_a_search_has_a_task_for_every_point_the_last_axis_turning_fastest() -> None:
    spec = parse(tasks={"matrix": {"lr": [0.1, 0.01], "seed": [1, 2]}})
    assert parts_of(spec).params == (
        {"lr": 0.1, "seed": 1},
        {"lr": 0.1, "seed": 2},
        {"lr": 0.01, "seed": 1},
        {"lr": 0.01, "seed": 2},
    )
    assert parts_of(parse(tasks={"count": 3})).params == ()


def test_an_elastic_gang_is_refused_because_it_would_never_grow() -> None:
    sent = parts_of(parse(replicas={"min": 2, "max": 2})).requested
    assert (sent.replicas_min, sent.replicas_max) == (2, 2)
    assert "not supported yet; give one number" in refused(replicas={"min": 2, "max": 4})
    assert "greater than max" in refused(replicas={"min": 4, "max": 2})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"topology": {"required": "rack"}}, "topology is not yet supported"),
        ({"tasks": {}}, "either count or matrix"),
        ({"tasks": {"count": 1, "matrix": {"a": [1]}}}, "either count or matrix"),
        ({"tasks": {"matrix": {"a": []}}}, "at least 1"),
        ({"tasks": {"matrix": {"a": [1] * 200, "b": [1] * 51}}}, "10200 tasks"),
        ({"run": {}}, "either command or script"),
        ({"run": {"command": []}}, "at least 1"),
        ({"run": {"script": ""}}, "at least 1"),
        ({"run": {"command": ["a"], "env": {"YARD_X": "1"}}}, "YARD_X is reserved"),
        ({"run": {"command": ["a"], "secrets": {"CUDA_X": "a/b"}}}, "CUDA_X is reserved"),
        (
            {"project": "nlp", "run": {"command": ["a"], "secrets": {"X": "vision/hf"}}},
            "run.secrets.X names a secret of another project",
        ),
        ({"project": "nlp", "run": {"command": ["a"], "secrets": {"X": "hf"}}}, "PROJECT/NAME"),
        ({"run": {"command": ["a\x00b"]}}, "zero byte"),
        ({"run": {"command": ["a"], "pull": "always"}}, "give image, or remove pull"),
        ({"run": {"command": ["a"], "image": "a", "pull": "daily"}}, "missing"),
        ({"run": {"command": ["a"], "artifacts": ["*"]}}, "add context"),
        ({"run": {"command": ["a"], "context": ".", "git": GIT}}, "either context or git"),
        ({"run": {"command": ["a"], "working_dir": "/a", "git": GIT}}, "working_dir"),
        ({"run": {"command": ["a"], "shm": "1Gi"}}, "give image, or remove shm"),
        ({"run": {"command": ["a"], "mounts": [DATA]}}, "give image, or remove mounts"),
        ({"run": {"command": ["a"], "image": "a b"}}, "'a b' is not the name of an image"),
        ({"run": {"command": ["a"], "image": "0f" * 32}}, "is the id of an image"),
        ({"run": {"command": ["a"], "run_as": {"uid": 0, "gid": 1}}}, "greater than or equal to 1"),
        ({"run": {"command": ["a"], "run_as": {"uid": 1, "gid": 0}}}, "greater than or equal to 1"),
        ({"run": {"command": ["a"], "run_as": {"uid": 2_100_000_000, "gid": 1}}}, "2099999999"),
        ({"run": {"command": ["a"], "run_as": {"uid": "ada", "gid": 1}}}, "valid integer"),
        (mounting(DATA, DATA), "two mounts have the same target"),
        (mounting(DATA | {"target": "/proc/1"}), "a folder that each container has already"),
        (mounting(DATA | {"target": "/yard"}), "a folder that each container has already"),
        (mounting(DATA | {"target": "/a/../b"}), "pattern"),
        (mounting(DATA | {"target": "data"}), "pattern"),
        (mounting(DATA | {"target": "/"}), "pattern"),
        ({"run": {"command": ["a"], "env": {"1X": "1"}}}, "pattern"),
        ({"name": "two\nlines"}, "pattern"),
        ({"pools": ["a", "a"]}, "named twice"),
        ({"node_types": ["a", "a"]}, "named twice"),
        ({"role": "shell"}, "kind interactive"),
        ({"priority": 0}, "greater than or equal to 1"),
        ({"max_slots": 0}, "greater than 0"),
        ({"time_limit": 5}, "valid string"),
        ({"time_limit": "11y"}, "not a duration; write 90s"),
        ({"time_limit": "4000d"}, "ten years"),
        ({"resources": {"memory": "256GB"}}, "not an amount of memory; write 512Mi"),
        ({"checkpoint": {"start_from": "s3://user:pw@host?x"}}, "pattern"),
        ({"version": 2}, "1"),
        ({"surprise": 1}, "not permitted"),
    ],
)
def test_contradictory_job_files_are_refused(changes: dict[str, Any], word: str) -> None:
    assert word in refused(**changes)


def test_an_error_quotes_no_input() -> None:
    assert "hush" not in refused(priority="hush")


@pytest.mark.parametrize("reference", ["nlp/hf", "nlp/hub/token", "shared/hf"])
def test_a_job_names_secrets_of_its_project_and_shared_ones(reference: str) -> None:
    run = parts_of(parse(project="nlp", run={"command": ["a"], "secrets": {"X": reference}})).run
    assert run.secrets == {"X": reference}


def test_the_program_is_stored_as_written() -> None:
    run = parts_of(
        parse(run={"script": "echo hi", "env": {"A": "1"}, "secrets": {"B": "nlp/hf"}})
    ).run
    assert (run.script, run.command, run.env, run.secrets) == (
        "echo hi",
        (),
        {"A": "1"},
        {"B": "nlp/hf"},
    )


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ({"command": ["/usr/bin/python", "t.py"]}, "t.py"),
        ({"command": ["a/"]}, "job"),
        ({"script": "x"}, "script"),
    ],
)
def test_a_job_without_a_name_is_named_after_its_program(run: Any, name: str) -> None:
    assert parts_of(parse(run=run)).name == name
    assert parts_of(parse(name="mine")).name == "mine"


def test_replicas_auto_requests_all_gpus_of_a_task_on_whole_nodes() -> None:
    sent = parts_of(parse(replicas="auto", resources={"gpus": 16, "cpus": 4})).requested
    assert (sent.layout, sent.replicas_min, sent.replicas_max) == (
        Layout.WHOLE_NODES,
        1,
        1,
    )
    assert (sent.resources.gpus, sent.resources.cpu_milli) == (16, 4000)
    assert parts_of(parse(replicas=2)).requested.layout is Layout.REPLICAS
    assert parts_of(parse(replicas={"min": 2, "max": 2})).requested.layout is Layout.REPLICAS


@pytest.mark.parametrize("gpus", [0.5, {"count": 2, "fraction": 0.5}])
def test_replicas_auto_is_for_whole_gpus(gpus: Any) -> None:
    assert "is only for whole GPUs" in refused(replicas="auto", resources={"gpus": gpus})


def test_replicas_are_a_number_a_range_or_auto_and_no_mixture() -> None:
    assert "'auto'" in refused(replicas="whole")
    assert "valid integer" in refused(replicas={"min": "auto", "max": 4})


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas_min": 2, "replicas_max": 2},
        {"replicas_max": 4},
        {"resources": Resources(gpus=2, gpu_milli=500)},
    ],
)
def test_a_request_for_whole_nodes_has_no_number_of_replicas_and_no_fractions(spec: Any) -> None:
    with pytest.raises(ValueError, match="whole nodes"):
        SubmittedSpec(layout=Layout.WHOLE_NODES, **spec)


def test_nodes_to_avoid_are_named_once() -> None:
    assert parts_of(parse(avoid_nodes=["n1", "n2"])).requested.avoid_nodes == ("n1", "n2")
    assert "named twice" in refused(avoid_nodes=["n1", "n1"])


def test_a_runtime_estimate_is_optional() -> None:
    assert parts_of(parse(runtime_estimate="90m")).requested.runtime_estimate_s == 5400
    assert parts_of(parse()).requested.runtime_estimate_s is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_accepted_or_refused_without_another_error(body: Any) -> None:
    with contextlib.suppress(ValidationError):
        parse_job(json.dumps(body))


def test_a_commit_reaches_the_agent_with_its_artifacts() -> None:
    spec = {"project": "nlp", "run": {"command": ["a"], "artifacts": ["*"], "git": GIT}}
    run = parts_of(parse_job(json.dumps(spec))).run
    assert run.git == GitCommit(**GIT)
    assert run.context is None


def test_a_job_reads_private_commits_with_a_secret_of_its_project_or_a_shared_one() -> None:
    for secret in ("nlp/git", "shared/git"):
        run = parts_of(parse(run={"command": ["a"], "git": {**GIT, "secret": secret}})).run
        assert run.git == GitCommit(**GIT, secret=secret)
    with pytest.raises(ValidationError, match=r"run\.git\.secret names a secret of another"):
        parse(run={"command": ["a"], "git": {**GIT, "secret": "vision/git"}})
