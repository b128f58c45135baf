"""schemathesis asks the real service, as each role, what its own description allows and what it forbids.

All checks: no server error, answers as described, what is described is accepted, what is not is refused.
``make test-fuzz`` has a short run and a long one (``GPU_PLATFORM_FUZZ_SECONDS``).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.settings import RateLimitSettings, ServiceSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from tests.store_cluster import Cluster
from tests.unit.service.api_server import application, recording, served, sign_in, temporal_dev_server

pytestmark = pytest.mark.scale
"""Not yet in ``make test``: a short run takes 10 to 30 s for each role on two busy cores."""

PROGRAM = str(Path(sys.executable).with_name("schemathesis"))
SHORT_S = 4
LONG_S = int(os.environ.get("GPU_PLATFORM_FUZZ_SECONDS", "120"))
ROLES: dict[str, dict[str, Role]] = {
    "viewer": {"team-a": Role.VIEWER},
    "user": {"team-a": Role.USER},
    "operator": {CLUSTER: Role.OPERATOR},
    "admin": {CLUSTER: Role.ADMIN},
}
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


async def fuzz(store: Store, temporal: str, role: str, seconds: int, *phases: str) -> tuple[int, str]:
    """The exit code of schemathesis and what it printed. 0: nothing is wrong."""
    cluster = Cluster(store).host("a").host("b")
    cluster.running("j-running", {"a": [0]})
    cluster.queued("j-queued")
    token = f"gpt_{role * 10}"
    sign_in(store, token, role, ROLES[role])
    limits = ServiceSettings(rate_limits=RateLimitSettings(requests=None, planning=None))
    async with recording(temporal), served(application(store, temporal, service=limits)) as url:
        arguments = [
            f"--config-file={CONFIG}", "run", f"{url}/openapi.json", "--checks=all", f"--phases={','.join(phases)}",
            f"--header=Authorization: Bearer {token}", "--header=X-Requested-With: fuzz", "--continue-on-failure",
            "--suppress-health-check=all", f"--max-time={seconds}", "--generation-deterministic", "--no-color",
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


@pytest.mark.parametrize("role", ROLES)
async def test_a_short_run_finds_nothing(sqlite_store: Store, temporal: str, role: str) -> None:
    code, out = await fuzz(sqlite_store, temporal, role, SHORT_S, "examples", "fuzzing")
    assert code == 0, out


@pytest.mark.timeout(LONG_S + 300)
@pytest.mark.parametrize("role", ROLES)
async def test_a_long_run_finds_nothing(sqlite_store: Store, temporal: str, role: str) -> None:
    code, out = await fuzz(sqlite_store, temporal, role, LONG_S, "examples", "coverage", "fuzzing")
    assert code == 0, out


async def test_a_planted_server_error_is_found(
    sqlite_store: Store, temporal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is trusted because it finds this."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(hosts, "get_host", broken)
    code, out = await fuzz(sqlite_store, temporal, "operator", SHORT_S, "examples")
    assert code != 0
    assert "Server error" in out
    assert "/v1/hosts/dgx-a" in out
