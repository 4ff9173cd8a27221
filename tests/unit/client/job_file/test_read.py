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
        "job: priority: should be less than or equal to 99",
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
    missing, binary = tmp_path / "no.yaml", tmp_path / "job.bin"
    binary.write_bytes(b"\xff\xfe")
    assert problems(missing) == [f"{missing}: No such file or directory"]
    assert problems(binary) == [f"{binary}: not UTF-8 text"]


def test_values_that_are_no_json_and_endless_nesting_are_refused() -> None:
    assert "not a number, text, list or mapping" in problems({**JOB, "name": object()})[0]
    endless: dict[str, Any] = {}
    endless["labels"] = endless
    assert "nested too deep" in problems(endless)[0]
