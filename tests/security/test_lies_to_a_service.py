"""A host lies to a service in each field of its report and its heartbeat, with its own node token.

Nothing that the database knows of the other host, of its GPUs and its jobs may change, and the liar's own true reports
must go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import GpuTelemetry, Heartbeat, HostReport, SavedCheckpoint
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader, leases
from tests.security.host_messages import Names, lies_in
from tests.security.test_lying_hosts import known_of
from tests.support.api_server import application, in_process, node_headers
from tests.support.store_cluster import Cluster, inventory, uuid_of

THEIRS = AttemptKey(job_id="theirs", attempt=1)
NOW_MS = 1_800_000_000_000
VICTIM: dict[Names, list[Any]] = {
    Names.HOST: ["b"],
    Names.GPU: [uuid_of("b", 0)],
    Names.JOB: ["theirs", "array.0"],
    Names.ATTEMPT: [1, 2, 2**31 - 1],
    Names.ADDRESS: ["10.0.0.2", "http://service:secret@10.0.0.2:2", "http://169.254.169.254:80"],
    Names.NUMBER: [0, 2**63 - 1, 2**40],
    Names.TIME: [0.001, 3600.0, 9e10],
    Names.TEXT: ["../../theirs/1", "x" * 8192],
}
BODIES = {"report": HostReport, "heartbeat": Heartbeat}


class Liar:
    """Host ``a``, which holds the job ``mine``, beside host ``b``, which holds ``theirs``."""

    def __init__(self, store: Store, http: httpx.AsyncClient, state_dir: Path) -> None:
        self.store, self._http, self._headers = store, http, node_headers("a", state_dir)
        self.seq = 10**9

    def true(self, way: str) -> dict[str, Any]:
        """What ``a`` would say if it did not lie."""
        self.seq += 2_000_000
        made = HostReport(
            name="a",
            protocol=1,
            facts="0" * 16,
            attempts=[AttemptKey(job_id="mine", attempt=1)],
            checkpoints=[SavedCheckpoint(key=AttemptKey(job_id="mine", attempt=1), written_at=5.0, name="step-1")],
            degraded={uuid_of("a", 1): "hot"},
            telemetry=[GpuTelemetry(uuid=uuid_of("a", 0), temperature_c=30)],
            seq=self.seq,
            round=1,
            members_version=1,
            lease_s=30.0,
            session="s1",
            boot_id="boot",
            address="127.0.0.1",
            url="http://127.0.0.1:1",
            inventory=inventory("a", 2).model_copy(update={"refused_gpus": {uuid_of("a", 1): "nobody"}}),
        )
        return (made if way == "report" else made.heartbeat()).model_dump(mode="json")

    async def say(self, way: str, body: dict[str, Any], host: str = "a") -> int:
        sent = await self._http.post(f"/v1/hosts/{host}/{way}", json=body, headers=self._headers)
        return sent.status_code


@pytest.fixture
async def liar(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Liar]:
    cluster = Cluster(sqlite_store).host("a", gpus=2, boot_id="boot")
    cluster.host("b", gpus=2, address="10.0.0.2", url="http://service:s@10.0.0.2:2").host("c", gpus=1)
    cluster.running("mine", {"a": [0]})
    cluster.running("theirs", {"b": [0]})
    leader.begin_epoch(sqlite_store, "leader", datetime.now(UTC))
    leases.begin_round(sqlite_store, datetime.now(UTC))
    async with in_process(application(sqlite_store, "127.0.0.1:1", state_dir=tmp_path)) as http:
        liar = Liar(sqlite_store, http, tmp_path)
        assert await liar.say("report", liar.true("report")) == 200
        yield liar


@pytest.mark.parametrize("way", BODIES)
async def test_a_lie_changes_nothing_of_another_host(liar: Liar, way: str) -> None:
    before = known_of(liar.store, "b")
    lies = [*lies_in(BODIES[way], VICTIM)]
    assert len(lies) > 10
    for lie in lies:
        told = lie.told(liar.true(way))
        for host in ("a", "b"):
            await liar.say(way, told, host)
        assert known_of(liar.store, "b") == before, str(lie)
        assert await liar.say("report", liar.true("report")) == 200, f"its true report is believed after {lie}"
        assert await liar.say("heartbeat", liar.true("heartbeat")) == 200, f"its true heartbeat is believed after {lie}"
        assert known_of(liar.store, "b") == before, str(lie)


async def test_a_host_gets_no_secrets_and_no_code_of_what_is_not_on_it(liar: Liar) -> None:
    http, headers = liar._http, liar._headers
    for job_id in ("theirs", "mine", "nothing"):
        for host in ("a", "b"):
            if (host, job_id) == ("a", "mine"):
                continue
            path = f"/v1/hosts/{host}/attempts/{job_id}/1"
            assert (await http.post(f"{path}/secrets", headers=headers)).status_code in (401, 403, 404)
            assert (await http.get(f"{path}/upload", headers=headers)).status_code in (401, 403, 404)
    later = await http.post("/v1/hosts/a/attempts/mine/2/secrets", headers=headers)
    assert later.status_code in (401, 403, 404)
