"""`show`, `explain` and the REASON column: the interface's pictures from the API's answers."""

from typing import Any

import pytest

from yardmaster_cli.output.columns import reason
from yardmaster_cli.output.describe import (
    END_TEXTS,
    explain_lines,
    needs,
    numbers,
    preparing_words,
    refusal_words,
    task_lines,
)
from yardmaster_cli.output.formats import Output
from yardmaster_schemas.reasons import EndCode

NOW_MS = 1_767_263_400_000  # 2026-01-01T10:30:00Z


def out(**given: Any) -> Output:
    return Output(now_ms=lambda: NOW_MS, **given)


def task(**given: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "task_id": "9b3xd0h5t6vn.0",
        "name": "llm-sft",
        "phase": "pending",
        "attempt": 2,
        "paused": False,
        "project": "nlp",
        "department": "research",
        "priority": 42,
        "resources": {"gpus": 8, "gpu_milli": 1000, "cpu_milli": 32_000, "memory_mib": 262_144},
        "replicas_min": 2,
        "replicas_max": 2,
        "pools": ["h100", "a100"],
        "params": None,
        "wait": None,
        "stop": None,
        "end": None,
        "refusal": None,
        "checkpoint": None,
        "progress_permille": None,
        "started_at": None,
        "nodes": [],
    }
    return base | given


DIGEST = f"sha256:{7:064x}"
PREPARING = {
    "replica": 0,
    "layers": 7,
    "layers_done": 2,
    "bytes_done": 1_288_490_188,
    "bytes_total": 3_142_676_019,
    "starts_ahead": 0,
    "reported_at": "2026-01-01T09:42:00Z",
}
WAIT = {
    "code": "insufficient_free",
    "wait_class": "not_now",
    "pool": "h100",
    "numbers": {"asked_milli": 16_000, "free_milli": 3500, "short_milli": 12_500},
    "about": None,
    "since_at": "2026-01-01T09:42:00Z",
}
STOP = {
    "code": "priority",
    "rule": "worse_priority",
    "for_task": "k5w0p3xz8rta.0",
    "numbers": {"priority": 42, "for_priority": 5, "held_milli": 16_000},
    "about": None,
    "deadline_at": "2026-01-01T10:30:41Z",
    "requested_at": "2026-01-01T10:29:00Z",
}


def test_show_is_as_in_the_interface() -> None:
    attempt = {
        "attempt": 2,
        "end": "requeued",
        "nodes": ["gpu-07", "gpu-09"],
        "started_at": "2026-01-01T06:03:01Z",
        "ended_at": "2026-01-01T09:42:10Z",
        "stop": {**STOP, "code": "reclaim"},
    }
    checkpoint = {"uri": "s3://runs/9b3x", "step": 12_000, "at": "2026-01-01T09:41:03Z"}
    shown = task_lines(
        out(terminal=True, width=200), task(wait=WAIT, checkpoint=checkpoint), [attempt]
    )
    assert shown == [
        "9b3xd0h5t6vn.0 llm-sft   pending, attempt 3 next   nlp / research   priority 42",
        "Needs       2 x (8 GPU, 32 CPU, 256 GiB)   pools h100, a100",
        "Waits       insufficient_free in h100 since 09:42:00 (48m)"
        "   asked 16, free 3.5, short 12.5",
        "Checkpoint  s3://runs/9b3x, step 12000, 09:41:03",
        "ATTEMPT END      NODES         STARTED  ENDED    STOPPED BY",
        "2       requeued gpu-07,gpu-09 06:03:01 09:42:10 reclaim for k5w0p3xz8rta.0",
    ]


def test_explain_has_a_line_for_each_pool_with_its_numbers() -> None:
    pool = {"pool": "h100", "asked_milli": 16_000, "about": None, "cycle": 88_119, **WAIT}
    why = {
        "task_id": "9b3xd0h5t6vn.0",
        "phase": "pending",
        "wait_class": "not_now",
        "pools": [pool, {**pool, "pool": "a100", "wait_class": "never", "code": "exceeds_pool"}],
        "unblock": None,
        "attempt": 2,
        "start_rule": None,
        "start_numbers": {},
        "stop": None,
        "last_stop": STOP,
        "end": None,
        "refusal": None,
        "cycle": 88_121,
        "cycle_at": "2026-01-01T10:20:11Z",
    }
    assert explain_lines(out(), why, "main@d3021") == [
        "9b3xd0h5t6vn.0: pending, not now (cycle 88121, 10:20:11Z, main@d3021)",
        "POOL CODE                ASKED NUMBERS",
        "h100 insufficient_free      16 free 3.5, short 12.5 (as of cycle 88119)",
        "a100 never: exceeds_pool    16 free 3.5, short 12.5 (as of cycle 88119)",
        "Last stop   priority, rule worse_priority, for k5w0p3xz8rta.0",
        "            priority 42, for priority 5, held 16",
    ]


def test_a_stop_names_the_queue_that_lost_the_task_with_the_rule() -> None:
    stop = {**STOP, "code": "quota", "rule": "over_fair_share", "about": "nlp", "numbers": {}}
    why = {"task_id": "9b3xd0h5t6vn.0", "phase": "pending", "last_stop": stop}
    assert explain_lines(out(), why, None)[-1] == (
        "Last stop   quota, rule over_fair_share (nlp), for k5w0p3xz8rta.0"
    )


def test_the_grace_period_of_a_stop_is_shown_only_while_it_runs() -> None:
    why = {"task_id": "9b3xd0h5t6vn.0", "phase": "stopping", "stop": {**STOP, "numbers": {}}}
    assert explain_lines(out(), why, None)[-1].endswith("grace until 2026-01-01T10:30:41Z")
    shown = task_lines(out(), task(phase="stopping", stop=STOP), [])
    assert "grace until 2026-01-01T10:30:41Z" in shown[-1]


def test_an_attempt_that_its_node_took_along_was_stopped_by_the_loss() -> None:
    attempt = {
        **{"attempt": 1, "end": "node_lost", "nodes": ["n4"], "stop": None},
        **{"started_at": "2026-01-01T06:03:01Z", "ended_at": "2026-01-01T09:42:10Z"},
    }
    shown = task_lines(out(terminal=True, width=200), task(attempt=1), [attempt])
    assert shown[-1].split() == ["1", "requeued", "n4", "06:03:01", "09:42:10", "node_lost"]


@pytest.mark.parametrize(
    ("code", "numbers", "line"),
    [
        ("paused", {"since_at_ms": 0}, "Starts when someone runs: yard resume 9b3xd0h5t6vn.0"),
        ("restart_backoff", {"until_at_ms": 77_353_000, "restarts": 1}, "Retries     at 21:29:13Z"),
        (
            "start_backoff",
            {"until_at_ms": 77_353_000, "failed_starts": 1, "limit": 6},
            "Retries     at 21:29:13Z, on another node if possible",
        ),
        ("at_limit", {"limit_milli": 1}, "Starts when tasks under the same limit end"),
    ],
)
def test_explain_tells_when_a_task_can_start(code: str, numbers: dict[str, int], line: str) -> None:
    wait = {**WAIT, "pool": "h100", "asked_milli": 1000, "about": None, "cycle": 1}
    why = {
        "task_id": "9b3xd0h5t6vn.0",
        "phase": "pending",
        "pools": [{**wait, "code": code, "numbers": numbers}],
        "unblock": "tasks under the same limit end",
    }
    assert explain_lines(out(), why, None)[-1] == line


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([], None),
        (["n1"], "node n1 does not enforce fractions: tasks there may use more than theirs"),
        (
            ["n1", "n2", "n3", "n4", "n5"],
            "nodes n1, n2, n3, n4 and 1 more do not enforce fractions: "
            "tasks there may use more than theirs",
        ),
    ],
)
def test_explain_says_where_a_fraction_of_a_gpu_is_not_enforced(
    nodes: list[str], text: str | None
) -> None:
    why = {
        "task_id": "9b3xd0h5t6vn.0",
        "phase": "running",
        "nodes_without_fraction_limits": nodes,
    }
    lines = explain_lines(out(), why, None)
    assert lines[1:] == ([] if text is None else [f"Fraction    {text}"])


def test_explain_names_the_resource_that_is_short_in_its_own_unit() -> None:
    never = {"code": "exceeds_every_node", "wait_class": "never", "since_at": None, "cycle": 7}
    waits = [
        ("cpus", {"asked_cpu_milli": 1_000_000, "largest_cpu_milli": 2000}),
        ("memory", {"asked_memory_mib": 2048, "largest_memory_mib": 1536}),
        ("gpus", {"asked_gpus": 12, "largest_gpus": 4}),
    ]
    why = {
        "task_id": "9b3xd0h5t6vn.0",
        "phase": "pending",
        "pools": [
            {**never, "pool": "default", "asked_milli": 12_000, "about": about, "numbers": found}
            for about, found in waits
        ],
    }
    assert explain_lines(out(), why, None)[2:] == [
        "default never: exceeds_every_node 1000 CPUs cpus, largest 2 CPUs (as of cycle 7)",
        "default never: exceeds_every_node     2 GiB memory, largest 1536 MiB (as of cycle 7)",
        "default never: exceeds_every_node        12 gpus, largest 4 GPUs (as of cycle 7)",
    ]


def test_the_reason_column_is_short() -> None:
    assert reason(task()) is None
    assert reason(task(wait=WAIT)) == "insufficient_free"
    assert reason(task(wait={**WAIT, "wait_class": "never"})) == "never: insufficient_free"
    assert (reason(task(phase="stopping", stop=STOP)) or "").startswith("priority, ")
    end = {"outcome": "failed", "code": "exit", "exit_code": 3, "signal": None}
    assert reason(task(phase="failed", end=end)) == "exit 3"
    end = {"outcome": "failed", "code": "signal", "exit_code": None, "signal": 9}
    assert reason(task(phase="failed", end=end)) == "signal 9 (SIGKILL)"
    refused = {"code": "limit_exceeded", "numbers": {}, "about": "nlp"}
    assert reason(task(phase="rejected", refusal=refused)) == "limit_exceeded"
    lists = {"not_listed": "docker.io/evil/x", "list_owner": "project"}
    refused = {"code": "image_not_allowed", "numbers": {}, "about": "nlp", **lists}
    said = "image_not_allowed: docker.io/evil/x is not in the list of project nlp"
    assert refusal_words(refused) == said
    assert reason(task(phase="running", progress_permille=425)) is None
    end = {"outcome": "failed", "code": "restarts_exhausted", "exit_code": 3, "signal": None}
    assert reason(task(phase="failed", end=end)) == "restarts_exhausted, exit 3"


def test_needs_names_fractions_and_elastic_gangs() -> None:
    half = {"gpus": 1, "gpu_milli": 500, "cpu_milli": 0, "memory_mib": 0}
    assert needs(task(resources=half, replicas_min=1, replicas_max=1)) == "0.5 GPU"
    two = {**half, "gpus": 2}
    assert needs(task(resources=two, replicas_min=2, replicas_max=4)) == "2 to 4 x (2 x 0.5 GPU)"
    fraction = {**half, "gpu_milli": 0, "gpu_memory_mib": 20_480}
    assert needs(task(resources=fraction, replicas_min=1, replicas_max=1)) == "20 GiB of a GPU"
    fractions = {**fraction, "gpus": 2}
    assert needs(task(resources=fractions, replicas_min=1, replicas_max=1)) == "2 x 20 GiB of a GPU"
    none = {"gpus": 0, "gpu_milli": 0, "cpu_milli": 500, "memory_mib": 512}
    assert needs(task(resources=none, replicas_min=1, replicas_max=1)) == "0 GPU, 0.5 CPU, 512 MiB"


def test_needs_says_where_all_gpus_of_a_task_are_laid() -> None:
    asked = {"gpus": 16, "gpu_milli": 1000, "cpu_milli": 4000, "memory_mib": 0}
    whole = {"replicas_min": 1, "replicas_max": 1, "layout": "whole_nodes"}
    shown = needs(task(resources=asked, **whole))
    assert shown == "16 GPU on one node or on whole nodes, each with 4 CPU"
    asked = {**asked, "cpu_milli": 0}
    assert needs(task(resources=asked, **whole)) == "16 GPU on one node or on whole nodes"


def test_numbers_have_their_units() -> None:
    values = {"limit_s": 7200, "until_at_ms": NOW_MS, "victims": 2, "free_milli": 500}
    assert numbers(values) == "limit 2h, until 10:30:00Z, victims 2, free 0.5"


def test_the_end_of_a_task_that_could_not_start_says_what_to_do() -> None:
    end = {"outcome": "failed", "code": "secret_missing", "exit_code": None, "signal": None}
    shown = task_lines(out(), task(phase="failed", end=end, ended_at="2026-01-01T09:42:00Z"), [])
    at = next(n for n, line in enumerate(shown) if line.startswith("Ended"))
    assert "failed, secret_missing" in shown[at]
    assert "the node does not have the secret" in shown[at + 1]
    end_at = {**end, "cycle": 12, "ended_at": "2026-01-01T09:42:00Z"}
    why = {"task_id": "x.0", "phase": "failed", "pools": [], "end": end_at}
    lines = explain_lines(out(), why, None)
    assert lines[1].endswith("failed, secret_missing, in cycle 12 (2026-01-01T09:42:00Z)")
    assert "does not have the secret" in lines[2]


def test_the_end_of_a_task_that_exited_needs_no_more_words() -> None:
    end = {"outcome": "failed", "code": "exit", "exit_code": 3, "signal": None}
    shown = task_lines(out(), task(phase="failed", end=end, ended_at="2026-01-01T09:42:00Z"), [])
    assert shown[-1].startswith("Ended")


def test_every_text_is_of_an_end_code() -> None:
    assert {*END_TEXTS} <= {code.value for code in EndCode}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            {"asked_milli": 1000, "fair_share_milli": 9000, "used_milli": 9000},
            "its project would hold 10 GPUs, its share of default is 9 GPUs: it takes none from "
            "other projects",
        ),
        (
            {
                **{"asked_milli": 1000, "free_milli": 1000},
                **{"asked_cpu_milli": 500, "fair_share_cpu_milli": 1000, "used_cpu_milli": 1000},
            },
            "its project would hold 1.5 CPUs, its share of default is 1 CPU: it takes none from "
            "other projects",
        ),
        (
            {
                **{"asked_milli": 2000, "fair_share_milli": 4000, "used_milli": 2000},
                "others_above": 0,
            },
            "its project would hold 4 GPUs of its share of 4 GPUs of default; projects that it may "
            "take from: 0",
        ),
        ({"asked_milli": 2000, "free_milli": 1000}, None),
    ],
)
def test_explain_says_why_a_task_takes_nothing_from_other_projects(
    found: dict[str, int], text: str | None
) -> None:
    wait = {"code": "insufficient_free", "wait_class": "not_now", "since_at": None, "cycle": 7}
    why = {
        "task_id": "9b3xd0h5t6vn.0",
        "phase": "pending",
        "pools": [{**wait, "pool": "default", "asked_milli": 1, "about": "gpus", "numbers": found}],
    }
    lines = explain_lines(out(), why, None)[3:]
    assert lines == ([] if text is None else [f"Fair share  {text} (as of cycle 7)"])


@pytest.mark.parametrize(
    ("code", "about", "found", "line"),
    [
        (
            "insufficient_free",
            "cpus",
            {"asked_cpu_milli": 1000, "free_cpu_milli": 0, "short_cpu_milli": 1000},
            "default insufficient_free 1 CPU cpus, free 0 CPUs, short 1 CPU (as of cycle 7)",
        ),
        (
            "no_matching_node",
            None,
            {"nodes": 0, "left_by_pool": 0, "left_by_type": 0},
            "default never: no_matching_node     1 the pool has no nodes",
        ),
        (
            "no_matching_node",
            None,
            {"nodes": 2, "left_by_pool": 2, "left_by_type": 0},
            "default never: no_matching_node     1 nodes 2, left by type 0 (as of cycle 7)",
        ),
        (
            "exceeds_deserved",
            "text",
            {"asked_milli": 3000, "deserved_milli": 2000},
            "default never: exceeds_deserved     1 text deserved 2 (as of cycle 7)",
        ),
    ],
)
def test_explain_says_what_a_pool_lacks_in_words_that_can_be_read(
    code: str, about: str | None, found: dict[str, int], line: str
) -> None:
    never = "not_now" if code == "insufficient_free" else "never"
    wait = {"code": code, "wait_class": never, "pool": "default", "cycle": 7, "numbers": found}
    pools = [{**wait, "about": about, "asked_milli": 1000}]
    why = {"task_id": "x.0", "phase": "pending", "pools": pools}
    assert explain_lines(out(), why, None)[2] == line


def test_a_pull_is_shown_in_percent_with_its_layers_and_bytes() -> None:
    text = "pulling image, 40 % (2 of 7 layers, 1.2 of 2.9 GiB)"
    assert preparing_words(PREPARING) == text
    started = task(phase="starting", preparing=PREPARING, nodes=["n1"])
    assert f"Prepares    {text}" in "\n".join(task_lines(out(), started, []))


def test_a_pull_of_unknown_size_is_shown_by_its_layers() -> None:
    assert preparing_words(PREPARING | {"bytes_total": 0}) == "pulling image (2 of 7 layers)"


def test_a_start_that_waits_for_others_of_its_node_says_how_many() -> None:
    waits = PREPARING | {"starts_ahead": 12}
    assert preparing_words(waits) == "waiting to start, after 12 other starts on its node"


def test_show_and_explain_print_the_digest_that_all_attempts_run() -> None:
    line = f"Image       {DIGEST}"
    assert line in task_lines(out(), task(image_digest=DIGEST), [])
    why = {"task_id": "x.0", "phase": "running", "image_digest": DIGEST}
    assert line in explain_lines(out(), why, None)


def test_show_and_explain_print_the_user_that_the_job_names() -> None:
    line, named = "Runs as     1500:100", {"run_as": {"uid": 1500, "gid": 100}}
    assert line in task_lines(out(), task(**named), [])
    assert line in explain_lines(out(), {"task_id": "x.0", "phase": "running"} | named, None)
