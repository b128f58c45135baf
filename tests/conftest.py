"""Fixtures that more than one kind of test needs."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from temporalio.client import Client

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.settings import NodeSettings
from gpu_platform.store import Store
from tests.support.examples import few
from tests.support.forking import SERVER
from tests.support.lan import Machine
from tests.support.postgres import Databases, find_binaries, running_postgres
from tests.support.state_guard import GuardedStore
from tests.support.temporal_server import client_of_new_namespace, running_temporal
from workers.local import cluster, supervision

WAITING, WORKING = ("browser", "chaos", "integration", "workflows", "security"), ("property", "unit")
"""Folders whose tests mostly wait, and those whose tests mostly compute, each with the longest tests first."""
# How long an example takes says how busy the machine is. Benchmarks measure; tests do not.
hypothesis.settings.register_profile(
    "untimed",
    hypothesis.settings(),
    max_examples=few(100),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("untimed")

WITH_GRPC = (
    "test_node_gateway.py",
    "test_grpc_platform.py",
    "test_grpc.py",
    "test_grpc_contract.py",
    "test_grpc_server.py",
    "test_asking.py",
    "test_grpc_client.py",
    "test_grpc_attacks.py",
    "test_grpc_messages.py",
    "test_gateway_floods.py",
    "test_tls_mix_ups.py",
    "test_ended_tokens.py",
)
"""They come first. gRPC starts its threads anew after each fork, also after one in another network namespace, which
other tests enter: what a worker process then sends by gRPC would never arrive."""
COMPILED: dict[type, Any] = {}
SEEN: dict[tuple[Path, str], list[pytest.Item]] = {}
SERVERS = pytest.StashKey[dict[str, str]]()
OF_SERVERS = frozenset({"temporal_address", "postgres_url"})
"""Fixtures that start a server."""

# Drawing a traceback with local variables takes 200 ms of CPU, in tests that raise many.
_PRINTER = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PRINTER])

# A shell starts a command in the background (``make test &``) deaf to Ctrl-C, and all its descendants would be so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called before pytest-xdist starts a worker process. All workers use the servers of their parent."""
    config: pytest.Config = node.config
    if SERVERS not in config.stash:
        servers = config.stash[SERVERS] = {}
        if "not processes" not in config.getoption("markexpr"):
            stack = ExitStack()
            config.add_cleanup(stack.close)
            servers["temporal_address"] = stack.enter_context(running_temporal())
            if (binaries := find_binaries()) is not None:
                servers["postgres_url"] = stack.enter_context(running_postgres(binaries))
    node.workerinput.update(config.stash[SERVERS])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Tests of the dashboard share one browser and one platform, so one worker takes all of their files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/browser" if nodeid.startswith("tests/browser/") else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Some tests run the start of a process, which sends all log lines to its stderr."""
    structured, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.get_config() != structured:
        structlog.configure(**structured)
        root.handlers[:] = handlers
        root.setLevel(level)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers of pytest-xdist take files in this order: both kinds at a time, so that the cores are busy, and no worker
    is left alone with long tests at the end."""
    if not hasattr(config, "workerinput"):
        return
    places: dict[Path, float] = {item.path: -1.0 for item in items if item.path.name in WITH_GRPC}
    for kind in (WAITING, WORKING):
        files = [
            path
            for folder in kind
            for path in dict.fromkeys(item.path for item in items)
            if folder_of(path) == folder and path.name not in WITH_GRPC
        ]
        places |= {path: number / len(files) for number, path in enumerate(files)}
    items.sort(key=lambda item: places.get(item.path, 0.0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: to look through it for garbage takes a third of the time of collecting, and
    later some of the time of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def folder_of(test: Path) -> str:
    return test.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(scope="session", autouse=True)
def guarded_clusters() -> Iterator[None]:
    """The databases of the clusters that tests start refuse wrong steps of states, as those of ``store`` do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "Store", GuardedStore)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_clusters() -> Iterator[None]:
    """The processes of clusters are forked from the same server as commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "SERVER", SERVER)
        yield
    SERVER.close()


@pytest.fixture(scope="session", autouse=True)
def own_credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep their tokens for themselves, and find none of the person who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        for name in ("GPU_PLATFORM_TOKEN", "GPU_PLATFORM_TOKEN_FILE", "GPU_PLATFORM_USER"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The PostgreSQL server of this test run; tests that need it are skipped where it is not installed."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    if (url := _of_parent(pytestconfig, "postgres_url")) is not None:
        yield url
        return
    with running_postgres(binaries) as url:
        yield url


@pytest.fixture(scope="session")
def temporal_address(pytestconfig: pytest.Config) -> Iterator[str]:
    """The Temporal server of this test run."""
    if (address := _of_parent(pytestconfig, "temporal_address")) is not None:
        yield address
        return
    with running_temporal() as address:
        yield address


@pytest.fixture
async def temporal(temporal_address: str) -> Client:
    """A client of the run's Temporal server, in a namespace of the test's own."""
    return await client_of_new_namespace(temporal_address)


def _of_parent(config: pytest.Config, name: str) -> str | None:
    """A value that the parent gave to this worker process. None: this process is no worker of pytest-xdist."""
    return getattr(config, "workerinput", {}).get(name)


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


@pytest.fixture
def jails(can_jail: None) -> Iterator[None]:
    """For tests with real jails. The test is on a machine of its own: packet filter and links of the real one stay."""
    machine = Machine("jails")
    with machine.here():
        yield
    machine.close()


@pytest.fixture(scope="session")
def can_jail() -> None:
    """Tests that need real jails are skipped where the kernel or root is missing; in CI that is an error."""
    try:
        choose_isolation(NodeSettings(isolation="required"))
    except HostUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def _migrate(url: str) -> None:
    store = GuardedStore(url)
    store.migrate()
    store.close()


@event.listens_for(Engine, "engine_connect")
def _share_compiled_statements(connection: Connection) -> None:
    """Each test has engines of its own. To compile the same statements for each anew takes a fifth of the time of
    tests of the store."""
    engine = connection.engine
    engine._compiled_cache = COMPILED.setdefault(type(connection.dialect), engine._compiled_cache)


# Any two dialects of one type compile a statement to the same text.
for _dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
    _dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    _dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of a test with many arguments, ``make test`` takes some: see the marker ``some``. A test that needs a server has
    the marker ``processes``; others that start processes say so themselves."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    if params.get("store_url") == "postgresql" or not OF_SERVERS.isdisjoint(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.processes)
    if (some := item.get_closest_marker("some")) is not None:
        of_it = SEEN.setdefault((item.path, getattr(item, "originalname", item.name)), [])
        of_it.append(item)
        if len(of_it) > some.args[0]:
            item.add_marker(pytest.mark.long)
