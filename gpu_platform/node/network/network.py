"""The network of each attempt on this host: which kind it gets, what its links are, what its ranks are told."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, Prepared
from gpu_platform.node.network.choice import NetworkChoice, find_tool
from gpu_platform.node.network.firewall import Firewall
from gpu_platform.node.network.links import GANG, VXLAN_OVERHEAD, GangLink, NetworkOrder, Uplink, gang_address
from gpu_platform.node.network.names import HOSTS, RESOLV_CONF, file_behind, lookup, name_servers, own_hosts_file
from gpu_platform.node.network.rules import GangPeers
from gpu_platform.node.system import paths, records, tools
from gpu_platform.settings import Settings

log = structlog.get_logger(__name__)

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
        self._home = home
        self._open_attempts: Callable[[], Iterable[AttemptKey]] = tuple
        self._admitted: dict[AttemptKey, GangPeers] = {}
        tag = hashlib.sha256(str(home).encode()).hexdigest()[:6]
        self._prefix = f"gp{tag}-"
        self.firewall = Firewall(settings, tag, self._prefix, cgroup=cgroup)
        self._mtu = _mtu_of(settings.node.address)

    def start(self, open_attempts: Callable[[], Iterable[AttemptKey]] = tuple) -> None:
        """Write the packet filter, before any rank can start. It admits the gangs of ``open_attempts``.

        Without nftables there is none: all attempts have the host's network then, and the host says what is missing.
        """
        self._open_attempts = open_attempts
        if self._choice.filters:
            self.firewall.start(self._gangs_here)
        else:
            log.warning(
                "network.no_filter",
                hint="ranks reach what this host reaches, the platform and a cloud's credentials included; "
                "`gpu-platform hosts describe` says what is missing, mostly nftables (apt-get install nftables)",
            )

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

    def admit(self, key: AttemptKey, order: NetworkOrder | None) -> None:
        """Take frames from the hosts of the attempt's gang, before its ranks start. Raises :class:`HostUnavailable`."""
        if order is not None and order.gang is not None:
            self._admitted[key] = GangPeers(order.gang.vni, order.gang.hosts)
            self._write_gangs(key, must=True)

    def leave(self, key: AttemptKey) -> None:
        """Take no more frames of the attempt's gang. Nothing of the attempt lives here, and it is marked finished."""
        if self._admitted.pop(key, None) is not None or self._recorded_gang(key) is not None:
            self._write_gangs(key)

    def _write_gangs(self, key: AttemptKey, *, must: bool = False) -> None:
        try:
            self.firewall.write_gangs()
        except HostUnavailable as error:
            if must and self.firewall.is_there():
                raise
            # Another program removed the filter. Its guard writes all of it in a moment.
            log.warning("network.gangs_not_written", job=key.job_id, attempt=key.attempt, error=str(error))

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
        hosts = own_hosts_file({socket.gethostname(): own})
        if order.gang is not None:
            hosts += _names_of_peers(order.gang)
        servers = name_servers(self._settings.node.network.dns)
        written: list[list[str]] = []
        for name, seen_at, text in (
            ("hosts", HOSTS, hosts),
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

    def _gangs_here(self) -> list[GangPeers]:
        """The gangs on this host, those of an earlier node worker included."""
        recorded = {
            key: gang
            for key in self._open_attempts()
            if not (paths.attempt_dir(self._home, key) / records.FINISHED).exists()
            and (gang := self._recorded_gang(key)) is not None
        }
        return list((recorded | self._admitted).values())

    def _recorded_gang(self, key: AttemptKey) -> GangPeers | None:
        """The gang that the record of the attempt's jail names. None: no gang on other hosts, or no jail."""
        record = records.read_record(str(paths.attempt_dir(self._home, key) / records.JAIL))
        if record is None:
            return None
        gang = None if record["network"] is None else NetworkOrder.parse(record["network"]).gang
        return None if gang is None else GangPeers(gang.vni, gang.hosts)


def _names_of_peers(gang: GangLink) -> str:
    """Lines for ``/etc/hosts``. Without them PyTorch asks name servers about each peer, and waits if none answers. It
    uses sockets for both versions of IP, which show an IPv4 address as a mapped one."""
    peers = [(gang_address(gang.subnet, rank), f"gang-{rank}") for rank in range(len(gang.hosts))]
    return "".join(f"{address} {name}\n::ffff:{address} {name}\n" for address, name in peers)


def _vni(key: AttemptKey) -> int:
    """The number of the gang's network: the same on all of its hosts, and another for each attempt."""
    digest = hashlib.sha256(f"{key.job_id}/{key.attempt}".encode()).digest()
    return int.from_bytes(digest[:3]) or 1


def _mtu_of(address: str) -> int:
    """The MTU of the interface that has the address: other hosts are behind it."""
    program, found = find_tool("ip"), lookup(address)
    if program is None or not found:
        return _USUAL_MTU
    for link in json.loads(tools.run([program, "-j", "addr"]).output or "[]"):
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
