"""The Python with PyTorch that runs the programs of these tests."""

import os
import subprocess

import pytest


@pytest.fixture(scope="session")
def torch_python() -> str:
    """The path of a Python that imports PyTorch; the tests fail without one."""
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.fail("TORCH_PYTHON names no Python with PyTorch; run: make test-torch")
    found = subprocess.run(
        [python, "-c", "import torch"], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.fail(f"TORCH_PYTHON: {python} cannot import PyTorch: {found.stderr[-500:]}")
    return python
