"""The cluster's name: what it may be, and where people and programs see it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared, RankSpec
from gpu_platform.node.processes.environment import rank_environ
from gpu_platform.settings import Settings
from gpu_platform.settings.cluster import MAX_NAME, ClusterSettings
from gpu_platform.store import Store
from tests.support.api_server import application, in_process, served
from tests.support.command_line import run

NOWHERE = "127.0.0.1:1"
NAMED = ClusterSettings(name="research-2")


@pytest.mark.parametrize("name", ["a", "7", "research-2", "x" * MAX_NAME])
def test_a_name_is_a_label(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_CLUSTER__NAME", name)
    assert Settings().cluster.name == name


@pytest.mark.parametrize(
    "name",
    ["", "Research", "a b", "-a", "a-", "a_b", "a.b", "x" * (MAX_NAME + 1), "a\n", "\u00e4", "\u0663", "\x1b[2J"],
)
def test_another_name_is_refused_and_the_message_says_what_to_do(name: str) -> None:
    with pytest.raises(ValidationError, match="use lower-case letters, digits and hyphens, at most 40"):
        ClusterSettings(name=name)


async def test_the_service_says_it_to_programs(sqlite_store: Store) -> None:
    async with in_process(application(sqlite_store, NOWHERE, cluster=NAMED)) as http:
        assert (await http.get("/v1/cluster")).json()["name"] == "research-2"
        assert (await http.get("/openapi.json")).json()["info"]["title"] == "gpu-platform: research-2"
        metrics = (await http.get("/metrics")).text
    series = [line for line in metrics.splitlines() if "research-2" in line]
    assert series == [f'gpu_platform_cluster_info{{name="research-2",version="{version("gpu-platform")}"}} 1.0']


async def test_the_command_line_shows_it(sqlite_store: Store) -> None:
    async with served(application(sqlite_store, NOWHERE, cluster=NAMED)) as url:
        shown = (await run("status", url=url)).out
        assert shown.splitlines()[0].split() == ["cluster", "research-2"]
        assert '"cluster": "research-2"' in (await run("status", "--json", url=url)).out


def test_a_rank_knows_it_and_may_read_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = RankSpec(rank=0, local_rank=0, gpu_uuids=[])
    plan = HostPlan(
        key=AttemptKey(job_id="j-1", attempt=1), host="a", user="ada", namespace="default", world_size=1,
        command=["true"], env={"GPU_PLATFORM_CLUSTER_NAME": "forged"}, ranks=[rank], gpu_uuids=[],
    )  # fmt: skip
    prepared = Prepared(host="a", address="127.0.0.1", rendezvous_port=29500)
    environ = rank_environ(plan, rank, prepared, cluster="research-2", home=tmp_path, checkpoint_dir=tmp_path)
    assert environ["GPU_PLATFORM_CLUSTER_NAME"] == "research-2"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Settings().cluster.name == "gpu-platform", "it is no setting: a rank may run a platform of its own"
