"""Fixtures that more than one kind of test needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.hosts.isolation.isolation import choose_isolation
from gpu_platform.settings import NodeSettings
from gpu_platform.store import Store
from tests.postgres import Databases, find_binaries, running_postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for this test run; tests that need it are skipped where it is not installed."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with running_postgres(binaries) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_databases(postgres_url: str) -> Databases:
    return Databases(postgres_url)


@pytest.fixture(scope="session")
def postgres_template(postgres_databases: Databases) -> str:
    """The name of a migrated, empty database, to be copied."""
    name = postgres_databases.create()
    _migrate(postgres_databases.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("store") / "template.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_store(sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    """A store on a migrated, empty SQLite file, for tests to which the database does not matter."""
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a migrated, empty database; each test runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "platform.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    databases: Databases = request.getfixturevalue("postgres_databases")
    name = databases.create(request.getfixturevalue("postgres_template"))
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store on a migrated, empty database, on SQLite and on PostgreSQL."""
    store = Store(store_url)
    yield store
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three MiB, which a test can fill."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", path], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture(scope="session")
def fences() -> None:
    """Tests that need real fences are skipped where the kernel or root is missing; in CI that is an error."""
    try:
        choose_isolation(NodeSettings(isolation="required"))
    except HostUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def _migrate(url: str) -> None:
    store = Store(url)
    store.migrate()
    store.close()
