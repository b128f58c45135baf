"""Keeps the packet filter of this host's ranks in the kernel: written at the start, and again whenever it is gone.

Other programs may throw all tables away (``nft flush ruleset``, a restart of ``nftables.service``). The kernel says
so (netlink(7), NFNLGRP_NFTABLES), and the table is written again at once. The table stays when the node worker ends:
ranks go on.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import structlog

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.network import parse_target
from gpu_platform.node.network.names import control_plane, lookup, name_servers, resolve
from gpu_platform.node.network.nftables import Nftables
from gpu_platform.node.network.rules import FirewallRules, GangPeers, render, render_gangs, table_name
from gpu_platform.settings import Settings

log = structlog.get_logger(__name__)

_NETLINK_NETFILTER = 12
_GROUP_NFTABLES = 1 << 6
"""The bit of NFNLGRP_NFTABLES (7)."""
_NAMES_LAST_S = 60.0
"""Names in ``node.network.allow`` are looked up again after this time."""
_SETTLE_S = 0.2
_BURST_S = 0.05
_ENDS_S = 40.0
_CGROUPS = Path("/sys/fs/cgroup")
"""Where nft looks for cgroups."""
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_ALL_CONNECTIONS = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_PART, _FEWEST, _MOST = 32, 1024, 4096
"""How much of the host's table of connections each attempt gets, if no setting says it."""


class Firewall:
    """The table of one host. Thread-safe."""

    def __init__(self, settings: Settings, tag: str, prefix: str, *, cgroup: Path | None) -> None:
        """``cgroup``: the cgroup of all jailed ranks in the tree of cgroup v2, if there is one."""
        self._settings = settings
        self._prefix = prefix
        self.table = table_name(settings.node.name, tag)
        self._cgroup = _name_for_nft(cgroup)
        self._only_ours = False
        self._written: FirewallRules | None = None
        self._gangs: Callable[[], Iterable[GangPeers]] = tuple
        self._lock = threading.Lock()
        self._nft: Nftables | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, gangs: Callable[[], Iterable[GangPeers]] = tuple) -> None:
        """Write the table, and guard it from now on. Raises :class:`HostUnavailable`.

        ``gangs``: the gangs on this host at the moment.
        """
        self._gangs = gangs
        self._only_ours = self._route_for_ranks()
        self._write()
        self._thread = threading.Thread(target=self._guard, name="firewall", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Guard the table no longer. It stays."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(_ENDS_S)
        if self._nft is not None:
            self._nft.close()
            self._nft = None

    def remove(self) -> None:
        """Remove the table. No rank of this host may live."""
        self.close()
        with contextlib.suppress(HostUnavailable):
            self._run(f"delete table inet {self.table}")
        self.close()

    def is_there(self) -> bool:
        """True while the kernel has the table."""
        try:
            self._run(f"list chain inet {self.table} from_ranks")
        except HostUnavailable:
            return False
        return True

    def closed_ports(self) -> list[int]:
        """Ports of this host that only the platform's own processes bind."""
        rules, node = self._written, self._settings.node
        ports = [node.port, node.network.gang_port]
        own = {"127.0.0.1", "::1", *lookup(node.address)}
        addresses, own_ports = self._control_plane if rules is None else (rules.control_plane, rules.own_ports)
        if not own.isdisjoint(addresses):
            ports += own_ports
        return sorted({port for port in ports if port})

    @cached_property
    def _control_plane(self) -> tuple[Sequence[str], Sequence[int]]:
        """Addresses and ports, on a host that writes no table and so looks nothing up again."""
        return control_plane(self._settings)

    def write_gangs(self) -> None:
        """Admit the gangs of this moment, and no others.

        Raises :class:`HostUnavailable`. If another program has just removed the table, the guard writes all of it.
        """
        with self._lock:
            self._run(render_gangs(self.table, self._gangs()))

    def _write(self) -> None:
        """Replace the table at once, if what it says has changed or it is gone."""
        rules = self._rules()
        with self._lock:
            if rules != self._written or not self.is_there():
                self._run(render(replace(rules, gangs=list(self._gangs()))))
                self._written = rules

    def _rules(self) -> FirewallRules:
        network = self._settings.node.network
        parsed = [parse_target(entry) for entry in network.allow]
        addresses, ports = control_plane(self._settings)
        own = [port for port in (*ports, self._settings.node.port) if port]
        return FirewallRules(
            table=self.table,
            prefix=self._prefix,
            subnet=network.subnet,
            gang_port=network.gang_port,
            internet=None in parsed,
            allowed=resolve(target for target in parsed if target is not None),
            dns=name_servers(network.dns).servers if network.allow else [],
            control_plane=addresses,
            own_ports=own,
            cgroup=self._cgroup,
            only_ours=self._only_ours,
            connections=network.connections or most_connections(),
        )

    def _route_for_ranks(self) -> bool:
        """Let this machine forward packets. True: it does so for ranks only, because it did not before."""
        if not self._settings.node.network.allow:
            return False
        if _FORWARDING.read_text().strip() == "1":
            listed = self._run(f"list chain inet {self.table} to_others") if self.is_there() else ""
            return "routes for ranks only" in listed
        log.warning(
            "network.forwarding_on",
            hint="net.ipv4.ip_forward was 0. It is 1 now, and this host forwards for its ranks only. If the machine is "
            "to route for others as well, set it in /etc/sysctl.d and restart the node worker.",
        )
        try:
            _FORWARDING.write_text("1\n")
        except OSError as error:
            raise HostUnavailable(
                f"net.ipv4.ip_forward is 0 here and cannot be changed ({error.strerror}), so ranks would reach nothing "
                "outside: set it to 1 on the machine, empty node.network.allow, or use node.network.mode: host"
            ) from error
        return True

    def _run(self, commands: str) -> str:
        if self._nft is None:
            self._nft = Nftables()
        return self._nft.run(commands)

    def _guard(self) -> None:
        """Write the table again when another program removed it, or when a name has other addresses."""
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as news:
            news.bind((0, _GROUP_NFTABLES))
            news.settimeout(_SETTLE_S)
            waited_s = 0.0
            while not self._end.is_set():
                try:
                    news.recv(65_536)
                except TimeoutError:
                    waited_s += _SETTLE_S
                    if waited_s < _NAMES_LAST_S:
                        continue
                except OSError:  # more news than the socket holds
                    pass
                else:
                    self._drain(news)
                    if self.is_there():
                        continue
                waited_s = 0.0
                try:
                    self._write()
                except HostUnavailable:
                    log.exception("network.rules_not_written", table=self.table)

    def _drain(self, news: socket.socket) -> None:
        """Read what comes within a moment: some programs change hundreds of rules in a row."""
        self._end.wait(_BURST_S)
        with contextlib.suppress(OSError):
            while True:
                news.recv(65_536, socket.MSG_DONTWAIT)


def most_connections(file: Path = _ALL_CONNECTIONS) -> int:
    """How many connections an attempt may have: a part of what the kernel keeps for the whole machine."""
    try:
        kept = int(file.read_text())
    except (OSError, ValueError):  # nothing asked for this table yet, so the file is not there
        return _MOST
    return max(_FEWEST, min(_MOST, kept // _PART))


def _name_for_nft(cgroup: Path | None) -> str | None:
    """The cgroup as nft names it. It is made if it is missing."""
    if cgroup is None or not cgroup.is_relative_to(_CGROUPS):
        return None
    cgroup.mkdir(parents=True, exist_ok=True)
    return str(cgroup.relative_to(_CGROUPS))
