"""A Temporal server as production has it: four services in six processes, which find each other through PostgreSQL."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import make_url
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.node.system.ports import free_port
from tests.chaos.killable_postgres import Server
from tests.real_cluster.binaries import program
from tests.support.temporal_server import client_of_new_namespace
from tests.support.waiting import eventually
from workers.local.dev_server import DYNAMIC_CONFIG
from workers.local.supervision import ChildProcess

PROCESSES: tuple[str, ...] = ("frontend", "history-1", "history-2", "matching-1", "matching-2", "worker")
SHARDS = 16
"""Of histories, dealt out to the history processes; it can never be changed later. One shard writes one thing at a time
to PostgreSQL, so a few would be the limit; each costs some queries while nothing happens. With 16 both processes have
some (that one has all of 4 is likely: a chance of 1 in 8), and they write more than one PostgreSQL takes."""
DEPLOYED = Path(__file__).parents[2] / "deploy" / "temporal" / "dynamicconfig.yaml"
DATABASES = {"temporal": "temporal", "temporal_visibility": "visibility"}
"""Database -> the schema in it, which the tool has inside."""
READY_S = 60.0


class RealTemporal:
    """``async with RealTemporal(directory, database) as temporal``: ready, with the namespace ``default``."""

    def __init__(self, directory: Path, database: Server, shards: int = SHARDS) -> None:
        self._directory = directory
        self._shards = shards
        self._database = make_url(database.url)
        self._ports = {name: (free_port(), free_port()) for name in PROCESSES}
        """Process -> ports of its gRPC and of its membership."""
        self.processes = {name: self._process(name) for name in PROCESSES}

    @property
    def address(self) -> str:
        """Host and port of the frontend."""
        return f"127.0.0.1:{self._ports['frontend'][0]}"

    async def __aenter__(self) -> RealTemporal:
        await self.make_tables()
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "dynamic.yaml").write_text(yaml.safe_dump(dynamic_config()))
        for name in PROCESSES:
            self._config_file(name).write_text(yaml.safe_dump(self._config(name)))
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def make_tables(self) -> None:
        """Make the databases, with empty tables."""
        await asyncio.gather(*[asyncio.to_thread(self._make_tables, database) for database in DATABASES])

    async def start(self) -> None:
        """Start all processes, and wait until the namespace ``default`` is ready."""
        first, *others = self.processes.values()
        await first.start()
        # It writes what all share about the cluster; of several that do so at once, some would end.
        await eventually(lambda: _listens(self.address), f"{first.name} to listen", within_s=READY_S)
        for process in others:
            await process.start()
        client = await client_of_new_namespace(self.address, "default")
        await eventually(lambda: _answers(client, self._shards), "Temporal to be ready", within_s=READY_S)

    async def __aexit__(self, *_: object) -> None:
        # They are asked for nothing any more, and what they have written goes, too.
        await asyncio.gather(*[process.kill() for process in self.processes.values()])

    def _make_tables(self, database: str) -> None:
        self._tool(database, "create-database")
        self._tool(database, "setup-schema", "-v", "0.0")
        self._tool(database, "update-schema", "--schema-name", f"postgresql/v12/{DATABASES[database]}")

    def _tool(self, database: str, *arguments: str) -> None:
        url = self._database
        where = ["--plugin", "postgres12", "--ep", str(url.host), "--port", str(url.port), "--user", str(url.username)]
        command = [str(program("sql")), *where, "--db", database, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"

    def _process(self, name: str) -> ChildProcess:
        file, service = str(self._config_file(name)), name.split("-")[0]
        argv = [str(program("server")), "--config-file", file, "--allow-no-auth", "start", "--service", service]
        return ChildProcess(f"temporal-{name}", argv, self._directory / f"{name}.log")

    def _config_file(self, name: str) -> Path:
        return self._directory / f"{name}.yaml"

    def _config(self, name: str) -> dict[str, Any]:
        # Each process wants to know all services, but reads only its own ports: the others tell it theirs.
        ports = {process.split("-")[0]: self._ports[process] for process in (*PROCESSES, name)}
        return {
            "log": {"stdout": True, "level": "warn"},
            "persistence": {
                "defaultStore": "temporal",
                "visibilityStore": "temporal_visibility",
                "numHistoryShards": self._shards,
                "datastores": {database: {"sql": self._store(database)} for database in DATABASES},
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
            "services": {
                service: {"rpc": {"grpcPort": grpc, "membershipPort": membership, "bindOnLocalHost": True}}
                for service, (grpc, membership) in ports.items()
            },
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {
                    "active": {
                        "enabled": True,
                        "initialFailoverVersion": 1,
                        "rpcName": "frontend",
                        "rpcAddress": self.address,
                    }
                },
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "dynamicConfigClient": {"filepath": str(self._directory / "dynamic.yaml"), "pollInterval": "60s"},
        }

    def _store(self, database: str) -> dict[str, Any]:
        return {
            "pluginName": "postgres12",
            "databaseName": database,
            "connectAddr": f"{self._database.host}:{self._database.port}",
            "connectProtocol": "tcp",
            "user": self._database.username,
            "maxConns": 20,
            "maxIdleConns": 20,
            "maxConnLifetime": "1h",
        }


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def dynamic_config() -> dict[str, Any]:
    """What ``up`` gives its dev server, and what is deployed."""
    values: dict[str, Any] = yaml.safe_load(DEPLOYED.read_text())
    for item in DYNAMIC_CONFIG:
        key, _, value = item.partition("=")
        values[key] = [{"value": yaml.safe_load(value)}]
    return values


async def _answers(client: Client, shards: int) -> bool:
    """Every shard of histories has an owner that answers, and workflows are found by our search attributes."""
    try:
        await client.count_workflows("GpuPlatformUser = 'nobody'")
        for number in range(4 * shards):
            try:
                await client.get_workflow_handle(f"nothing-{number}").describe()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or "namespace" in str(error).lower():
                    return False
    except RPCError:
        return False
    return True
