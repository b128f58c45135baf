"""The recipes of ``docs/contributing`` name what is there, and what they show works.

``tests/integration/test_recipes.py`` follows them in a running platform.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.node.health.fault_policy import FaultPolicy, PastFault
from gpu_platform.store import migrate, models
from gpu_platform.topology.description import MachineDescription
from gpu_platform.topology.machine import machine_of
from gpu_platform.topology.subsets import best_subset
from tests.support import recipes
from tests.support.recipes import PATCHES, RECIPES, ROOT


def test_contributing_names_every_recipe() -> None:
    linked = re.findall(r"docs/contributing/([\w-]+)\.md", (ROOT / "CONTRIBUTING.md").read_text())
    assert sorted(linked) == RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_files_and_names_of_a_recipe_exist(recipe: str) -> None:
    written = recipes.files(recipe)
    assert written, "each step begins with a file"
    new = set(recipes.patched_files(recipe)) if recipe in PATCHES else set()
    page = re.sub(r"```.*?```", "", recipes.text(recipe), flags=re.DOTALL)
    paths = [path for path in re.findall(r"`([\w./-]+/[\w./-]+)`", page) if re.search(r"\.\w+$", path)]
    assert [path for path in [*paths, *made(recipe)] if path not in new and not (ROOT / path).exists()] == []
    for path in written:
        assert (ROOT / path).exists() or path in new or (ROOT / path).parent.is_dir(), path
    sources = "\n".join((ROOT / path).read_text() for path in {*paths, *written} if (ROOT / path).is_file())
    names = re.findall(r"`((?:[a-z]+_[a-z_]+|_[A-Z]+|[A-Z]+_[A-Z_]+|[A-Z][a-z]+[A-Z]\w+))`", page)
    patch = recipes.patch_of(recipe).read_text() if recipe in PATCHES else ""
    assert [name for name in names if name not in sources and name not in patch] == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_check_of_a_recipe_runs_tests_that_exist(recipe: str) -> None:
    checked = re.findall(r"^    \.venv/bin/python -m pytest (.*)$", recipes.text(recipe), re.MULTILINE)
    assert len(checked) == 1
    new = recipes.patched_files(recipe) if recipe in PATCHES else []
    assert [path for path in checked[0].split() if path not in new and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("recipe", PATCHES)
def test_a_recipe_ends_with_the_commands_that_make_all_of_it(recipe: str) -> None:
    apply, *made, check = recipes.commands(recipe)
    assert apply == f"git apply {recipes.patch_of(recipe).relative_to(ROOT)}"
    assert [target for line in made for target in line.split()[1:]] == list(recipes.made(recipe))
    assert check.startswith(".venv/bin/python -m pytest ")


def test_the_page_for_each_patch_links_it() -> None:
    assert [recipe for recipe in RECIPES if f"(patches/{recipe}.patch)" in recipes.text(recipe)] == PATCHES


@pytest.mark.parametrize("recipe", PATCHES)
def test_a_recipe_names_exactly_the_files_of_its_patch(recipe: str) -> None:
    assert sorted(recipes.files(recipe)) == sorted(recipes.patched_files(recipe))


@pytest.mark.parametrize("recipe", PATCHES)
def test_a_patch_applies(recipe: str) -> None:
    patch = recipes.patch_of(recipe).relative_to(ROOT)
    check = ["git", "apply", "--check", patch]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, recipes.RENEW.format(patch=patch, error=done.stderr)


def test_the_xid_rule_is_a_fault_policy(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(recipes.block(recipes.text("xid-rule"), "yaml"))
    policy = FaultPolicy.load(str(file))
    assert policy.action(31) is FaultAction.FAIL_JOB
    assert FaultPolicy.load("platform").action(31) is not FaultAction.FAIL_JOB
    again = [PastFault(cause=13, at_ms=at_ms) for at_ms in (1, 2)]
    assert (policy.action(13), policy.action(13, history=again)) == (FaultAction.RETRY_JOB, FaultAction.SERVICE)


def test_the_machine_type_is_a_machine() -> None:
    machine = MachineDescription.model_validate(yaml.safe_load(recipes.block(recipes.text("machine-type"), "yaml")))
    built = machine_of(machine.inventory("host"))
    assert (built.size, len(built.islands)) == (2, 1)
    assert best_subset(built, built.all_gpus, 2, allow_cross_numa=False) is not None


def test_the_migration_leads_there_and_back(tmp_path: Path) -> None:
    """The recipe's migration behind ours, in a copy of them. After the way back, the schema is ours again."""
    config = Config()
    for path in (migrate.MIGRATIONS, *migrate.MIGRATIONS.rglob("*.py")):
        copy = tmp_path / "migrations" / path.relative_to(migrate.MIGRATIONS)
        copy.mkdir(parents=True, exist_ok=True) if path.is_dir() else _copy(path, copy)
    newest = recipes.newest_migration()
    _, name, code = recipes.migration(newest)
    (tmp_path / "migrations" / "versions" / name).write_text(code)
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    engine = create_engine(f"sqlite:///{tmp_path}/platform.db")
    for revision, differences in (("head", 1), (newest, 0), ("head", 1)):
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            way = command.upgrade if revision == "head" else command.downgrade
            way(config, revision)
            found = compare_metadata(MigrationContext.configure(connection), models.Record.metadata)
        assert len(found) == differences, found
    engine.dispose()


def made(recipe: str) -> list[str]:
    return [path for paths in recipes.made(recipe).values() for path in paths]


def _copy(path: Path, copy: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes())
