"""Enrollment and erasure: the real command on a real embedded process."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.yard_cli import Dev, running_dev, until

pytestmark = pytest.mark.xdist_group("cli")

SECRET = "confidential-content"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("trust"), nodes=2, slots=2) as dev:
        yield dev


def states(dev: Dev) -> dict[str, str]:
    """Node -> state."""
    return {n["name"]: n["state"] for n in dev.yard("nodes", "-o", "json").json["items"]}


def on_disk(dev: Dev) -> list[str]:
    """Files of the log and of the machines' snapshots that contain the secret."""
    files = [*dev.data.glob("log.db*"), *(dev.data / "snapshots").rglob("*")]
    return [f.name for f in files if f.is_file() and SECRET.encode() in f.read_bytes()]


def test_an_erased_job_is_absent_from_all_output_and_from_the_log_file(dev: Dev) -> None:
    job = dev.submit(
        *("--name", SECRET, "--label", f"team={SECRET}", "--gpus", "1"),
        *("--script", f": {SECRET}; sleep 600"),
    )
    dev.reach(f"{job}.0", "running")
    said = dev.yard("erase", job, "--yes", code=103)
    assert "only an ended job can be erased" in said.err
    dev.yard("cancel", job, "--now", "--reason", f"{SECRET} said so")
    dev.reach(f"{job}.0", "cancelled")
    assert SECRET in dev.yard("ls", "-A", "-o", "json").out
    assert on_disk(dev)
    assert dev.yard("erase", job[:6], "--yes").lines == [job]
    shown = dev.yard("show", job, "-o", "json").out
    listed = dev.yard("ls", "-A", "-o", "json").out
    events = dev.yard("log", "dump", "--log", str(dev.log), "-o", "jsonl").out
    for text in (shown, listed, events):
        assert SECRET not in text
    until(lambda: not on_disk(dev), "the secret is gone from the files", lambda: str(on_disk(dev)))
    dev.yard("logs", job, code=101)
    dev.yard("erase", job, "--yes")
    dev.prove()


def test_a_single_task_cannot_be_erased(dev: Dev) -> None:
    said = dev.yard("erase", "4kq7w2mz9c1f.0", code=2)
    assert "erase its whole job: yard erase 4kq7w2mz9c1f" in said.err
    dev.yard("erase", "4kq7w2mz9c1f", "--yes", code=101)


def test_a_wrong_enrollment_is_refused_before_anything_is_sent(dev: Dev) -> None:
    dev.yard("nodes", "enroll", "gpu-08", "--pool", "default", code=2)
    bad = ("--pool", "default", "--gpus", "1")
    assert "KEY=VALUE" in dev.yard("nodes", "enroll", "gpu-08", *bad, "--label", "x", code=2).err
    dev.yard("nodes", "enroll", "gpu-08", *bad, "--address", "not an address", code=2)
    ghost = ("nodes", "enroll", "gpu-08", "--pool", "ghost", "--gpus", "1")
    said = dev.yard(*ghost, "--yes", code=101)
    assert "pools" in said.err


def public_key(dev: Dev) -> Path:
    """A file with an Ed25519 public key."""
    raw = bytes.fromhex("302a300506032b6570032100") + bytes(32)
    pem = base64.b64encode(raw).decode()
    path = dev.folder / "gpu-07.pem"
    path.write_text(f"-----BEGIN PUBLIC KEY-----\n{pem}\n-----END PUBLIC KEY-----\n")
    return path


def test_the_first_enrollment_can_include_all_present_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_dev(tmp_path_factory.mktemp("open"), nodes=2, slots=2) as dev:
        narrow = ("nodes", "enroll", "node-1", "--pool", "default", "--gpus", "1")
        said = dev.yard(*narrow, "--all-present", code=2)
        assert "until they are enrolled: node-1\n" in said.err
        new = ("nodes", "enroll", "gpu-07", "--pool", "default", "--gpus", "8")
        assert dev.yard(*new, "--all-present").lines == ["gpu-07", "node-1", "node-2"]
        assert states(dev) == {"gpu-07": "enrolled", "node-1": "ready", "node-2": "ready"}
        dev.yard(*narrow)
        assert states(dev)["node-1"] == "barred"


def test_nodes_are_enrolled_used_revoked_and_enrolled_again(dev: Dev) -> None:
    bounds = ("--pool", "default", "--gpus", "2")
    first = (
        *("nodes", "enroll", "gpu-07", "--pool", "default", "--gpus", "8"),
        *("--label", "rack=r1", "--address", "10.0.0.7", "--key", str(public_key(dev))),
    )
    refused = dev.yard(*first, code=2)
    assert "until they are enrolled: node-1, node-2" in refused.err
    assert "--all-present" in refused.err
    assert states(dev) == {"node-1": "ready", "node-2": "ready"}
    said = dev.yard(*first, "--yes")
    assert "start its agent" in said.err
    assert states(dev) == {"gpu-07": "enrolled", "node-1": "barred", "node-2": "barred"}
    wide = dev.yard("nodes", "-o", "wide").out
    assert "ENROLLED" in wide
    assert "10.0.0.7" in wide
    assert "state: enrolled" in dev.yard("nodes", "show", "gpu-07").out

    job = dev.submit("--gpus", "2", "--", "sleep", "600")
    assert dev.task(f"{job}.0")["phase"] == "pending"
    dev.yard("nodes", "enroll", "node-1", *bounds)
    assert dev.reach(f"{job}.0", "running")["nodes"] == ["node-1"]
    dev.yard("nodes", "enroll", "node-2", "--pool", "default", "--gpus", "1")
    assert states(dev)["node-2"] == "barred"
    dev.yard("nodes", "enroll", "node-2", *bounds)
    assert states(dev)["node-2"] == "ready"

    dev.yard("nodes", "revoke", "gpu-07")
    assert "gpu-07" not in states(dev)
    dev.yard("nodes", "revoke", "gpu-07", code=101)
    dev.yard("nodes", "revoke", "node-1")
    until(lambda: dev.task(f"{job}.0")["nodes"] == ["node-2"], "it runs on the other node")
    assert states(dev)["node-1"] == "revoked"
    dev.yard("cancel", job, "--now")

    dev.yard("nodes", "enroll", "node-1", *bounds)
    dev.stop()
    dev.start()  # returns when both are ready
    assert states(dev) == {"node-1": "ready", "node-2": "ready"}
