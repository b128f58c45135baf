"""One platform and one browser for all tests of the dashboard: to start both takes longer than most of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.dashboard_rig import BUSY, Dashboard, dashboard, job


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def board(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Dashboard]:
    async with dashboard(tmp_path_factory.mktemp("dashboard")) as found:
        # It takes some seconds until something was measured.
        await found.client.submit(job("sleep", "600", name=BUSY))
        yield found


@pytest.fixture(autouse=True)
def _nothing_broke(request: pytest.FixtureRequest) -> Iterator[None]:
    """No script of a page broke, and its policy refused nothing."""
    if "board" not in request.fixturenames:
        yield
        return
    board: Dashboard = request.getfixturevalue("board")
    board.problems.clear()
    yield
    assert not board.problems, board.problems
