"""Every connection between processes of a cluster goes through a link of its own, which tests can cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from gpu_platform.node.system.ports import free_port
from workers.local.cluster import LocalCluster
from workers.local.supervision import ChildProcess

PROXY = Path(__file__).with_name("proxy.py")


@dataclass(frozen=True)
class LinkName:
    """From the process that connects to what it connects to."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass
class Network:
    """The proxy process and the links through it."""

    _process: subprocess.Popen[str]
    links: list[LinkName] = field(default_factory=list)
    _shapes: dict[LinkName, list[dict[str, Any]]] = field(default_factory=dict)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def add(self, source: str, target: str, host: str, port: int) -> int:
        """The port that ``source`` must use instead."""
        link = LinkName(source, target)
        self.links.append(link)
        return self._ask({"add": str(link), "host": host, "port": port})["port"]

    def of(self, names: Collection[str]) -> list[LinkName]:
        """Links that begin or end at one of these processes."""
        return [link for link in self.links if link.source in names or link.target in names]

    @contextlib.asynccontextmanager
    async def shaped(
        self, links: Collection[LinkName], *, up: dict[str, Any], down: dict[str, Any], reset: bool = False
    ) -> AsyncIterator[None]:
        """The links are like that from here to the end of the block; ``reset``: old connections end with it."""
        shape = {"up": up, "down": down}
        for link in links:
            self._shapes.setdefault(link, []).append(shape)
            await asyncio.to_thread(self._apply, link)
        try:
            yield
        finally:
            for link in links:
                self._shapes[link].remove(shape)
                await asyncio.to_thread(self._apply, link)
                if reset:
                    await asyncio.to_thread(self._ask, {"reset": str(link)})

    def _apply(self, link: LinkName) -> None:
        """The worst of all that is done to it at once."""
        both = {way: _worst([shape[way] for shape in self._shapes[link]]) for way in ("up", "down")}
        self._ask({"set": str(link), **both})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def running_network() -> Iterator[Network]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", str(PROXY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Network(process)
        assert process.poll() is None, "the proxy died"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def lay(network: Network, cluster: LocalCluster) -> None:
    """Before the cluster starts: each process gets addresses of its own for all that it connects to."""
    temporal = int(cluster.temporal_address.rpartition(":")[2])
    for child in cluster.children:
        if child is cluster.temporal:
            continue
        port = network.add(child.name, "temporal", "127.0.0.1", temporal)
        child.env["GPU_PLATFORM_TEMPORAL__ADDRESS"] = f"127.0.0.1:{port}"
        if child in cluster.nodes.values():
            port = network.add(child.name, "service", "127.0.0.1", cluster.config.port)
            child.env["GPU_PLATFORM_API_URL"] = f"http://127.0.0.1:{port}"
            _lay_agent(network, child)
        elif cluster.config.database_url is not None:
            url = make_url(cluster.config.database_url)
            port = network.add(child.name, "database", "127.0.0.1", url.port or 5432)
            child.env["GPU_PLATFORM_DATABASE_URL"] = url.set(port=port).render_as_string(hide_password=False)


def _lay_agent(network: Network, child: ChildProcess) -> None:
    """What other hosts and the service reach of this host."""
    own = free_port()
    port = network.add("peers", child.name, "127.0.0.1", own)
    child.env["GPU_PLATFORM_NODE__PORT"] = str(own)
    child.env["GPU_PLATFORM_NODE__ADVERTISED_URL"] = f"http://127.0.0.1:{port}"


def _worst(shapes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cut": any(shape.get("cut", False) for shape in shapes),
        "delay_s": max((shape.get("delay_s", 0.0) for shape in shapes), default=0.0),
        "stall": max((shape.get("stall", 0.0) for shape in shapes), default=0.0),
    }
