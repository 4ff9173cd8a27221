"""The daily commands of users and operators: the real command on a real embedded process."""

import csv
import json
import signal
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.yard_cli import Dev, next_line, running_dev, until

pytestmark = pytest.mark.xdist_group("cli")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("cli"), nodes=2, slots=2) as dev:
        yield dev


def test_a_job_is_submitted_listed_shown_read_and_waited_for(dev: Dev) -> None:
    job = dev.submit("--name", "hello", "--gpus", "1", "--", "sh", "-c", "echo hi from $YARD_NODE")
    assert len(job) == 12
    dev.yard("wait", job, "--timeout", "45s")
    listed = dev.yard("ls", "-o", "csv").lines
    row = next(r for r in csv.DictReader(listed) if r["id"] == f"{job}.0")
    assert (row["name"], row["phase"], row["gpus"]) == ("hello", "succeeded", "1")
    shown = dev.yard("show", job).out
    assert f"{job}.0 hello" in shown
    assert "Needs       1 GPU" in shown
    assert "Ended       succeeded, exit 0" in shown
    assert "hi from node-" in dev.yard("logs", job).out
    assert "TaskAdmitted" in dev.yard("show", job, "--events").out
    assert "default" in dev.yard("show", job, "--spec").out


def test_the_gateway_of_yard_dev_serves_the_metrics_of_all_services(dev: Dev) -> None:
    dev.submit("--gpus", "1", "--wait", "--", "true")
    port = json.loads((dev.data / "dev.json").read_text())["port"]
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert 'yard_scheduler_gpus{cell="main",pool="default",state="free"}' in text
    assert 'yard_quota_cycles_total{cell="main"}' in text
    for node in ("node-1", "node-2"):
        assert f'yard_node_agent_incarnations_total{{node="{node}"}} 1.0' in text
    assert "yard_views_steps_total" in text
    assert "yard_gateway_http_requests_total" in text
    assert "_created" not in text


def test_usage_reports_gpu_seconds_by_project_pool_and_user(dev: Dev) -> None:
    before = _held(dev)
    dev.yard("submit", "--gpus", "1", "--wait", "--timeout", "45s", "--", "sleep", "0.3")
    assert _held(dev) >= before + 300
    assert dev.yard("usage", "--from", "-1d", "--by", "pool", "-o", "name").lines == ["default"]
    listed = dev.yard("usage", "--by", "user", "--bucket", "day", "-o", "csv").lines
    assert listed[0].split(",")[:2] == ["start", "user"]
    dev.yard("usage", "--from", "yesterday", code=2)


MONTH_AGO = datetime.now(UTC) - timedelta(days=31)


@pytest.mark.parametrize("time", ["2h", "-30d", f"{MONTH_AGO:%Y-%m-%d}"])
def test_every_time_option_accepts_the_same_formats(dev: Dev, time: str) -> None:
    job = dev.submit("--gpus", "0", "--wait", "--", "true")
    assert f"{job}.0" in dev.yard("ls", "--since", time).out
    dev.yard("usage", "--from", time)
    assert dev.yard("usage", "--from", "40d", "--to", time, "-o", "name").code == 0
    assert "LogCreated" in dev.yard("log", "dump", "--from", time).out
    assert "TaskSubmitted" not in dev.yard("log", "dump", "--to", time).out
    for words in (("replay", "at", time), ("explain", f"{job}.0", "--at", time)):
        early = dev.yard(*words, code=101)
        assert "The log starts with cycle 1 at " in early.err
        first = early.err.partition("The log starts with cycle 1 at ")[2].split(",")[0]
        assert dev.yard("replay", "at", first, "-o", "json").json["now_at"] == first


def _held(dev: Dev) -> int:
    items = json.loads(dev.yard("usage", "-o", "json").out)["items"]
    return sum(row["gpu_milli_seconds"] for row in items if row["name"] == "default")


def test_a_set_option_overrides_a_field_of_the_job_file(dev: Dev) -> None:
    text = "version: 1\nname: filed\nrun: {script: 'echo $WHO'}\n"
    (dev.folder / "job.yaml").write_text(text)
    said = dev.yard("submit", "job.yaml", "--set", "run.env.WHO=me", "--follow")
    assert said.lines[1:] == ["me"]


def test_a_job_file_is_read_from_stdin(dev: Dev) -> None:
    job = dev.yard("submit", "-", "--wait", stdin="run: {command: ['true']}\n").out.strip()
    assert dev.task(f"{job}.0")["phase"] == "succeeded"


def test_a_command_runs_in_the_folder_it_was_submitted_from(dev: Dev) -> None:
    (dev.folder / "here.txt").write_text("found\n")
    said = dev.yard("submit", "--follow", "--", "cat", "here.txt")
    assert said.lines[1:] == ["found"]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_waiting_ends_with_the_exit_code_of_the_task(dev: Dev, script: str, code: int) -> None:
    dev.yard("submit", "--wait", "--timeout", "45s", "--script", script, code=code)


def test_the_same_idempotency_key_gives_the_same_job(dev: Dev) -> None:
    key = ("--idempotency-key", "a-key-of-mine-0001")
    assert dev.submit(*key, "--", "true") == dev.submit(*key, "--", "true")
    said = dev.yard("submit", *key, "--", "false", code=103)
    assert "error:" in said.err


def test_an_array_runs_every_point_within_max_concurrent(dev: Dev) -> None:
    script = "echo $YARD_PARAMS; sleep 0.4"
    job = dev.submit(
        *("--gpus", "0", "--matrix", "lr=[0.1,0.01]", "--matrix", "seed=[1,2]"),
        *("--max-concurrent", "1", "--script", script),
    )
    dev.yard("wait", job, "--timeout", "60s")
    points = [json.loads(line.split("] ", 1)[1]) for line in dev.yard("logs", job).lines]
    assert sorted((p["lr"], p["seed"]) for p in points) == [
        (0.01, 1), (0.01, 2), (0.1, 1), (0.1, 2),
    ]  # fmt: skip
    spans = []
    for index in range(4):
        attempts = dev.yard("show", f"{job}.{index}", "-o", "json").json["attempts"]
        spans.append((attempts[0]["allocated_at"], attempts[0]["ended_at"]))
    spans.sort()
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


def test_a_gang_starts_all_its_ranks_on_two_nodes(dev: Dev) -> None:
    script = "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT on $YARD_NODE"
    job = dev.submit("--gpus", "2", "--replicas", "2", "--script", script)
    dev.yard("wait", job, "--timeout", "45s")
    lines = sorted(dev.yard("logs", job).lines)
    assert [line.split(" at ")[0] for line in lines] == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert len({line.split(" at ")[1].split(" on ")[0] for line in lines}) == 1
    assert {line.split(" on ")[1] for line in lines} == {"node-1", "node-2"}
    assert dev.yard("logs", job, "--replica", "1").lines[0].startswith("rank 1")


def test_a_running_task_is_cancelled(dev: Dev) -> None:
    job = dev.submit("--gpus", "1", "--", "sleep", "600")
    dev.reach(f"{job}.0", "running")
    dev.yard("cancel", job, "--reason", "changed my mind")
    dev.yard("wait", job, "--timeout", "45s", code=107)
    assert dev.task(f"{job}.0")["phase"] == "cancelled"


def test_a_pending_task_is_cancelled(dev: Dev) -> None:
    job = dev.submit("--gpus", "64", "--", "true")
    assert dev.task(f"{job}.0")["phase"] == "pending"
    dev.yard("cancel", job)
    dev.yard("wait", job, "--timeout", "45s", code=107)
    assert dev.task(f"{job}.0")["attempt"] == 0


def test_filters_choose_what_to_cancel_and_a_pipe_needs_yes(dev: Dev) -> None:
    job = dev.submit("--gpus", "64", "--label", "team=doomed", "--", "true")
    refused = dev.yard("cancel", "--label", "team=doomed", code=2)
    assert "--yes" in refused.err
    assert dev.yard("cancel", "--label", "team=doomed", "--yes").out.strip() == f"{job}.0"
    dev.yard("wait", job, "--timeout", "45s", code=107)


def test_a_paused_task_waits_until_it_is_resumed(dev: Dev) -> None:
    job = dev.submit("--gpus", "64", "--", "true")
    dev.yard("pause", job, "--reason", "later")
    until(lambda: "paused" in dev.yard("ls").out, "the task is paused")
    dev.yard("resume", job)
    until(lambda: not dev.task(f"{job}.0")["paused"], "the task is resumed")
    dev.yard("cancel", job)


def test_a_refusal_at_admission_is_printed_at_once(dev: Dev) -> None:
    said = dev.yard("submit", "-p", "nowhere", "--", "true", code=104)
    assert "project_unknown" in said.err
    assert "yard projects" in said.err


def test_a_job_with_unschedulable_fail_fails_when_it_can_never_fit(dev: Dev) -> None:
    dev.yard("submit", "--gpus", "64", "--unschedulable", "fail", "--wait", "--", "true", code=105)


def test_submitting_a_job_that_can_never_fit_warns_at_once(dev: Dev) -> None:
    said = dev.yard("submit", "--gpus", "12", "--", "true")
    assert "warning: it can never fit: resources.gpus: 12 per replica" in said.err
    dev.yard("cancel", said.out.strip())


def test_waiting_for_a_job_that_can_never_fit_ends_with_the_reason(dev: Dev) -> None:
    said = dev.yard("submit", "--gpus", "64", "--wait", "--", "true", code=105)
    job = said.out.strip()
    assert "exceeds_every_node" in said.err
    explained = dev.yard("explain", job).out
    assert explained.splitlines()[1].split() == ["POOL", "CODE", "ASKED", "NUMBERS"]
    assert "never: exceeds_every_node" in explained
    assert "gpus, largest 2 GPUs (as of cycle " in explained
    assert "never: exceeds_every_node" in dev.yard("ls").out
    dev.yard("cancel", job)


def test_projects_and_pools_are_created_changed_and_deleted(dev: Dev) -> None:
    dev.yard("departments", "create", "research")
    dev.yard("projects", "create", "nlp", "department=research", "weight=2", "max-slots=1")
    dev.yard("projects", "set", "nlp", "best-priority=40")
    shown = dev.yard("projects", "show", "nlp", "-o", "json").json
    assert shown["config"]["weight"] == 2
    assert shown["config"]["limit_milli"] == 1000
    dev.yard("submit", "-p", "nlp", "--priority", "5", "--", "true", code=104)
    again = dev.yard("projects", "create", "nlp", "department=research", code=103)
    assert again.err.startswith("error: project nlp already exists\nhint: change it with: ")
    refused = dev.yard("projects", "set", "nlp", "weight=x", code=2)
    assert "weight: expected a whole number, not x" in refused.err
    dev.yard("pools", "create", "spare", "option.preemption=false")
    assert dev.yard("pools", "-o", "name").lines == ["default", "spare"]
    assert "unknown key polcy" in dev.yard("pools", "set", "spare", "polcy=x", code=2).err
    refused = dev.yard("pools", "set", "spare", "policy=nonsense", code=2)
    assert "choose one of: priority (version 1), fair_share (version 1)" in refused.err
    assert "already exists" in dev.yard("pools", "create", "spare", code=103).err
    dev.yard("pools", "delete", "spare")
    dev.yard("projects", "delete", "nlp")
    dev.yard("departments", "delete", "research")
    dev.yard("projects", "show", "nlp", code=101)


def test_a_node_is_cordoned_and_uncordoned(dev: Dev) -> None:
    dev.yard("nodes", "cordon", "node-2", "--reason", "fan")
    states = {r["name"]: r for r in csv.DictReader(dev.yard("nodes", "-o", "csv").lines)}
    assert states["node-2"]["state"] == "cordoned"
    assert states["node-2"]["reason"] == "fan"
    job = dev.submit("--gpus", "2", "--", "true")
    dev.yard("wait", job, "--timeout", "45s")
    assert dev.yard("show", job, "-o", "json").json["attempts"][0]["nodes"] == ["node-1"]
    dev.yard("nodes", "uncordon", "node-2")
    dev.yard("nodes", "cordon", "node-9", code=101)


def test_a_drain_accepts_only_a_future_deadline(dev: Dev) -> None:
    dev.yard("nodes", "drain", "node-2", "--deadline", "2999-01-01")
    until(lambda: "drained" in dev.yard("nodes").out, "the node is drained")
    assert "until" not in dev.yard("nodes").out
    said = dev.yard("nodes", "drain", "node-2", "--deadline", "-2h", code=2)
    assert "is in the past" in said.err
    dev.yard("nodes", "uncordon", "node-2")


def test_a_drain_moves_tasks_off_a_node(dev: Dev) -> None:
    job = dev.submit("--gpus", "2", "--grace", "5s", "--", "sleep", "600")
    node = dev.reach(f"{job}.0", "running")["nodes"][0]
    said = dev.yard("nodes", "drain", node, "--deadline", "30s", "--wait")
    assert f"{node}: drained" in said.err
    assert dev.yard("nodes", "ls", "--state", "drained", "-o", "name").lines == [node]
    replayed = dev.yard("replay", "at", "--nodes", "-o", "json").json
    assert {one["name"]: one["state"] for one in replayed["nodes"]}[node] == "drained"
    moved = dev.reach(f"{job}.0", "running")
    assert moved["nodes"] != [node]
    assert "node_drained" in dev.yard("show", job).out
    dev.yard("nodes", "uncordon", node)
    assert dev.yard("nodes", "show", node, "-o", "json").json["state"] == "ready"
    dev.yard("cancel", job, "--now")
    dev.yard("wait", job, code=107)


def test_gpus_of_a_node_are_disabled_and_enabled(dev: Dev) -> None:
    job = dev.submit("--gpus", "2", "--avoid-node", "node-2", "--grace", "5s", "--", "sleep", "600")
    assert dev.reach(f"{job}.0", "running")["nodes"] == ["node-1"]
    dev.yard("nodes", "slots", "node-1", "--disable", "0", "--stop", "--reason", "ecc")
    waiting = dev.reach(f"{job}.0", "pending")
    assert waiting["attempt"] == 1
    until(
        lambda: (dev.task(f"{job}.0")["wait"] or {}).get("code") == "nodes_unavailable",
        "it waits for the GPU",
    )
    assert "slot_disabled" in dev.yard("show", job).out
    listed = dev.yard("nodes", "slots", "node-1", "-o", "csv").lines
    assert [row["state"] for row in csv.DictReader(listed)] == ["disabled", "enabled"]
    assert "slot 0 disabled: ecc" in dev.yard("nodes", "-o", "wide").out
    dev.yard("nodes", "slots", "node-1", "--disable", "1", "--enable", "1", code=2)
    dev.yard("nodes", "slots", "node-1", "--disable", "2", code=2)
    dev.yard("nodes", "slots", "node-1", "--enable", "0", "--stop", code=2)
    dev.yard("nodes", "slots", "node-1", "--enable", "all")
    assert dev.reach(f"{job}.0", "running")["nodes"] == ["node-1"]
    dev.yard("cancel", job, "--now")
    dev.yard("wait", job, code=107)


def test_automatic_replicas_fill_whole_nodes_and_set_the_rank_variables(dev: Dev) -> None:
    say = "echo $RANK of $WORLD_SIZE, $PET_NPROC_PER_NODE each"
    job = dev.submit("--gpus", "4", "--replicas", "auto", "--", "sh", "-c", say)
    dev.yard("wait", job, "--timeout", "45s")
    for replica in ("0", "1"):
        said = dev.yard("logs", job, "--replica", replica).out
        assert f"{replica} of 2, 2 each" in said
    assert "4 GPU on one node or on whole nodes" in dev.yard("show", job).out
    never = dev.submit("--gpus", "3", "--replicas", "auto", "--", "true")
    assert dev.yard("wait", never, code=105).err
    dev.yard("cancel", never)


def test_priority_is_changed_and_the_queue_follows(dev: Dev) -> None:
    first = dev.submit("--gpus", "64", "--priority", "50", "--", "true")
    second = dev.submit("--gpus", "64", "--priority", "60", "--", "true")
    ids = dev.yard("ls", "--queue", "default", "-o", "name").lines
    assert ids == [f"{first}.0", f"{second}.0"]
    dev.yard("set", "priority", second, "10")
    until(
        lambda: dev.yard("ls", "--queue", "default", "-o", "name").lines[0] == f"{second}.0",
        "the second job is first",
    )
    listed = json.loads(dev.yard("ls", "--queue", "default", "-o", "json").out)["items"]
    assert [(row["task_id"], row["position"]) for row in listed] == [
        (f"{second}.0", 1),
        (f"{first}.0", 2),
    ]
    dev.yard("set", "priority", second, "10", "--if-match", '"1"', code=103)
    dev.yard("cancel", first, second)


def test_ids_may_be_shortened_and_unknown_ids_are_not_found(dev: Dev) -> None:
    job = dev.submit("--", "true")
    assert dev.yard("show", job[:8], "-o", "name").out.strip() == f"{job}.0"
    dev.yard("show", "zzzzzzzzzzzz", code=101)
    dev.yard("show", "zzzzzzzzzzz", code=101)
    dev.yard("show", "NOT-AN-ID", code=2)


def test_a_timeout_exits_with_124_and_leaves_the_task_running(dev: Dev) -> None:
    job = dev.submit("--", "sleep", "600")
    said = dev.yard("wait", job, "--timeout", "1s", code=124)
    assert f"yard wait {job}" in said.err
    assert dev.task(f"{job}.0")["phase"] == "running"
    dev.yard("cancel", job, "--now")


def test_ctrl_c_detaches_and_cancels_nothing(dev: Dev) -> None:
    process = dev.begin("submit", "--wait", "--", "sleep", "600")
    job = next_line(process).strip()
    dev.reach(f"{job}.0", "running")  # `submit --wait` now waits for the end
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert f"continue with: yard wait {job}" in err
    assert dev.reach(f"{job}.0", "running")
    dev.yard("cancel", job, "--now")


def test_output_is_followed_while_it_is_written(dev: Dev) -> None:
    script = "for i in 1 2 3; do echo line $i; sleep 0.3; done"
    job = dev.submit("--script", script)
    assert dev.yard("logs", "-f", job).lines == ["line 1", "line 2", "line 3"]
    assert dev.yard("logs", "--tail", "1", job).lines == ["line 3"]


def test_a_watch_on_a_pipe_appends_changed_rows(dev: Dev) -> None:
    process = dev.begin("ls", "-w", "--columns", "id,phase")
    assert next_line(process).split() == ["ID", "PHASE"]
    job = dev.submit("--", "sleep", "600")
    while not next_line(process).startswith(job):
        continue
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    dev.yard("cancel", job, "--now")


def test_settings_and_their_sources_are_shown_without_the_token(dev: Dev) -> None:
    token = (dev.data / "token").read_text().strip()
    said = dev.yard("config")
    assert token not in said.out + said.err
    assert "(set, not shown)" in said.out
    assert "environment YARD_DATA" in said.out
    assert (dev.data / "token").stat().st_mode & 0o077 == 0
    assert "operator of cell main" in dev.yard("whoami").out
    assert "server" in dev.yard("version").out


def test_a_wrong_token_is_refused(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dev.env, "YARD_TOKEN", "wrong")
    dev.yard("ls", code=102)


def test_bad_usage_sends_nothing(dev: Dev) -> None:
    assert (
        "did you mean resources?"
        in dev.yard(
            "submit", "-", code=2, stdin="resorces: {gpus: 1}\nproject: x\nrun: {command: [a]}\n"
        ).err
    )
    assert "Did you mean submit" in dev.yard("sumbit", code=2).err
    dev.yard("submit", code=2)
    dev.yard("ls", "--phase", "sleeping", code=2)
    dev.yard("ls", "--nonsense", code=2)


def test_a_missing_server_is_reported_as_unreachable(tmp_path: Path, dev: Dev) -> None:
    other = Dev(tmp_path)
    other.folder.mkdir(exist_ok=True)
    said = other.yard("ls", code=106)
    assert "yard dev" in said.err
    other.yard("ls", "--server", "http://127.0.0.1:9", code=106)


def test_operators_see_slots_nodes_snapshots_pools_log_and_doctor(dev: Dev) -> None:
    slots = dev.yard("nodes", "slots", "node-1", "-o", "csv").lines
    assert slots == ["slot,state,used,tasks,reserved", "0,enabled,0.0,,", "1,enabled,0.0,,"]
    assert "address: 127.0.0.1" in dev.yard("nodes", "show", "node-1").out
    assert "no snapshots" in dev.yard("snapshots").err
    pools = dev.yard("pools", "--sort", "-name", "-o", "name").lines
    assert "default" in pools
    assert pools == sorted(pools, reverse=True)
    dev.yard("log", "stat")
    dev.yard("log", "tail", "-n", "1")
    assert dev.yard("doctor").code == 0


def test_contexts_are_kept_and_used(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    dev.yard("login", "prod", "https://yard.example.org", "-p", "nlp", "--no-check")
    assert dev.yard("contexts", "-o", "name").lines == ["dev", "prod"]
    assert "https://yard.example.org" in dev.yard("config").out
    dev.yard("contexts", "use", "dev")
    assert "*       dev" in dev.yard("contexts").out
    dev.yard("contexts", "use", "nowhere", code=2)
    assert "_YARD_COMPLETE" in dev.yard("completion", "bash").out


ORG = """
cell: {user-tasks: 50000, default-pools: [slow, default]}
pools:
  default: {policy: priority}
  slow:
    {policy: priority, option.preemption: false, node-timeout: 2m, pool-order: strict,
     gpu-placement: spread, images: [registry.example.org, python], mounts: ["scratch:rw"]}
departments:
  vision: {quota: {slow: {limit: 8}}}
projects:
  images:
    {department: vision, max-slots: 4, kinds: [training, inference], default-pools: [default],
     kind-node-types: {training: [any], inference: []}, images: registry.example.org/team/,
     mounts: [datasets, "scratch:rw"], users: ["1500:100"],
     git-hosts: [git.example.org, "h:8443"]}
  empty:
"""


def test_a_file_configures_pools_departments_and_projects(dev: Dev) -> None:
    def differing(text: str, *words: str) -> list[dict[str, object]]:
        (dev.folder / "org.yaml").write_text(text)
        found = dev.yard("diff", "-f", "org.yaml", "-o", "json", code=None)
        items: list[dict[str, object]] = found.json["items"]
        assert found.code == (1 if items else 0)
        return items

    new = [row["name"] for row in differing(ORG) if row["file"] == "new"]
    assert new == ["slow", "vision", "images", "empty"]
    dry = dev.yard("apply", "-f", "org.yaml", "--dry-run")
    assert "not sent: 4 created, 1 changed, 1 unchanged" in dry.err
    assert [row["name"] for row in differing(ORG) if row["file"] == "new"] == new
    assert "4 created, 1 changed, 1 unchanged" in dev.yard("apply", "-f", "org.yaml").err
    assert differing(ORG) == []
    assert (
        dev.yard("projects", "show", "images", "-o", "json").json["config"]["limit_milli"] == 4000
    )

    config = dev.yard("projects", "show", "images", "-o", "json").json["config"]
    assert config["images"] == ["registry.example.org/team/"]
    assert config["mounts"] == ["datasets", "scratch:rw"]
    assert config["users"] == ["1500:100"]
    assert config["git_hosts"] == ["git.example.org", "h:8443"]

    dev.yard("projects", "set", "images", "max-slots=9")
    drift = {"kind": "project", "name": "images", "field": "max-slots", "now": "9", "file": "4"}
    assert differing(ORG) == [drift | {"default": False}]
    without = ORG.replace("max-slots: 4, ", "")
    assert differing(without) == [drift | {"file": "none", "default": True}]
    assert "0 created, 1 changed, 5 unchanged" in dev.yard("apply", "-f", "org.yaml").err
    assert (
        dev.yard("projects", "show", "images", "-o", "json").json["config"]["limit_milli"] is None
    )

    for kind, name in (("projects", "images"), ("projects", "empty"), ("departments", "vision")):
        dev.yard(kind, "delete", name)
    assert "in_use" in dev.yard("pools", "delete", "slow", code=103).err
    dev.yard("cell", "set", "default-pools=")
    dev.yard("pools", "delete", "slow")


NESTED = """
departments:
  faces: {parent: sight, rank: 200, reclaim-min-runtime: 30m}
  sight: {quota: {default: {deserved: 8, deserved-memory: 1Ti, over-quota: off}}}
projects:
  eyes: {department: faces, quota: {default: {deserved: unlimited, over-quota-weight: high}}}
"""


def test_departments_and_quotas_are_configured_by_a_file_and_by_commands(dev: Dev) -> None:
    (dev.folder / "org.yaml").write_text(NESTED)
    assert "3 created" in dev.yard("apply", "-f", "org.yaml").err
    assert dev.yard("diff", "-f", "org.yaml", "--no-headers").out == ""
    rows = dev.yard("quotas", "--pool", "default", "-o", "csv", "--columns", "name,deserved,weight")
    assert rows.lines == ["name,deserved,weight", "sight,8,1", "eyes,unlimited,3"]
    words = ("quotas", "set", "eyes", "--pool", "default", "--gpu", "2", "--cpus", "16")
    assert dev.yard(*words).lines == ["eyes"]
    quota = dev.yard("projects", "show", "eyes", "-o", "json").json["config"]["quotas"]["default"]
    assert (quota["deserved_milli"], quota["deserved_unlimited"]) == (2000, False)
    assert (quota["deserved_cpu_milli"], quota["over_quota_weight"]) == (16_000, 3)
    listed = dev.yard("projects", "--pool", "default", "-o", "csv").lines
    assert "eyes,faces,2,0,0,,3,in_quota,100,2" in listed
    dev.yard(*words, "--if-match", '"1"', code=103)

    said = dev.yard("departments", "set", "sight", "parent=faces", code=103)
    assert "refused: department_cycle" in said.err
    assert "in use by 1 departments" in dev.yard("departments", "delete", "sight", code=103).err
    assert dev.yard("quotas", "delete", "sight", "--department", "--pool", "default").code == 0
    for kind, name in (("projects", "eyes"), ("departments", "faces"), ("departments", "sight")):
        dev.yard(kind, "delete", name)


def test_a_job_names_its_user_when_its_project_lists_the_user(dev: Dev) -> None:
    dev.yard("projects", "create", "ada", "department=default")
    submit = ("submit", "-p", "ada", "--run-as", "1500:100", "--", "true")
    refused = dev.yard(*submit, code=104)
    assert "user_not_allowed: 1500:100 is not in the list of project ada" in refused.err
    assert "yard projects set PROJECT users=UID:GID" in refused.err
    for root in ("0:100", "1500:0"):
        wrong = dev.yard("submit", "-p", "ada", "--run-as", root, "--", "true", code=2)
        assert "must be at least 1" in wrong.err
    assert "expected UID:GID" in dev.yard("submit", "--run-as", "ada", "--", "true", code=2).err

    (dev.folder / "users.yaml").write_text("projects: {ada: {users: ['1500:100']}}")
    dev.yard("apply", "-f", str(dev.folder / "users.yaml"))
    admitted = dev.yard(*submit)
    assert "run.run_as: no node of its pools can switch users (ISOLATION none)" in admitted.err
    job = admitted.lines[0]
    for command in ("show", "explain"):
        assert "Runs as     1500:100" in dev.yard(command, f"{job}.0").lines
    assert "  run_as:\n    uid: 1500\n    gid: 100" in dev.yard("show", job, "--spec").out
    until(
        lambda: "cannot run it as 1500:100 (run_as)" in dev.yard("logs", f"{job}.0").out,
        "the log says why the start failed",
    )
    dev.yard("cancel", job, "--yes")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("departments: {a: {parent: a}}", 2, "departments.a: it would be a part of itself"),
        ("projects:\n  a: {max-slot: 3}", 2, "org.yaml:2: projects.a: unknown key max-slot"),
        ("projects:\n  a:\n    weight: much", 2, "org.yaml:3: projects.a: weight: "),
        ("project: {a: {}}", 2, "org.yaml:1: project: unknown key"),
        ("projects: {a: 3}", 2, "projects.a: expected a mapping"),
        ("pools: {a: {policy: priority, fence: soft}}", 2, "org.yaml:1: pools.a: fence: "),
        ("projects: {a: {kind-node-types: {hobby: [sxm]}}}", 2, "kind_node_types"),
        ("projects: {a: {images: [a/*]}}", 2, "images"),
        ("projects: {a: {mounts: ['scratch:ro']}}", 2, "mounts"),
        ("projects: {a: {users: ['0:0']}}", 2, "users"),
        ("projects: {a: {default-pools: [moon]}}", 101, "project a: refused: pool_unknown"),
        ("cell: {default-pools: [moon]}", 101, "refused: pool_unknown"),
        ("projects: {a: {department: none-such}}", 101, "project a: refused: department_unknown"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line_and_changes_nothing(
    dev: Dev, text: str, code: int, said: str
) -> None:
    (dev.folder / "org.yaml").write_text(text)
    assert said in dev.yard("apply", "-f", "org.yaml", code=code).err
    assert "a" not in dev.yard("projects", "ls", "-o", "name").lines
