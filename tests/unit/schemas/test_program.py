"""The default name of a job."""

import shlex

import pytest

from yardmaster_schemas.job_file import parse_job, parts_of
from yardmaster_schemas.program import program_of

NAMES = [
    ("python3 examples/train_gang.py --steps 3", "train_gang.py"),
    ("/usr/bin/python3.11 -u -X dev train.py -m x", "train.py"),
    ("python3 -m pkg.mod --lr 1", "pkg.mod"),
    ("python3 -W error -m pkg.mod", "pkg.mod"),
    ("python3 -c 'print(1)' train.py", "python3"),
    ("python3 -", "python3"),
    ("python3", "python3"),
    ("torchrun --nproc-per-node 2 --rdzv-endpoint=h:1 src/t.py --out x.py", "t.py"),
    ("torchrun --nnodes 2 -m pkg.train", "pkg.train"),
    ("torchrun --help", "torchrun"),
    ("python -m torch.distributed.run --nproc-per-node=2 t.py", "t.py"),
    ("accelerate launch --config_file a.yaml t.py", "t.py"),
    ("uv run t.py", "t.py"),
    ("sh -c 'python3 train.py'", "sh"),
    ("sh -ec 'python3 train.py'", "sh"),
    ("bash -e scripts/run.sh a b", "run.sh"),
    ("bash -o pipefail run.sh", "run.sh"),
    ("env A=1 -u B python3 t.py", "t.py"),
    ("env", "env"),
    ("nohup python3 t.py", "t.py"),
    ("nohup sleep 3", "nohup"),
    ("/opt/bin/sleep 3", "sleep"),
    ("./train", "train"),
]


@pytest.mark.parametrize(("command", "name"), NAMES)
def test_a_job_is_named_after_the_program_that_its_command_runs(command: str, name: str) -> None:
    assert program_of(shlex.split(command)) == name


def test_a_given_name_is_used_and_a_script_has_no_name() -> None:
    named = '{"project": "p", "name": "mine", "run": {"command": ["python3", "t.py"]}}'
    assert parts_of(parse_job(named)).name == "mine"
    assert parts_of(parse_job(named.replace('"name": "mine", ', ""))).name == "t.py"
    assert parts_of(parse_job('{"project": "p", "run": {"script": "echo"}}')).name == "script"
