"""`yard demo` is what a newcomer sees first: it must work through a pipe, quickly, and be true."""

import re
import time
from pathlib import Path

import pytest

from tests.support.yard_cli import Dev

pytestmark = pytest.mark.xdist_group("cli")


def test_the_demo_shows_preemption_resume_and_proof_within_a_minute(tmp_path: Path) -> None:
    dev = Dev(tmp_path)
    started_s = time.monotonic()
    said = dev.yard("demo")
    took_s = time.monotonic() - started_s
    assert took_s < 60, f"the demo took {took_s:.0f} s"
    assert re.search(r"^resumed from step [1-9]\d* \(attempt 2\)$", said.out, re.MULTILINE)
    assert re.search(r"^rank 1 of 2 on node-", said.out, re.MULTILINE)
    assert "5 of 5 tasks succeeded" in said.out
    assert "every decision was derived again" in said.out
    assert "NOT" not in said.out
    assert "\x1b" not in said.out
