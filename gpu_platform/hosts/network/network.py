"""The network of each attempt on this host: which kind it gets, what its links are, what its ranks are told."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
import subprocess
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared
from gpu_platform.hosts.network.choice import NetworkChoice, find_tool
from gpu_platform.hosts.network.firewall import Firewall
from gpu_platform.hosts.network.links import GANG, VXLAN_OVERHEAD, GangLink, NetworkOrder, Uplink, gang_address
from gpu_platform.hosts.network.names import HOSTS, RESOLV_CONF, file_behind, lookup, name_servers, own_hosts_file
from gpu_platform.settings import Settings

LOOPBACK = "127.0.0.1"
RENDEZVOUS_PORTS = range(29_500, 29_516)
"""In a network of its own every port is free. The first is the usual one of torchrun."""
_USUAL_MTU = 1500
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""How NCCL, Gloo and TensorPipe learn which interface leads to the other ranks."""


class HostNetwork:
    """Makes the orders for networks of attempts. Thread-safe."""

    def __init__(self, settings: Settings, choice: NetworkChoice, home: Path, *, cgroup: Path | None) -> None:
        """``cgroup``: the cgroup of all jailed ranks in the tree of cgroup v2, if there is one."""
        self._settings = settings
        self._choice = choice
        tag = hashlib.sha256(str(home).encode()).hexdigest()[:6]
        self._prefix = f"gp{tag}-"
        self.firewall = Firewall(settings, tag, self._prefix, cgroup=cgroup)
        self._mtu = _mtu_of(settings.node.address)

    def start(self) -> None:
        """Write the packet filter, before any rank can start."""
        self.firewall.start()

    def close(self) -> None:
        """Guard the packet filter no longer. It stays, because ranks go on."""
        self.firewall.close()

    @property
    def isolates(self) -> bool:
        """True if an attempt on this host alone has a network of its own."""
        return self._choice.isolated

    @property
    def isolates_gangs(self) -> bool:
        """True if this host can take part in the network of a gang on several hosts."""
        return self._choice.isolated and self._choice.gangs

    def order(self, plan: HostPlan, rendezvous: Prepared) -> NetworkOrder | None:
        """The network of an attempt. None: the host's.

        Raises :class:`HostUnavailable` if the attempt would need the host's network and the settings forbid it.
        """
        if not self._choice.isolated:
            return None
        gang = None
        if plan.world_size > len(plan.ranks) or rendezvous.host != plan.host:
            gang = self._gang(plan, rendezvous)
            if gang is None and self._settings.node.network.mode == "isolated":
                raise HostUnavailable(
                    f"{plan.host} gives each attempt a network of its own (node.network.mode: isolated), but not "
                    f"every host of {plan.key} can do that: let them all, or set node.network.mode to auto"
                )
            if gang is None:
                return None
        uplink = Uplink(self._prefix, _first_half(self._settings.node.network.subnet), self._mtu)
        return NetworkOrder(uplink if self._settings.node.network.allow else None, gang)

    def rendezvous(self, order: NetworkOrder | None, prepared: Prepared) -> Prepared:
        """Where the ranks of the attempt meet, as they see it."""
        if order is None:
            return prepared
        address = LOOPBACK if order.gang is None else gang_address(order.gang.subnet, 0)
        return prepared.model_copy(update={"address": address})

    def environ(self, order: NetworkOrder | None) -> dict[str, str]:
        """What libraries must know about the attempt's interfaces. A name of the host's is not there."""
        if order is None:
            return {}
        return dict.fromkeys(_INTERFACE_VARIABLES, "lo" if order.gang is None else GANG)

    def files(self, order: NetworkOrder | None, directory: Path) -> list[list[str]] | None:
        """Write the files that tell ranks about names into ``directory``. Returns [file, where ranks see it]."""
        if order is None:
            return None
        own = LOOPBACK if order.gang is None else gang_address(order.gang.subnet, order.gang.node_rank)
        servers = name_servers(self._settings.node.network.dns)
        written: list[list[str]] = []
        for name, seen_at, text in (
            ("hosts", HOSTS, own_hosts_file({socket.gethostname(): own})),
            ("resolv.conf", RESOLV_CONF, servers.text()),
        ):
            if seen_at.exists():
                path = directory / name
                path.write_text(text)
                path.chmod(0o644)
                written.append([str(path), file_behind(seen_at)])
        return written

    def _gang(self, plan: HostPlan, rendezvous: Prepared) -> GangLink | None:
        """The link to the other hosts. None: not every host of the gang isolates its ranks' network."""
        addresses = [found[0] for host in rendezvous.gang if (found := lookup(host))]
        distinct = len(set(addresses)) == len(addresses) == len(rendezvous.gang)
        if not (self.isolates_gangs and distinct and len(addresses) > max(1, plan.node_rank)):
            return None
        network = self._settings.node.network
        return GangLink(
            vni=_vni(plan.key),
            node_rank=plan.node_rank,
            hosts=addresses,
            subnet=_second_half(network.subnet),
            port=network.gang_port,
            mtu=self._mtu - VXLAN_OVERHEAD,
        )


def _vni(key: AttemptKey) -> int:
    """The number of the gang's network: the same on all of its hosts, and another for each attempt."""
    digest = hashlib.sha256(f"{key.job_id}/{key.attempt}".encode()).digest()
    return int.from_bytes(digest[:3]) or 1


def _mtu_of(address: str) -> int:
    """The MTU of the interface that has the address: other hosts are behind it."""
    program, found = find_tool("ip"), lookup(address)
    if program is None or not found:
        return _USUAL_MTU
    done = subprocess.run([program, "-j", "addr"], capture_output=True, text=True, check=False, timeout=20)
    for link in json.loads(done.stdout or "[]"):
        if any(entry.get("local") == found[0] for entry in link.get("addr_info", [])) and link["ifname"] != "lo":
            return int(link["mtu"])
    return _USUAL_MTU


def _halves(subnet: str) -> list[str]:
    return [str(half) for half in ipaddress.IPv4Network(subnet).subnets()]


def _first_half(subnet: str) -> str:
    """Addresses of attempts on this host."""
    return _halves(subnet)[0]


def _second_half(subnet: str) -> str:
    """Addresses of ranks within gangs."""
    return _halves(subnet)[1]
