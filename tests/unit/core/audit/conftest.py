"""The log that a test changes."""

import pytest

from tests.support.logs import LogBuilder
from tests.unit.core.audit.cell_log import cell_log


@pytest.fixture
def log() -> LogBuilder:
    return cell_log()
