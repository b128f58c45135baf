"""The recipes of ``docs/contributing``, followed literally in a copy of the tree: the platform runs from that copy."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
import pytest_asyncio
import yaml

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.system.paths import control_dir, node_dir
from tests.support import recipes
from tests.support.recipes import PATCHES, Tree
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

PLUGINS = ("examples/plugin-quiet-hosts", "examples/plugin-whole-hosts")
MACHINE = "gpu_platform/topology/machines/two-a30.yaml"
VERSIONS = "gpu_platform/store/migrations/versions"
HOST_MODEL = "gpu_platform/store/models/hosts.py"
LABELS = {"desks": {"quiet": "no"}, "kept": {"whole": "yes"}}
"""Labels of hosts that the example packages go by."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A copy of the tree in which every recipe was followed that has a patch, a package or a file."""
    tree = Tree(tmp_path_factory.mktemp("recipes") / "tree")
    for recipe in PATCHES:
        tree.follow(recipe)
    machine = recipes.block(recipes.text("machine-type"), "yaml")
    (tree.root / MACHINE).write_text(machine)
    column, name, code = recipes.migration(recipes.newest_migration())
    (tree.root / VERSIONS / name).write_text(code)
    model = (tree.root / HOST_MODEL).read_text()
    (tree.root / HOST_MODEL).write_text(
        re.sub(r"(class HostRecord.*?\n    name: .*?\n)", rf"\1    {column}\n", model, count=1, flags=re.DOTALL)
    )
    tree.install(*(f"./{package}" for package in PLUGINS))
    return tree


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """It runs from the copy, with the policy that the packages' pages show."""
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("platform"),
        nodes=(NodeSpec("desks", "dgx-1v"), NodeSpec("cellar", "dgx-1v"), NodeSpec("kept", "two-a30")),
        ui=False,
        schedulers=1,
        settings={
            **tree.environment,
            "GPU_PLATFORM_SCHEDULER__POLICY": json.dumps(policy_of_the_pages()),
            "GPU_PLATFORM_SERVICE__READY_TIMEOUT_S": "5",
        },
    )
    inject = "from gpu_platform.node.nvml.fault_injection import inject_fault; from pathlib import Path; import sys; "
    control = control_dir(node_dir(config.state_dir, "desks"))
    tree.python("-c", inject + "inject_fault(Path(sys.argv[1]), 3, memory_c=99)", str(control))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tree.root)  # python -m imports from there first
        cluster = LocalCluster(config)
        for host, labels in LABELS.items():
            cluster.nodes[host].env["GPU_PLATFORM_NODE__LABELS"] = json.dumps(labels)
        async with cluster:
            yield cluster


def policy_of_the_pages() -> dict[str, object]:
    policy: dict[str, object] = {}
    for package in PLUGINS:
        page = (recipes.ROOT / package / "README.md").read_text()
        policy |= yaml.safe_load(recipes.block(page, "yaml"))["scheduler"]["policy"]
    return policy


@pytest.mark.long
async def test_the_files_that_change_are_those_that_the_recipes_name(tree: Tree) -> None:
    written = {path for recipe in PATCHES for path in recipes.files(recipe)}
    generated = {path for recipe in PATCHES for paths in recipes.made(recipe).values() for path in paths}
    _, migration, _ = recipes.migration(recipes.newest_migration())
    assert tree.changed() == {*written, *generated, MACHINE, HOST_MODEL, f"{VERSIONS}/{migration}"}
    assert "`service.ready_timeout_s`" in (tree.root / "docs" / "reference" / "configuration.md").read_text()
    tree.python("-m", "ruff", "check", "--quiet", *sorted(path for path in written if path.endswith(".py")))


@pytest.mark.long
@pytest.mark.parametrize("recipe", PATCHES)
async def test_the_commands_of_a_recipe_are_all_that_it_needs(tree: Tree, recipe: str) -> None:
    added = {path for path in recipes.files(recipe) if path.startswith("tests/")}
    checked = recipes.commands(recipe)[-1].split()
    assert added, "each recipe adds a test"
    assert all({path, path.rpartition("/")[0]} & set(checked) for path in added), "its check runs it"
    assert not tree.wrong[recipe], tree.wrong[recipe]


@pytest.mark.long
async def test_the_migration_of_the_recipe_leads_to_its_model(tree: Tree) -> None:
    schema = "tests/unit/store/test_store_schema.py::test_the_migrations_lead_to_the_models[sqlite]"
    tree.python("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", schema)


@pytest.mark.long
async def test_the_score_and_the_filter_of_packages_decide(platform: LocalCluster) -> None:
    async with AsyncClient(platform.api_url) as client:
        assert (await client.ready()).warnings == []
        # Alone, ``desks`` would be the tightest fit: one of its GPUs is out of service.
        placed = [await host_of(client, gpus=1), await host_of(client, gpus=2, model="A30")]
        assert placed == ["cellar", "kept"]
        with pytest.raises(InvalidRequest, match="given away only whole: ask for all GPUs of a host"):
            await host_of(client, gpus=1, model="A30")


@pytest.mark.long
async def test_the_health_signal_keeps_work_away_and_is_an_event(platform: LocalCluster) -> None:
    async with AsyncClient(platform.api_url) as client:

        async def told() -> bool:
            return "gpu.fault" in [event.kind for event in await client.gpu_events("desks:3")]

        await eventually(told, "the event of the fault")
        gpu = await client.gpu("desks:3")
        assert (gpu.state, gpu.reason) == (GpuState.DEGRADED, "its memory is too hot")
        assert (await client.gpu("cellar:3")).state is GpuState.AVAILABLE


@pytest.mark.long
async def test_the_database_of_the_platform_has_the_column(platform: LocalCluster) -> None:
    with closing(sqlite3.connect(platform.config.state_dir / "platform.db")) as database:
        assert database.execute("SELECT DISTINCT note FROM host").fetchall() == [("",)]


@pytest.mark.long
async def test_the_endpoint_answers_its_client_and_its_verb(tree: Tree, platform: LocalCluster) -> None:
    ask = "from gpu_platform.client import Client; print([event.host for event in Client().host_events('desks')])"
    hosts = tree.python("-c", ask, GPU_PLATFORM_API_URL=platform.api_url)
    assert set(json.loads(hosts.replace("'", '"'))) == {"desks"}
    verb = ("-m", "gpu_platform.cli.main", "--api-url", platform.api_url, "hosts", "events", "desks")
    assert "the memory is too hot on GPU 3 of desks" in tree.python(*verb)
    shown = json.loads(tree.python(*verb, "--json", "--limit", "1"))
    assert [event["host"] for event in shown] == ["desks"]


async def host_of(client: AsyncClient, *, gpus: int, model: str | None = None) -> str:
    """The host on which a job of its own runs."""
    spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=gpus, model=model))
    job = await client.wait((await client.submit(spec)).id, timeout_s=30)
    assert job.state is JobState.COMPLETED, job.failure
    assert job.placement is not None
    [host] = job.placement.hosts
    return host
