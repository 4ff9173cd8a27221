"""Jobs as users write them in Python: a model, a dict, a text or a file."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from yardmaster.errors import InputError
from yardmaster.job_file.read import JobSource, read_job
from yardmaster_schemas.job_file import JobSpec

JOB: Mapping[str, Any] = {
    "project": "nlp",
    "resources": {"gpus": 2},
    "run": {"command": ["python", "t.py", 3], "env": {"LR": 0.5}},
}
TEXT = "project: nlp\nresources: {gpus: 2}\nrun: {command: [python, t.py, 3], env: {LR: 0.5}}\n"
WRONG = "project: nlp\nresources: {gpu: 2}\nrun:\n  command: [a]\n  comand: b\n"


def problems(job: JobSource) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_job(job)
    return str(caught.value).splitlines()


def test_a_model_a_dict_a_text_and_a_file_are_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(TEXT)
    spec = read_job(TEXT)
    assert spec.run.command == ["python", "t.py", "3"]
    assert spec.resources.gpus == 2
    for same in (JOB, MappingProxyType(JOB), path, spec, JobSpec.model_dump_json(spec)):
        assert read_job(same) == spec
    assert JOB["run"]["env"] == {"LR": 0.5}, "the dict of the caller is not changed"


def test_all_problems_of_a_file_have_its_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(WRONG)
    assert problems(path) == [
        f"{path}:2: resources.gpu: unknown key (did you mean gpus?)",
        f"{path}:5: run.comand: unknown key (did you mean command?)",
    ]


def test_all_problems_of_a_dict_have_their_key() -> None:
    job = {"resources": {"gpu": 2}, "priority": 100, "labels": {"number": ["x"]}}
    assert problems(job) == [
        "job: project: is missing (name one in the job, in YARD_PROJECT or in your context)",
        "job: priority: must be at most 99, not 100",
        "job: resources.gpu: unknown key (did you mean gpus?)",
        "job: run: is missing (give run.command or run.script)",
        "job: labels.number: expected one line of text",
    ]


def test_the_project_of_the_client_is_that_of_a_job_without_one() -> None:
    job = {"run": {"command": ["true"]}}
    assert read_job(job, project="vision").project == "vision"
    assert read_job({**job, "project": "nlp"}, project="vision").project == "nlp"


def test_a_relative_working_directory_is_relative_to_the_file_or_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs" / "job.yaml"
    path.parent.mkdir()
    text = "project: nlp\nrun: {command: [a], working_dir: ../src}\n"
    path.write_text(text)
    job: dict[str, Any] = {"project": "nlp", "run": {"command": ["a"], "working_dir": "../src"}}
    assert read_job(path, folder="/srv/ann").run.working_dir == str(tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    relative = Path("jobs/job.yaml")
    assert read_job(relative, folder=str(tmp_path)).run.working_dir == str(tmp_path / "src")
    for same in (job, text, JobSpec.model_validate(job)):
        assert read_job(same, folder="/srv/ann").run.working_dir == "/srv/src"
        assert read_job(same).run.working_dir == "../src", "the nodes do not see these files"
    in_image = {**job, "run": {**job["run"], "image": "team/train:1"}}
    assert read_job(in_image, folder="/srv/ann").run.working_dir == "../src"
    absolute = {**job, "run": {**job["run"], "working_dir": "/data"}}
    assert read_job(absolute, folder="/srv/ann").run.working_dir == "/data"


def test_a_text_that_names_a_file_says_how_to_pass_one() -> None:
    assert problems("job.yaml") == [
        "job: expected a mapping of keys to values "
        "(a text is a job file itself; to read a file, pass its pathlib.Path)"
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, latin = tmp_path / "no.yaml", tmp_path / "job.yaml"
    latin.write_bytes("# r\xe9seau\nname: \xe9tude\n".replace("r\xe9", "re").encode("latin-1"))
    assert problems(missing) == [f"{missing}: there is no such file (files are read in {tmp_path})"]
    assert problems(latin) == [f"{latin}:2: not UTF-8 text (byte 0xe9) (save the file as UTF-8)"]
    assert problems(tmp_path) == [f"{tmp_path} is a folder (name a file in it)"]
    windows = tmp_path / "windows.yaml"
    windows.write_bytes(b"project: p\r\nrun:\r\n  script: |\r\n    a\r\n    b\r\n")
    assert read_job(windows).run.script == "a\nb\n"


def test_values_that_are_no_json_and_endless_nesting_are_refused() -> None:
    assert "not a number, text, list or mapping" in problems({**JOB, "name": object()})[0]
    endless: dict[str, Any] = {}
    endless["labels"] = endless
    assert "nested too deep" in problems(endless)[0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tasks: {matrix: {}}", "tasks.matrix: is empty"),
        ("tasks: {matrix: {lr: []}}", "tasks.matrix.lr: is empty"),
        (f"labels: {{team: {'x' * 257}}}", "labels.team: is longer than 256 characters"),
        (f"name: {'x' * 129}", "name: is longer than 128 characters"),
        (f"pools: [{', '.join(f'p{i}' for i in range(65))}]", "pools: has more than 64 entries"),
        ("priority: 0", "priority: must be at least 1, not 0"),
        ("kind: batch", "kind: must be 'training', 'interactive' or 'inference', not batch"),
        (
            "tasks: {matrix: {lr: [[1, 2]]}}",
            "tasks.matrix.lr.0: expected a number, true, false, null or text of at most 256 "
            "characters",
        ),
        (
            "tasks: {matrix: {seed: [1e400]}}",
            "tasks.matrix.seed.0: expected a number, true, false, null or text of at most 256 "
            "characters, not inf",
        ),
        (
            "resources: {cpus: .nan}",
            "resources.cpus: expected a number of CPUs such as 4 or 0.5, not nan",
        ),
        (
            "resources: {gpus: .inf}",
            "resources.gpus: expected a number of GPUs such as 8 or 0.5, not inf",
        ),
        (
            "resources: {gpus: {count: 1, fraction: 2}}",
            "resources.gpus.fraction: must be at most 1, not 2",
        ),
    ],
)
def test_one_mistake_is_one_line_in_our_own_words(line: str, problem: str) -> None:
    text = f"project: nlp\n{line}\nrun: {{command: [a]}}\n"
    assert problems(text) == [f"job:2: {problem}"]


def test_anchors_and_merge_keys_are_resolved_and_what_a_mapping_says_itself_counts() -> None:
    spec = read_job(
        "x-large: &large {gpus: 8, cpus: 32}\n"
        "x-env: &env {A: a, B: b}\n"
        "project: nlp\n"
        "resources:\n  cpus: 16\n  <<: *large\n"
        "run:\n  command: [a]\n  env: {<<: [*env, {A: other, C: c}], B: own}\n"
    )
    assert (spec.resources.gpus, spec.resources.cpus) == (8, 16)
    assert spec.run.env == {"A": "a", "B": "own", "C": "c"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("labels: &all {inner: *all}", "job:2: the value contains itself by an alias"),
        ("labels: &all {<<: *all}", "job:2: the value contains itself by an alias"),
        (
            "x-a: &a {<<: {<<: {<<: {<<: {<<: {<<: {<<: {<<: {<<: {A: a}}}}}}}}}}\n"
            "labels: {<<: {<<: {<<: {<<: {<<: {<<: {<<: {<<: {<<: *a}}}}}}}}}",
            "job:2: the document is nested too deep",
        ),
        ("labels: " + "[" * 2_000, "job: the document is nested too deep"),
        ("name: 2024-13-45", "job:2: 2024-13-45: month must be in 1..12 (put a text in quotes)"),
        ("labels: {<<: 3}", "job:2: << takes a mapping, or a list of mappings"),
        ("labels: {x-team: a}\nx_team: b", "job:3: x_team: unknown key"),
    ],
)
def test_wrong_aliases_and_merge_keys_are_named(line: str, problem: str) -> None:
    (found,) = problems(f"project: nlp\n{line}\nrun: {{command: [a]}}\n")
    assert found.startswith(problem)


def test_the_error_of_a_merged_value_names_the_line_of_the_value() -> None:
    text = "x-few: &few {gpus: -1}\nproject: nlp\nrun: {command: [a]}\nresources:\n  <<: *few\n"
    assert problems(text) == ["job:1: resources.gpus: must be at least 0, not -1"]
