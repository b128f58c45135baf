"""The whole platform on one machine: Temporal dev server, SQLite or PostgreSQL, every process, and its hosts.

``up``, the demo, the integration tests and the benchmarks all run this.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpu_platform.client.credentials import TOKEN_FILE
from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import key_ring, names, signing
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.enrolment import JoinToken
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.identity.node_tokens import NodeTokens
from gpu_platform.node.system.ports import free_port
from gpu_platform.private_files import PUBLIC, make_private_directory, write_file
from gpu_platform.settings.reading import read_settings
from gpu_platform.store import Store
from gpu_platform.store.hosts import identities
from workers.fleet.spec import FleetSpec
from workers.local import fleets
from workers.local.dev_server import dev_server_argv
from workers.local.gateway import LocalGateway
from workers.local.metrics_ports import MetricsPorts
from workers.local.readiness import READY_TIMEOUT_S, ClusterReadiness, diagnosis
from workers.local.supervision import ChildProcess
from workers.local.token import forget_token, local_token, note_token


@dataclass(frozen=True)
class NodeSpec:
    """One host of the local cluster."""

    name: str
    simulate: str | None = None
    """The machine description to simulate. None: use the GPUs of this machine."""
    leaf: str | None = None
    spine: str | None = None


DEMO_NODES = (
    NodeSpec("dgx-a", "dgx-h100", leaf="leaf-1", spine="spine-1"),
    NodeSpec("dgx-b", "dgx-h100", leaf="leaf-1", spine="spine-1"),
    NodeSpec("dgx1-c", "dgx-1v", leaf="leaf-2", spine="spine-1"),
    NodeSpec("pcie-d", "l40s-4x-dual-socket", leaf="leaf-2", spine="spine-1"),
)


@dataclass
class ClusterConfig:
    """The parts of a local cluster."""

    state_dir: Path
    nodes: tuple[NodeSpec, ...] = DEMO_NODES
    port: int = 0
    temporal_port: int = 0
    temporal_ui_port: int = 0
    """0: any free port. The same holds for all three ports."""
    ui: bool = True
    temporal_address: str | None = None
    """A Temporal server that runs already, host and port, with our search attributes in its namespace ``default``.
    None: the cluster has a dev server."""
    services: int = 1
    """How many services. Hosts know all of them; all but the first have any free port."""
    schedulers: int = 2
    """How many scheduler processes. One leads, the others stand by."""
    control_workers: int = 1
    database_url: str | None = None
    tls: bool = False
    """TLS between service, node workers and clients: with a CA, and a join token for each node worker."""
    fleets: tuple[FleetSpec, ...] = ()
    """Many simulated hosts in few processes."""
    gateway: bool = False
    """Hosts reach Temporal through a node gateway, with certificates. On one machine they need not."""
    fixed_metrics_ports: bool = False
    """Metrics at the ports of the settings, so that Prometheus finds them; False: at any free ones."""
    needs_hosts: bool = True
    """Its start fails if a host does not register. False: it runs without, and ``missing_hosts`` names them."""
    settings: dict[str, str] = field(default_factory=dict)
    """More ``GPU_PLATFORM_…`` variables for every process."""


class LocalCluster:
    """``async with LocalCluster(config) as cluster`` starts everything and stops it in reverse order."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.missing_hosts: set[str] = set()
        """Those that had not registered when :meth:`wait_until_ready` returned."""
        self._choose_ports()
        state = config.state_dir
        self.env = {
            "GPU_PLATFORM_STATE_DIR": str(state),
            "GPU_PLATFORM_API_URL": self.api_url,
            **({"GPU_PLATFORM_API_URLS": json.dumps(self.api_urls[1:])} if config.services > 1 else {}),
            "GPU_PLATFORM_TEMPORAL__ADDRESS": self.temporal_address,
            "GPU_PLATFORM_TEMPORAL__UI_URL": self.ui_url,
            "GPU_PLATFORM_KEY_RING": str(self.keys),
            "GPU_PLATFORM_SIGNING_KEY": str(self.signing_key),
            **({"GPU_PLATFORM_DATABASE_URL": config.database_url} if config.database_url else {}),
            **_open_namespaces(),
            **({"GPU_PLATFORM_TLS__ENABLED": "true"} if config.tls else {}),
            **config.settings,
        }
        self._dev_servers = [] if config.temporal_address else [self._dev_server()]
        self.services = [self._service(number) for number in range(config.services)]
        ports = MetricsPorts(fixed=config.fixed_metrics_ports)
        self.controls = [
            self._module(f"control-{index + 1}", "workers.control", ports.control(index))
            for index in range(config.control_workers)
        ]
        self.schedulers = [
            self._module(f"scheduler-{index + 1}", "workers.scheduler", ports.scheduler(index))
            for index in range(config.schedulers)
        ]
        self.gateway = LocalGateway(config.state_dir / "gateway") if config.gateway else None
        self._gateways = (
            []
            if self.gateway is None
            else [self._module("gateway", "workers.gateway", {**self.gateway.env, **ports.gateway()})]
        )
        self.nodes = {node.name: self._node(node, ports.node(index)) for index, node in enumerate(config.nodes)}
        self.fleets = [self._fleet(fleet, *part) for fleet in config.fleets for part in fleet.parts()]

    @property
    def temporal(self) -> ChildProcess:
        """The dev server. Only in a cluster that has one."""
        [server] = self._dev_servers
        return server

    @property
    def service(self) -> ChildProcess:
        """The service; of several, the first."""
        return self.services[0]

    @property
    def api_url(self) -> str:
        """Address of the REST service; of several, the first."""
        return self.api_urls[0]

    @property
    def api_urls(self) -> list[str]:
        """Addresses of all services."""
        return [f"{'https' if self.config.tls else 'http'}://127.0.0.1:{port}" for port in self._service_ports]

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which a request may do everything. The token is in the state directory."""
        return {"Authorization": f"Bearer {(self.config.state_dir / TOKEN_FILE).read_text().strip()}"}

    @property
    def temporal_address(self) -> str:
        """Host and port of the Temporal server."""
        return self.config.temporal_address or f"127.0.0.1:{self.config.temporal_port}"

    @property
    def ui_url(self) -> str:
        """Address of the Temporal UI."""
        return f"http://127.0.0.1:{self.config.temporal_ui_port}"

    @property
    def database_url(self) -> str:
        """Address of the database."""
        return self.config.database_url or f"sqlite:///{self.config.state_dir / 'platform.db'}"

    @property
    def signing_key(self) -> Path:
        """The key that signs orders to hosts. Its public key is next to it, with the suffix ``.pub``."""
        return self.keys.with_name("orders.key")

    @property
    def keys(self) -> Path:
        """The key ring of the cluster."""
        return self.config.state_dir / "keys" / "ring.json"

    def node_keys(self, name: str) -> Path:
        """The keys that a host's node worker gets: they open only what is meant for this host."""
        return self.keys.with_name(f"node-{name}.json")

    @property
    def children(self) -> list[ChildProcess]:
        """All processes, in the order in which they are started."""
        return [
            *self._dev_servers,
            *self.services,
            *self.controls,
            *self.schedulers,
            *self._gateways,
            *self.nodes.values(),
            *self.fleets,
        ]

    async def __aenter__(self) -> LocalCluster:
        await asyncio.to_thread(self.prepare)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def prepare(self) -> None:
        """Make what processes find in the state directory: tables, a token, keys. It is on disk when this returns.

        What is there already stays. Another process may do this for the one that calls :meth:`start`.
        """
        make_private_directory(self.config.state_dir)
        store = Store(self.database_url)
        try:
            store.migrate(accept_newer=read_settings().newer_schema == "accept")
            local_token(store, self.config.state_dir)
            self._give_identities(store)
        finally:
            store.close()
        self._make_keys()

    async def start(self) -> None:
        """Start all processes on a state directory that is prepared, and wait until they are ready."""
        try:
            note_token(self.api_url, self.config.state_dir)
            for child in self.children:
                await child.start()
            await self.wait_until_ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all processes. Node workers leave their ranks running: those belong to the jobs."""
        # Hosts ask for a restart lease, so the processes that answer them stop later, and Temporal last.
        hosts = [*self.nodes.values(), *self.fleets]
        await asyncio.gather(*[child.stop() for child in hosts])
        others = [child for child in self.children if child not in (*self._dev_servers, *hosts)]
        await asyncio.gather(*[child.stop() for child in others])
        await asyncio.gather(*[child.stop() for child in self._dev_servers])
        forget_token(self.api_url, self.config.state_dir)

    def _give_identities(self, store: Store) -> None:
        """What node workers need to prove who they are: the secret of the node tokens, or a join token for each."""
        if not self.config.tls:
            NodeTokens.open(self._identity_dir)
            return
        ca_dir = self._identity_dir / "ca"
        if not CertificateAuthority.is_in(ca_dir):
            CertificateAuthority.init(ca_dir)
        ca, now = CertificateAuthority.load(ca_dir), datetime.now(UTC)
        write_file(self.ca_file, ca.bundle(), PUBLIC)
        for node in self.config.nodes:
            path, token = names.node(node.name), JoinToken.make(ca.fingerprint)
            expires_at = now + timedelta(hours=1)
            identities.add_join_token(
                store, token.secret, path, address=None, actor="up", expires_at=expires_at, now=now
            )
            write_file(self._join_token_file(node.name), str(token).encode())

    @property
    def _identity_dir(self) -> Path:
        return self.config.state_dir / "identity"

    @property
    def ca_file(self) -> Path:
        """The authorities that clients of a cluster with TLS trust."""
        return self._identity_dir / "ca.pem"

    def _join_token_file(self, node: str) -> Path:
        return self._identity_dir / f"join-token-{node}"

    # -- start ---------------------------------------------------------------------------------

    def _choose_ports(self) -> None:
        config = self.config
        for name, option in (
            ("port", "--port"),
            ("temporal_port", "--temporal-port"),
            ("temporal_ui_port", "--ui-port"),
        ):
            wanted = getattr(config, name)
            if wanted == 0:
                setattr(config, name, free_port())
            elif not _is_free(wanted):
                raise CannotStart(
                    f"port {wanted} on 127.0.0.1 is in use by another program: "
                    f"choose another with {option} (0: any free one), or stop that program"
                )
        self._service_ports = [config.port]
        while len(self._service_ports) < config.services:
            self._service_ports.append(free_port())

    def _make_keys(self) -> None:
        if self.gateway is not None:
            self.gateway.make_certificates(list(self.nodes))
        key_ring.create(self.keys)
        signing.create(self.signing_key)
        ring = KeyRing.load(self.keys)
        for name in self.nodes:
            ring.scoped(node_task_queue(name)).export(self.node_keys(name))

    def _dev_server(self) -> ChildProcess:
        # Its pages ask the service for payloads in clear, with the token that their user has signed in with there.
        ui = ("--ui-port", str(self.config.temporal_ui_port), "--ui-codec-endpoint", f"{self.api_url}/v1/temporal")
        database = self.config.state_dir / "temporal.db"
        argv = dev_server_argv(database, self.config.temporal_port, ui if self.config.ui else ())
        return self._child("temporal", argv, {})

    def _service(self, number: int) -> ChildProcess:
        port = {"GPU_PLATFORM_SERVICE__PORT": str(self._service_ports[number])}
        return self._module(f"service-{number + 1}" if number else "service", "workers.service", port)

    def _node(self, node: NodeSpec, port: dict[str, str]) -> ChildProcess:
        env = {
            **port,
            "GPU_PLATFORM_NODE__NAME": node.name,
            "GPU_PLATFORM_KEY_RING": str(self.node_keys(node.name)),
            "GPU_PLATFORM_NODE__ORDER_KEYS": str(self.signing_key.with_suffix(".pub")),
            **({} if self.gateway is None else self.gateway.env_of(node.name)),
        }
        for key, value in (("SIMULATE", node.simulate), ("LEAF", node.leaf), ("SPINE", node.spine)):
            if value is not None:
                env[f"GPU_PLATFORM_NODE__{key}"] = value
        if self.config.tls:
            # A directory of its own, as on another machine: it cannot read the key of the CA.
            env["GPU_PLATFORM_TLS__DIR"] = str(self._identity_dir / "nodes" / node.name)
            env["GPU_PLATFORM_NODE__JOIN_TOKEN_FILE"] = str(self._join_token_file(node.name))
        return self._module(f"node-{node.name}", "workers.node", env)

    def _fleet(self, fleet: FleetSpec, first: int, before: int) -> ChildProcess:
        env = {"GPU_PLATFORM_NODE__ORDER_KEYS": str(self.signing_key.with_suffix(".pub"))}
        return self._child(f"fleet-{fleet.name}-{first}", fleets.argv(fleet, first, before), env)

    def _module(self, name: str, module: str, env: dict[str, str] | None = None) -> ChildProcess:
        return self._child(name, [sys.executable, "-P", "-m", module], env)

    def _child(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> ChildProcess:
        log_file = self.config.state_dir / "logs" / f"{name}.log"
        return ChildProcess(name, argv, log_file, {**getattr(self, "env", {}), **(env or {})})

    async def wait_until_ready(self) -> None:
        """Wait until the service is ready and every host has registered, in service or drained.

        Raises :class:`CannotStart`. See :attr:`ClusterConfig.needs_hosts`.
        """
        patience_s = READY_TIMEOUT_S + fleets.registration_s(self.config.fleets)
        ready = ClusterReadiness(self.api_urls, self.headers, self.ca_file if self.config.tls else None)
        wanted = set(self.nodes) | fleets.names(self.config.fleets)
        try:
            self.missing_hosts = await ready.missing(wanted, {} if self.config.needs_hosts else self.nodes, patience_s)
            if self.missing_hosts and self.config.needs_hosts:
                raise CannotStart(f"not ready after {patience_s:.0f} s: {fleets.some_of(self.missing_hosts)}")
        except CannotStart as error:
            raise CannotStart(f"{error.message}\n{diagnosis(self.children)}".strip()) from None


def _open_namespaces() -> dict[str, str]:
    """On one's own machine a job may name any namespace, unless the settings say otherwise."""
    said = read_settings().access.model_fields_set
    return {} if said & {"open_namespaces", "namespaces"} else {"GPU_PLATFORM_ACCESS__OPEN_NAMESPACES": "true"}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
