"""A cell behind a gateway for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway import GatewayCell, gateway_cell


@pytest.fixture
async def cell() -> AsyncIterator[GatewayCell]:
    async with gateway_cell() as made:
        yield made
