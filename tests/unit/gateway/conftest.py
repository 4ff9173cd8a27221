"""A cell behind a gateway for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway import TestCell, test_cell


@pytest.fixture
async def cell() -> AsyncIterator[TestCell]:
    async with test_cell() as made:
        yield made
