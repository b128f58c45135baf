"""The packet filter of a host's ranks, as one nftables table of the node worker's own: nft(8).

The table is written once for all attempts: it knows their links by the beginning of the names of interfaces. Only a
gang on several hosts changes something: one chain, which says whose frames it takes. No rule of others is read or
changed. It only refuses: what another table drops stays dropped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_platform.domain.hosts.network import NOT_INTERNET, Target

_METADATA = "169.254.0.0/16"
"""Link-local addresses. Clouds serve a machine's credentials there."""
_METADATA_IPV6 = ("fe80::/10", "fd00:ec2::254")
_CLOSED_S = 10
"""How long the kernel remembers a connection that is closed. Its own 120 s let a rank fill the table with them."""
_PRIORITY = -10
"""Before the filters of others, so that users get our answer and not their silence."""


@dataclass(frozen=True)
class GangPeers:
    """From whom this host takes the frames of a gang."""

    vni: int
    """The number of the gang's network."""
    hosts: Sequence[str]
    """The addresses of the gang's hosts."""


@dataclass(frozen=True)
class FirewallRules:
    """All that the table depends on. Addresses are IPv4, if nothing else is said."""

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
    """Addresses of the service and of Temporal, IPv4 and IPv6."""
    own_ports: Sequence[int] = ()
    """Ports of this host that ranks with the host's network are refused."""
    cgroup: str | None = None
    """The cgroup of all jailed ranks, below ``/sys/fs/cgroup``. None: the kernel has no cgroup v2."""
    only_ours: bool = False
    """This machine forwards packets only for ranks: everything else that it would forward is refused."""
    connections: int = 4096
    """How many connections each attempt may have through this host at once."""
    gangs: Sequence[GangPeers] = ()


def table_name(host: str, tag: str) -> str:
    """The name of a host's table. It is unique on this machine."""
    return f"gpu_platform_{re.sub('[^A-Za-z0-9_]', '_', host)[:60]}_{tag}"


def render(rules: FirewallRules) -> str:
    """The commands that replace the table at once (nft -f)."""
    exact = [target for target in rules.allowed if target.is_exact]
    exact += [Target(network=ipaddress.IPv4Network(server), ports=(53, 53)) for server in rules.dns]
    ours = f'"{rules.prefix}*"'
    body = [
        *_chain("refuse", ["meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"]),
        *_connections(rules.connections),
        *_chain("from_ranks", _from_ranks(rules, exact)),
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
        *_frames(rules, ours),
        *_masquerade(rules, ours),
        *_host_network(rules, exact),
    ]
    name = f"inet {rules.table}"
    return "\n".join([f"table {name}", f"delete table {name}", f"table {name} {{", *body, "}", ""])


def render_gangs(table: str, gangs: Iterable[GangPeers]) -> str:
    """The commands that replace the chain of the gangs at once, and no other."""
    chain = f"inet {table} gang_peers"
    return "\n".join([f"flush chain {chain}", *(f"add rule {chain} {line}" for line in _gang_peers(gangs)), ""])


def _from_ranks(rules: FirewallRules, exact: Iterable[Target]) -> list[str]:
    wide = [target for target in rules.allowed if not target.is_exact]
    platform = [_METADATA, *_of_version(rules.control_plane, 4)]
    return [
        "meta nfproto ipv6 jump refuse",
        'fib saddr . iif oif missing drop comment "a forged sender"',
        "ct state established,related accept",
        f'ip daddr {rules.subnet} jump refuse comment "other attempts"',
        f'udp dport {rules.gang_port} jump refuse comment "the gangs of others"',
        *(_to(target, "goto admit") for target in exact),
        'fib daddr type local jump refuse comment "this host"',
        f'ip daddr {_set(platform)} jump refuse comment "the platform, metadata"',
        *(_to(target, "goto admit") for target in wide),
        *([f"ip daddr != {_set(NOT_INTERNET)} goto admit"] if rules.internet else []),
        "jump refuse",
    ]


def _connections(most: int) -> list[str]:
    """What limits the connections of an attempt, so that it cannot fill the host's table of them (conntrack).

    The kernel's count leaves out those that are closed and not yet forgotten, so new ones are limited by time, too.
    """
    return [
        "set connections { type ipv4_addr; size 65535; flags dynamic; }",
        f"set beginnings {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {6 * _CLOSED_S}s; }}",
        "ct timeout short {",
        *("protocol tcp;", "l3proto ip;", f"policy = {{ time_wait: {_CLOSED_S}, close: {_CLOSED_S} }}", "}"),
        *_chain(
            "admit",
            [
                f"add @connections {{ ip saddr ct count over {most} }} jump refuse",
                f"update @beginnings {{ ip saddr limit rate over {max(most // _CLOSED_S, 1)}/second "
                f"burst {most} packets }} drop",
                'ct timeout set "short"',
                "accept",
            ],
        ),
    ]


def _frames(rules: FirewallRules, ours: str) -> list[str]:
    """Frames of gangs come from the hosts of the same gang. They are not in the table of connections: each connection
    inside a gang would be one more there."""
    to_gangs = f"udp dport {rules.gang_port}"
    return [
        *_chain("gang_peers", _gang_peers(rules.gangs)),
        *_chain(
            "frames",
            [f"iifname != {ours} {to_gangs} fib daddr type local jump gang_peers"],
            hook="prerouting",
            priority="raw",
        ),
        *_chain("own_frames", [f"{to_gangs} notrack"], hook="output", priority="raw"),
    ]


def _gang_peers(gangs: Iterable[GangPeers]) -> list[str]:
    """``@th,96,24`` is the number of the network in the header of VXLAN (RFC 7348), behind that of UDP."""
    return [
        *(f"@th,96,24 {gang.vni} ip saddr {_set(gang.hosts)} notrack accept" for gang in gangs),
        'counter drop comment "frames of strangers"',
    ]


def _masquerade(rules: FirewallRules, ours: str) -> list[str]:
    rule = f"ip saddr {rules.subnet} oifname != {ours} masquerade"
    return ["chain leaving {", "type nat hook postrouting priority srcnat; policy accept;", rule, "}"]


def _host_network(rules: FirewallRules, exact: Iterable[Target]) -> list[str]:
    """For ranks in the host's network: the platform and metadata are refused, everything else is as on the host."""
    if rules.cgroup is None:
        return []
    level = rules.cgroup.count("/") + 1 - rules.cgroup.startswith("unified/")
    others = "fib daddr type != local jump refuse"
    ipv4, ipv6 = (_of_version(rules.control_plane, version) for version in (4, 6))
    own_ports = _set(map(str, rules.own_ports))
    refused = [
        f'udp dport {rules.gang_port} jump refuse comment "the gangs of others"',
        *(_to(target, "accept") for target in exact),
        f"ip daddr {_set([_METADATA])} jump refuse",
        f"ip6 daddr {_set(_METADATA_IPV6)} jump refuse",
        *([f"fib daddr type local tcp dport {own_ports} jump refuse"] if rules.own_ports else []),
        *([f"ip daddr {_set(ipv4)} {others}"] if ipv4 else []),
        *([f"ip6 daddr {_set(ipv6)} {others}"] if ipv6 else []),
    ]
    return [
        *_chain("from_ranks_of_the_host_network", refused),
        *_chain(
            "by_cgroup",
            [f'socket cgroupv2 level {level} "{rules.cgroup}" jump from_ranks_of_the_host_network'],
            hook="output",
        ),
    ]


def _to(target: Target, verdict: str) -> str:
    ports = ""
    if target.ports is not None:
        first, last = target.ports
        ports = f" meta l4proto {{ tcp, udp }} th dport {first if first == last else f'{first}-{last}'}"
    return f"ip daddr {target.network}{ports} {verdict}"


def _chain(name: str, lines: Sequence[str], *, hook: str | None = None, priority: str = str(_PRIORITY)) -> list[str]:
    head = [] if hook is None else [f"type filter hook {hook} priority {priority}; policy accept;"]
    return [f"chain {name} {{", *head, *lines, "}"]


def _of_version(addresses: Iterable[str], version: int) -> list[str]:
    return [address for address in addresses if ipaddress.ip_address(address).version == version]


def _set(values: Iterable[str]) -> str:
    return "{ " + ", ".join(sorted(set(values))) + " }"
