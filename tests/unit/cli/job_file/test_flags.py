"""Job files and flags: what they mean, and what is said when they are wrong."""

from pathlib import Path
from typing import Any

import pytest

from yardmaster.errors import InputError
from yardmaster_cli.errors import BadUsage, CliError, Exit, input_error
from yardmaster_cli.job_file.flags import FLAGS, build
from yardmaster_schemas.job_file import JobSpec

PLAIN = "project: nlp\nrun: {command: [python, t.py]}\n"


def job(text: str | None = PLAIN, *, sets: tuple[str, ...] = (), **flags: Any) -> JobSpec:
    return build(text, "job.yaml", flags=flags, sets=sets)


def failure(text: str | None, *, sets: tuple[str, ...] = (), **flags: Any) -> CliError:
    """The error as `yard submit` shows it."""
    with pytest.raises(InputError) as caught:
        job(text, sets=sets, **flags)
    shown = input_error(caught.value)
    assert shown.exit_code == Exit.USAGE
    return shown


FULL = """\
version: 1
name: llm-sft
project: nlp
kind: training
role: null
preemptible: true
priority: 42
weight: 1
max_slots: 64
pools: [h100, a100]
node_types: [sxm]
resources:
  gpus: 8
  cpus: 32
  memory: 256Gi
replicas: 2
tasks:
  matrix: {lr: [0.1, 0.01], seed: [1, 2]}
  max_concurrent: 2
min_runtime: 20m
time_limit: 12h
max_restarts: 0
unschedulable: wait
stop: {signal: TERM, grace: 2m, exit_zero: stopped}
checkpoint: {start_from: "s3://models/base"}
run:
  image: team/train:1.4
  command: [torchrun, t.py]
  env: {NCCL_DEBUG: WARN}
  secrets: {HF_TOKEN: nlp/hf}
labels: {team: alignment}
"""


def test_the_job_file_of_the_interface_is_taken() -> None:
    spec = job(FULL)
    assert spec.name == "llm-sft"
    assert spec.resources.gpus == 8
    assert spec.tasks is not None
    assert spec.tasks.matrix == {"lr": [0.1, 0.01], "seed": [1, 2]}
    assert spec.run.env == {"NCCL_DEBUG": "WARN"}


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_key() -> None:
    error = failure(PLAIN + "resorces: {gpus: 2}\n")
    assert error.lines() == [
        "error: job.yaml:3: resorces: unknown key",
        "hint: did you mean resources?",
    ]


def test_an_unknown_key_inside_another_is_named_with_its_line() -> None:
    error = failure("project: nlp\nrun:\n  command: [a]\n  comand: b\n")
    assert error.message == "job.yaml:4: run.comand: unknown key"
    assert error.hint == "did you mean command?"


def test_an_unknown_key_like_no_other_gets_the_list() -> None:
    assert "known keys: " in (failure(PLAIN + "zzz: 1\n").hint or "")


def test_every_error_of_a_file_is_shown_at_once() -> None:
    shown = failure("priority: 100\nreplicas: {min: 3, max: 2}\n" + PLAIN).message
    assert "job.yaml:1: priority: must be at most 99, not 100" in shown
    assert "job.yaml:2: replicas: min is greater than max" in shown


def test_an_error_in_a_flag_names_the_flag() -> None:
    assert failure(PLAIN, gpus="1.5").message.startswith("--gpus: resources.gpus: ")


def test_an_error_in_a_set_names_it() -> None:
    assert failure(PLAIN, sets=("priority=high",)).message.startswith("--set priority: priority: ")


def test_flags_win_over_the_file_and_set_wins_over_flags() -> None:
    text = PLAIN + "priority: 50\nresources: {gpus: 1, cpus: 2}\n"
    spec = job(text, gpus="4", sets=("resources.gpus=8",))
    assert spec.priority == 50
    assert spec.resources.gpus == 8
    assert spec.resources.cpus == 2


def test_every_flag_sets_the_key_it_says() -> None:
    samples = {
        "name": "x", "project": "vision", "kind": "interactive", "role": "shell", "priority": "7",
        "weight": "2", "max_slots": "4", "pool": ("a", "b"), "node_type": ("sxm",), "gpus": "2",
        "cpus": "1.5", "memory": "2Gi", "replicas": "2:2", "tasks": "3", "max_concurrent": "2",
        "min_runtime": "1m", "time_limit": "2h", "max_restarts": "1", "unschedulable": "fail",
        "signal": "INT", "grace": "30s", "exit_zero": "finished", "start_from": "s3://b/x",
        "image": "team/train:1", "pull": "always", "working_dir": "/srv", "env": ("A=1",),
        "secret": ("T=shared/hf",),
        "label": ("team=x",), "script": "echo hi", "avoid_node": ("n1", "n2"),
        "runtime_estimate": "90m", "gpu_memory": "20Gi", "shm": "1Gi", "run_as": "1500:100",
        "mount": ("datasets:/data", "scratch:/scratch:rw"),
    }  # fmt: skip
    # Keys that exclude another one: tasks and matrix, image and context; tested below.
    left_out = {"matrix", "context_folder"}
    assert {flag.parameter for flag in FLAGS} == samples.keys() | left_out
    spec = build(None, "command line", flags=samples)
    assert spec.replicas.min == 2  # type: ignore[union-attr]
    assert spec.tasks is not None
    assert spec.tasks.count == 3
    assert spec.stop.grace == "30s"
    assert spec.runtime_estimate == "90m"
    assert spec.resources.gpu_memory == "20Gi"
    assert spec.run.env == {"A": "1"}
    assert spec.pools == ["a", "b"]
    assert spec.avoid_nodes == ["n1", "n2"]
    assert [(each.source, each.target, each.read_only) for each in spec.run.mounts] == [
        ("datasets", "/data", True),
        ("scratch", "/scratch", False),
    ]
    assert spec.run.run_as is not None
    assert (spec.run.run_as.uid, spec.run.run_as.gid) == (1500, 100)


@pytest.mark.parametrize("text", ["datasets", ":/data", "datasets:/data:x", "datasets:/data:rw:z"])
def test_a_mount_that_is_not_a_name_and_a_path_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="expected SOURCE:TARGET or SOURCE:TARGET:rw"):
        build(None, "command line", flags={"mount": (text,)})


@pytest.mark.parametrize("text", ["ada", "1500", "1500:", ":1500", "ada:users", "1:2:3", "-1:5"])
def test_a_user_without_two_numbers_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="expected UID:GID, two numbers"):
        build(None, "command line", flags={"run_as": text})


def test_memory_without_a_unit_is_refused_in_file_and_flag() -> None:
    in_file = failure(PLAIN + "resources: {memory: 10}\n").message
    assert in_file.endswith("resources.memory: 10 has no unit; write 10Mi or 10Gi")
    in_flag = failure(PLAIN, memory="10").message
    assert in_flag.endswith("memory: 10 has no unit; write 10Mi or 10Gi")


def test_an_elastic_gang_is_refused_in_file_and_flag() -> None:
    for found in (failure(PLAIN + "replicas: {min: 2, max: 4}\n"), failure(PLAIN, replicas="2:4")):
        assert "elastic gangs (max above min) are not supported yet" in found.message


def test_replicas_auto_is_a_word_of_file_and_flag() -> None:
    assert job(PLAIN + "replicas: auto\nresources: {gpus: 16}\n").replicas == "auto"
    assert job(PLAIN, replicas="auto", gpus="16").replicas == "auto"
    assert (
        "job.yaml:3: replicas: expected a number of replicas, or auto, not whole"
        in failure(PLAIN + "replicas: whole\n").message
    )


def test_a_matrix_on_the_command_line_takes_numbers_as_people_write_them() -> None:
    spec = job(matrix=("lr=[1e-3,0.1]", "seed=[1,2]"))
    assert spec.tasks is not None
    assert spec.tasks.matrix == {"lr": [0.001, 0.1], "seed": [1, 2]}


def test_numbers_in_a_command_are_words() -> None:
    spec = job("project: nlp\nrun: {command: [python, t.py, 3, 0.5], env: {N: 4}}\n")
    assert spec.run.command == ["python", "t.py", "3", "0.5"]
    assert spec.run.env == {"N": "4"}


def test_a_key_that_is_given_twice_is_refused() -> None:
    assert failure("project: a\nproject: b\n").message == "job.yaml:2: the key project occurs twice"


def test_a_file_that_is_no_yaml_names_the_line() -> None:
    assert failure("project: nlp\nrun: {command: [\n").message.startswith("job.yaml:")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    assert "mapping" in failure(text).message


def test_aliases_that_multiply_are_stopped() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "too large" in failure("\n".join(levels)).message


def test_a_file_that_contains_itself_is_stopped() -> None:
    assert "contains itself" in failure("labels: &a {x: *a}\n").message


def test_a_tag_that_would_run_code_is_refused() -> None:
    error = failure("name: !!python/object/apply:os.system [echo]\n" + PLAIN)
    assert "job.yaml:1" in error.message


def test_the_project_of_the_settings_fills_in() -> None:
    spec = build(None, "command line", flags={}, command=["true"], project="default")
    assert spec.project == "default"
    assert spec.run.command == ["true"]


def test_without_anything_the_hints_say_what_is_missing() -> None:
    shown = failure("name: x\n").message
    assert "name one with -p" in shown
    assert "give a command after --" in shown


@pytest.mark.parametrize("item", ["priority", "=1", "a..b=1"])
def test_a_set_that_is_no_assignment_is_refused(item: str) -> None:
    assert "KEY=VALUE" in failure(PLAIN, sets=(item,)).message


def test_a_context_is_relative_to_the_file_or_for_the_flag_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job/src").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    text = "project: nlp\nrun: {command: [a], context: src, working_dir: data}\n"
    folders = {"folder": "/current", "file_folder": "/of/the/file", "context_base": "job"}
    spec = build(text, "job.yaml", flags={}, **folders)
    assert spec.run.context == "job/src"
    assert spec.run.working_dir == "data", "a folder in the context"
    spec = build(text, "job.yaml", flags={"context_folder": "other"}, **folders)
    assert spec.run.context == "other"
    spec = build(PLAIN, "job.yaml", flags={"context_folder": "."}, **folders)
    assert (spec.run.context, spec.run.working_dir) == (".", None)
    placed = PLAIN.replace("run: {", "run: {working_dir: src, ")
    assert build(placed, "job.yaml", flags={}, **folders).run.working_dir == "/of/the/file/src"
    flags = {"context_folder": "."}
    assert build(placed, "job.yaml", flags=flags, **folders).run.working_dir == "src"
    flags = {"working_dir": "lib"}
    assert build(placed, "job.yaml", flags=flags, **folders).run.working_dir == "lib"


def test_a_context_that_is_no_folder_is_named_with_what_users_may_have_meant(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    shown = failure(PLAIN, context_folder=str(tmp_path / "file"))
    assert shown.message == f"--context: run.context: {tmp_path}/file is not a folder"
    flags = {"context_folder": "prod"}
    with pytest.raises(InputError) as caught:
        build(PLAIN, "job.yaml", flags=flags, server_contexts=("dev", "prod"))
    assert "prod does not exist" in caught.value.problem
    assert caught.value.hint == "for the server prod, write: yard --context prod submit ..."
    text = PLAIN.replace("run: {", "run: {context: [a], ")
    assert "expected the path of a folder" in failure(text).message


WORDS = [
    ("time_limit: soon", "time_limit: 'soon' is not a duration; write 90s, 20m, 12h,"),
    ("time_limit: 12", "time_limit: expected a duration such as 90s, 2h or 1d, not 12"),
    ("stop: {grace: x}", "stop.grace: 'x' is not a duration; write 90s, 20m, 12h,"),
    ("resources: {memory: lots}", "resources.memory: 'lots' is not an amount of memory; write"),
    ("pools: [A B]", "pools.0: expected a name of lower-case letters"),
    ("pools: h100", "pools: expected a list such as [a, b], not h100"),
    ("labels: {team: [x]}", "labels.team: expected one line of text"),
    ("labels: {Team: x}", "labels.Team: expected a name of lower-case letters"),
    ("preemptible: maybe", "preemptible: expected true or false, not maybe"),
    ("max_restarts: 1.5", "max_restarts: expected a whole number, not 1.5"),
    ("resources: 3", "resources: expected a mapping of keys to values, not 3"),
    ("checkpoint: {start_from: here}", "checkpoint.start_from: expected a URI such as s3://"),
]


@pytest.mark.parametrize(("line", "wanted"), WORDS)
def test_what_a_key_takes_is_said_in_words(line: str, wanted: str) -> None:
    shown = failure(f"{PLAIN}{line}\n").message
    assert shown.startswith(f"job.yaml:3: {wanted}")
    assert "pattern" not in shown
    assert "^" not in shown


def test_a_command_that_is_one_string_must_be_a_list() -> None:
    shown = failure('project: nlp\nrun: {command: "echo hi"}\n').message
    assert "job.yaml:2: run.command: expected a list such as [python3, train.py]" in shown
    assert "run.script" in shown
    assert (
        "run.env.1A: expected a name of letters"
        in failure("project: nlp\nrun: {command: [a], env: {1A: x}}\n").message
    )


def test_labels_take_numbers_as_variables_do() -> None:
    made = job(PLAIN.replace("}", ", env: {SEED: 7, LR: 0.5}}") + "labels: {year: 2026, lr: 0.5}\n")
    assert made.labels == {"year": "2026", "lr": "0.5"}
    assert made.run.env == {"SEED": "7", "LR": "0.5"}
    for text in (
        "project: nlp\nrun: {command: [a]}\nlabels: {on: true}\n",
        "project: nlp\nrun: {command: [a], env: {ON: true}}\n",
    ):
        assert "text" in failure(text).message


@pytest.mark.parametrize("gpus", ["abc", "[1]", "true"])
def test_a_wrong_number_of_gpus_is_one_error(gpus: str) -> None:
    shown = failure(PLAIN, gpus=gpus).message
    assert shown.startswith("--gpus: resources.gpus: expected a number of GPUs such as 8 or 0.5")
    assert "error:" not in shown
