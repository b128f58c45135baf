"""What ``GET /v1/quotas`` says: quotas of the policy in force, and what jobs hold."""

from __future__ import annotations

import httpx

from gpu_platform.domain.access.roles import Role
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader
from tests.support.api_server import application, bearer, in_process, sign_in
from tests.support.store_cluster import NOW, Cluster

NOWHERE = "127.0.0.1:1"


async def test_quotas_say_what_is_held_and_of_which_namespaces_one_may_know(sqlite_store: Store) -> None:
    cluster = Cluster(sqlite_store).host("a")
    cluster.queued("j-0000000000000a1", namespace="research", user="ada")
    cluster.reserve("j-0000000000000a1", {"a": [0, 1]})
    cluster.queued("j-0000000000000a2", namespace="students", user="bob")
    quotas = {"namespaces": [{"name": "research", "guaranteed_gpus": 8}, {"name": "idle", "limit_gpus": 4}]}
    leader.begin_epoch(sqlite_store, "one", NOW, {"quotas": quotas})
    async with in_process(application(sqlite_store, NOWHERE)) as http:
        found = await quotas_of(http)
        assert [*found] == ["idle", "research", "students"]
        assert found["research"]["guaranteed_gpus"] == 8
        assert (found["research"]["held_gpus"], found["research"]["held_by_user"]) == (2.0, {"ada": 2.0})
        assert (found["idle"]["limit_gpus"], found["idle"]["held_gpus"]) == (4, 0.0)
        assert (found["students"]["waiting_jobs"], found["students"]["limit_gpus"]) == (1, None)
        sign_in(sqlite_store, "gpt_bob", "bob", {"students": Role.VIEWER})
        assert [*await quotas_of(http, bearer("gpt_bob"))] == ["students"]


async def quotas_of(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> dict[str, dict[str, object]]:
    answer = await http.get("/v1/quotas", headers=headers)
    assert answer.status_code == 200, answer.text
    return {item["namespace"]: item for item in answer.json()["items"]}
