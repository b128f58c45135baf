"""The packet filter of a host's ranks, as one nftables table of the node worker's own: nft(8).

The table is written once for all attempts: it knows their links by the beginning of the names of interfaces, so a
launch changes no rule. No rule of others is read or changed. It only refuses: what another table drops stays dropped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_platform.domain.hosts.network import Target

NOT_INTERNET = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("224.0.0.0/3",),
)
"""What is no public address (IANA's special-purpose registry, RFC 6890; multicast and class E)."""
_METADATA = "169.254.0.0/16"
"""Link-local addresses. Clouds serve a machine's credentials there."""
_PRIORITY = -10
"""Before the filters of others, so that users get our answer and not their silence."""


@dataclass(frozen=True)
class Rules:
    """All that the table depends on. Addresses are IPv4."""

    table: str
    prefix: str
    """The names of the interfaces of attempts begin with it."""
    subnet: str
    """The addresses of attempts and gangs."""
    gang_port: int
    internet: bool
    allowed: Sequence[Target] = ()
    """Only with networks; names are resolved."""
    dns: Sequence[str] = ()
    control_plane: Sequence[str] = ()
    """Addresses of the service and of Temporal."""
    own_ports: Sequence[int] = ()
    """Ports of this host that ranks with the host's network are refused."""
    cgroup: str | None = None
    """The cgroup of all jailed ranks, below ``/sys/fs/cgroup``. None: the kernel has no cgroup v2."""
    only_ours: bool = False
    """This machine forwards packets only for ranks: everything else that it would forward is refused."""
    peers: Sequence[str] = field(default=())


def table_name(host: str, tag: str) -> str:
    """The name of a host's table. It is unique on this machine."""
    return f"gpu_platform_{re.sub('[^A-Za-z0-9_]', '_', host)[:60]}_{tag}"


def render(rules: Rules) -> str:
    """The commands that replace the table at once (nft -f)."""
    exact = [target for target in rules.allowed if target.is_exact]
    exact += [Target(network=ipaddress.IPv4Network(server), ports=(53, 53)) for server in rules.dns]
    wide = [target for target in rules.allowed if not target.is_exact]
    ours = f'"{rules.prefix}*"'
    last = f"ip daddr != {_set(NOT_INTERNET)} accept" if rules.internet else ""
    body = [
        *_chain("refuse", ["meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"]),
        *_chain(
            "from_ranks",
            [
                "meta nfproto ipv6 jump refuse",
                'fib saddr . iif oif missing drop comment "a forged sender"',
                "ct state established,related accept",
                f'ip daddr {rules.subnet} jump refuse comment "other attempts"',
                f'udp dport {rules.gang_port} jump refuse comment "the gangs of others"',
                *map(_accept, exact),
                'fib daddr type local jump refuse comment "this host"',
                f'ip daddr {_set([_METADATA, *rules.control_plane])} jump refuse comment "the platform, metadata"',
                *map(_accept, wide),
                *([last] if last else []),
                "jump refuse",
            ],
        ),
        *_chain("to_this_host", [f"iifname {ours} jump from_ranks"], hook="input"),
        *_chain(
            "to_others",
            [
                f"iifname {ours} jump from_ranks",
                f"oifname {ours} ct state established,related accept",
                f'oifname {ours} jump refuse comment "nobody connects to ranks"',
                *(['jump refuse comment "this machine routes for ranks only"'] if rules.only_ours else []),
            ],
            hook="forward",
        ),
        *_chain(
            "from_this_host",
            [
                f"oifname != {ours} return",
                "ct state established,related accept",
                "meta l4proto icmp accept",
                'jump refuse comment "nobody connects to ranks"',
            ],
            hook="output",
        ),
        *_masquerade(rules, ours),
        *_host_network(rules, exact),
    ]
    name = f"inet {rules.table}"
    return "\n".join([f"table {name}", f"delete table {name}", f"table {name} {{", *body, "}", ""])


def _masquerade(rules: Rules, ours: str) -> list[str]:
    rule = f"ip saddr {rules.subnet} oifname != {ours} masquerade"
    return ["chain leaving {", "type nat hook postrouting priority srcnat; policy accept;", rule, "}"]


def _host_network(rules: Rules, exact: Iterable[Target]) -> list[str]:
    """For ranks in the host's network: the platform and metadata are refused, everything else is as on the host."""
    if rules.cgroup is None:
        return []
    level = rules.cgroup.count("/") + 1 - rules.cgroup.startswith("unified/")
    refused = [
        *map(_accept, exact),
        f"ip daddr {_set([_METADATA])} jump refuse",
        *(
            ["fib daddr type local tcp dport " + _set(map(str, rules.own_ports)) + " jump refuse"]
            * bool(rules.own_ports)
        ),
        *([f"ip daddr {_set(rules.control_plane)} fib daddr type != local jump refuse"] * bool(rules.control_plane)),
    ]
    return [
        *_chain("from_ranks_of_the_host_network", refused),
        *_chain(
            "by_cgroup",
            [f'socket cgroupv2 level {level} "{rules.cgroup}" jump from_ranks_of_the_host_network'],
            hook="output",
        ),
    ]


def _accept(target: Target) -> str:
    ports = ""
    if target.ports is not None:
        first, last = target.ports
        ports = f" meta l4proto {{ tcp, udp }} th dport {first if first == last else f'{first}-{last}'}"
    return f"ip daddr {target.network}{ports} accept"


def _chain(name: str, lines: Sequence[str], *, hook: str | None = None) -> list[str]:
    head = [] if hook is None else [f"type filter hook {hook} priority {_PRIORITY}; policy accept;"]
    return [f"chain {name} {{", *head, *lines, "}"]


def _set(values: Iterable[str]) -> str:
    return "{ " + ", ".join(sorted(set(values))) + " }"
