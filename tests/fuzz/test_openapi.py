"""schemathesis asks the real service, as each role, what its own description allows and what it forbids.

All checks: no server error, answers as described, what is described is accepted, what is not is refused. ``make test``
has a short run, always with the same requests; ``make test-fuzz`` long ones (``GPU_PLATFORM_FUZZ_SECONDS``).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from gpu_platform.client.calls import USER_HEADER
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.states import JobState
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import RateLimitSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from gpu_platform.store.reservations import attempts
from service.http import problems
from tests.support.api_server import LogFiles, application, bearer, recording, served, sign_in
from tests.support.store_cluster import NOW, Cluster, spec
from tests.support.temporal_server import client_of_new_namespace

PROGRAM = str(Path(sys.executable).with_name("schemathesis"))
CONFIG = Path(__file__).with_name("schemathesis.toml")
TABLES = Path(__file__).parents[2] / ".hypothesis"
"""Tables of characters, which cost two seconds of CPU, are kept here for the next run."""
LONG_S = int(os.environ.get("GPU_PLATFORM_FUZZ_SECONDS", "120"))
NAMESPACE, OWNER = spec().namespace, spec().user
"""Of all jobs here."""
NAMES = {"viewer": "viewer", "user": OWNER}
"""Users of the tokens that act for nobody else."""
ROLES: dict[str, dict[str, Role]] = {
    "viewer": {NAMESPACE: Role.VIEWER},
    "user": {NAMESPACE: Role.USER},
    "operator": {CLUSTER: Role.OPERATOR},
    "admin": {CLUSTER: Role.ADMIN},
}
RUNNING, QUEUED, ENDED = "j-1jrp3k2h0x4t7za", "j-0000000000queue", "j-0000000000ended"
"""The first is the example in the description, as is the host ``dgx-a``."""


@dataclass
class Service:
    """A real service with hosts and jobs, and a token for each role."""

    url: str
    directory: Path
    spare: dict[str, str]
    """Of each role, the id of a token that may be revoked."""

    async def fuzz(self, role: str, phases: str, *options: str) -> tuple[int, str]:
        """The exit code of schemathesis and what it printed. 0: nothing is wrong."""
        arguments = [
            f"--config-file={CONFIG}", "run", f"{self.url}/openapi.json", "--checks=all", f"--phases={phases}",
            f"--header=Authorization: Bearer {token_of(role)}", "--header=X-Requested-With: fuzz",
            *([f"--header={USER_HEADER}: {NAMES[role]}"] if role in NAMES else []),
            "--continue-on-failure", "--suppress-health-check=all", "--no-color", "--request-timeout=60",
            "--max-response-time=60", "--workers=1", *options,  # threads break the parser of Python 3.11
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            cwd=self.directory,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(TABLES), "SPARE_TOKEN": self.spare[role]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        async with httpx.AsyncClient(headers=bearer(token_of(role))) as http:
            assert (await http.get(f"{self.url}/v1/whoami")).is_success, "it ended its own token, so it tested nothing"
        return process.returncode or 0, out.decode()


def token_of(role: str) -> str:
    return f"gpt_{role * 8}"


@pytest.fixture
async def service(sqlite_store: Store, temporal_address: str, tmp_path: Path) -> AsyncIterator[Service]:
    logs = LogFiles("dgx-b")
    logs.write(ENDED, 1, 0, b"epoch 1\n")
    async with logs.served() as worker_url:
        cluster = Cluster(sqlite_store).host("dgx-a").host("dgx-b", url=worker_url)
        cluster.running(RUNNING, {"dgx-a": [0]})
        cluster.queued(QUEUED)
        ended = cluster.running(ENDED, {"dgx-b": [0]})
        attempts.end_attempt(sqlite_store, ended, [JobState.COMPLETED], now=NOW + timedelta(seconds=9), actor="control")
        spare = {}
        for role, roles in ROLES.items():
            sign_in(sqlite_store, token_of(role), NAMES.get(role, role), roles)
            spare[role] = sign_in(sqlite_store, token_of(f"spare-{role}"), NAMES.get(role, role), roles).id
        namespace = (await client_of_new_namespace(temporal_address)).namespace
        limits = ServiceSettings(rate_limits=RateLimitSettings(requests=None, planning=None, bad_tokens=None))
        app = application(sqlite_store, temporal_address, namespace=namespace, service=limits)
        async with recording(temporal_address, namespace), served(app) as url:
            yield Service(url, tmp_path, spare)


SHORT = ("--max-examples=1", "--generation-deterministic")
ALIKE = ("/v1/jobs:dry-run", "/v1/gpus/{gpu_id}/drain", "/v1/gpus/{gpu_id}/offline", "/v1/gpus/{gpu_id}/online")
"""The short run leaves them out: their bodies and parameters are those of ``/v1/jobs`` and of hosts."""


@pytest.mark.timeout(120)
async def test_a_short_run_finds_nothing(service: Service) -> None:
    code, out = await service.fuzz("admin", "examples,fuzzing", *SHORT, *(f"--exclude-path={path}" for path in ALIKE))
    assert code == 0, out
    assert "Tested" in out


@pytest.mark.timeout(60)
async def test_what_was_planted_is_found(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short run is trusted because it finds a server error, and an answer that is not as described."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(hosts, "get_host", broken)
    monkeypatch.setattr(problems, "PROBLEM_JSON", "text/html")
    only = "--include-path-regex=^/v1/hosts/.name.$"
    code, out = await service.fuzz("admin", "examples,fuzzing", *SHORT, only)
    assert code != 0
    assert "Server error" in out, out
    assert "Undocumented Content-Type" in out, out


@pytest.mark.scale
@pytest.mark.timeout(2 * LONG_S + 600)
@pytest.mark.parametrize("role", ROLES)
async def test_a_long_run_finds_nothing(service: Service, role: str) -> None:
    """The first two phases end by themselves; each of the others has half of the time, and other requests each time."""
    half = f"--max-time={max(1, LONG_S // 2)}"
    for phases, options in (("examples,coverage", ()), ("fuzzing", (half,)), ("stateful", (half,))):
        code, out = await service.fuzz(role, phases, *options)
        assert code == 0, out
