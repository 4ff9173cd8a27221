"""The task's environment as a function of its assignment."""

from dataclasses import replace

import pytest

from tests.support.ledgers import assignment
from tests.support.mps import mps_limiter
from yardmaster_node_agent.agent_state import Assignment
from yardmaster_node_agent.environment import NodeFacts, task_environment
from yardmaster_node_agent.errors import RunRefused
from yardmaster_node_agent.executors.port import Paths
from yardmaster_node_agent.fraction_limits import NoLimits
from yardmaster_node_agent.settings import MPS_PIPES
from yardmaster_schemas.events.details import JobDetailedV1, Run

FACTS = NodeFacts(
    node="n1",
    agent_url="http://127.0.0.1:4000",
    devices=("GPU-a", "GPU-b", "MIG-c"),
    gpu_memory_mib=80_000,
    limiter=NoLimits(),
    passed={"PATH": "/bin", "HOME": "/root"},
)


def environment(
    given: Assignment | None = None, facts: NodeFacts = FACTS, **env: str
) -> dict[str, str]:
    given = given or assignment()
    details = JobDetailedV1(
        job_id="4kq7w2mz9c1f", salt="0" * 32, name="n", user="u", run=Run(script="true", env=env)
    )
    return task_environment(
        given,
        details,
        {},
        token="t",
        paths=Paths("/stop", "/checkpoint"),
        facts=facts,
        free_port=4711,
    )


def test_slots_are_named_as_cuda_knows_them() -> None:
    assert environment()["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment(replace(assignment(), slots=(2,)))["CUDA_VISIBLE_DEVICES"] == "MIG-c"


def test_a_job_may_override_passed_variables_and_no_variable_of_the_agent() -> None:
    env = environment(PATH="/opt/bin")
    assert (env["PATH"], env["HOME"]) == ("/opt/bin", "/root")
    with pytest.raises(RunRefused, match="PET_NNODES"):
        environment(PET_NNODES="9")
    with pytest.raises(RunRefused, match="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        environment(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=80G")


def test_python_prints_at_once_unless_the_job_decides_otherwise() -> None:
    assert environment()["PYTHONUNBUFFERED"] == "1"
    assert environment(PYTHONUNBUFFERED="")["PYTHONUNBUFFERED"] == ""


def test_a_single_replica_is_a_gang_of_one_on_a_free_port_of_its_own() -> None:
    env = environment(replace(assignment(), slots=(2,), gpu_milli=1000))
    expected = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    assert {name: env.get(name) for name in expected} == expected
    assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("1", "0")
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == "4711"
    assert (env["MASTER_ADDR"], env["PET_MASTER_ADDR"]) == ("127.0.0.1", "127.0.0.1")


def test_the_ranks_of_a_single_replica_with_several_gpus_are_left_to_torchrun() -> None:
    env = environment()
    assert (env["RANK"], env["WORLD_SIZE"]) == ("0", "1")
    assert "LOCAL_RANK" not in env


def test_a_task_knows_its_jobs_name_and_the_user_who_submitted_it() -> None:
    env = environment()
    assert (env["YARD_JOB_NAME"], env["YARD_USER"]) == ("n", "u")


def test_a_gang_meets_on_its_reserved_port() -> None:
    gang = replace(assignment(), replicas=3, master_addr="gpu-07", master_port=29_601)
    env = environment(gang)
    assert (env["MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("gpu-07", "29601")


def test_a_gang_on_nodes_of_unequal_size_has_the_processes_of_each_nodes_gpus() -> None:
    for replica, slots, local in ((0, (0, 1), "2"), (1, (2,), "1")):
        key = replace(assignment().key, replica=replica)
        laid = replace(assignment(), key=key, replicas=2, slots=slots, gpu_milli=1000)
        env = environment(laid)
        assert (env["PET_NNODES"], env["PET_NODE_RANK"]) == ("2", str(replica))
        assert (env["WORLD_SIZE"], env["YARD_REPLICAS"]) == ("2", "2")
        assert env["PET_NPROC_PER_NODE"] == local


def test_fractions_are_limited_where_an_mps_daemon_enforces_it() -> None:
    assert not [name for name in environment() if "MPS" in name]
    env = environment(facts=replace(FACTS, limiter=mps_limiter()))
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=40000M,1=40000M"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(MPS_PIPES)
    whole = environment(
        replace(assignment(), gpu_milli=1000), replace(FACTS, limiter=mps_limiter())
    )
    assert not [name for name in whole if "MPS" in name]


def test_a_fraction_by_memory_has_exactly_the_memory_that_it_requested() -> None:
    fraction = replace(assignment(), gpu_milli=260, gpu_memory_mib=20_480)
    env = environment(fraction, replace(FACTS, limiter=mps_limiter()))
    assert (env["YARD_GPU_MILLI"], env["YARD_GPU_MEMORY_MIB"]) == ("260", "20480")
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M,1=20480M"


def test_without_params_or_checkpoint_the_names_are_there_and_empty() -> None:
    env = environment(replace(assignment(), checkpoint=None, grace_s=None))
    assert env["YARD_PARAMS"] == "{}"
    assert env["YARD_CHECKPOINT_URI"] == env["YARD_CHECKPOINT_STEP"] == env["YARD_GRACE_S"] == ""
