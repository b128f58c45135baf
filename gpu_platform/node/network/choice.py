"""Finds out whether ranks of this host can have a network of their own, and what is missing if not."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from functools import cache

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.network import nftables
from gpu_platform.node.network.links import TOOLS_PATH
from gpu_platform.node.network.rules import FirewallRules, GangPeers, render
from gpu_platform.node.system import tools
from gpu_platform.node.system.tools import NotEnded
from gpu_platform.settings.node import NetworkSettings

HOST_NETWORK = (
    "network isolation: ranks use the host's network, reach what listens on 127.0.0.1, and may take ports that other "
    "programs want"
)
NO_FILTER = (
    "packet filter: ranks in the host's network reach the platform's ports on this host, and link-local addresses, "
    "where clouds keep credentials"
)
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NetworkChoice:
    """What this host can do for the network of jailed ranks."""

    isolated: bool
    """Attempts get a network namespace of their own."""
    gangs: bool = False
    """So do attempts on several hosts: the kernel has VXLAN."""
    filters: bool = False
    """The packet filter of ranks can be written. Always true with ``isolated``."""
    missing: list[str] = field(default_factory=list[str])
    """What ranks here are not protected from, or do not reach, for people."""


def choose_network(network: NetworkSettings) -> NetworkChoice:
    """Choose by the setting ``mode`` and by what this machine can do. ``isolated`` with a problem: see ``missing``."""
    no_filter = _try_rules() or _no_library()
    unfiltered = [] if no_filter is None else [f"{NO_FILTER}, because {no_filter}"]
    if network.mode == "host":
        missing = [f"{HOST_NETWORK} (node.network.mode: host)", *unfiltered]
        return NetworkChoice(False, filters=no_filter is None, missing=missing)
    problem = _try("ip", "link set lo up", "link add gpa type veth peer name gpb") or no_filter
    if problem is not None:
        missing = [f"{HOST_NETWORK}, because {problem}", *unfiltered]
        return NetworkChoice(False, filters=no_filter is None, missing=missing)
    missing: list[str] = []
    no_gangs = _try("ip", "link add gang0 type vxlan id 1 dstport 8474 nolearning") or _try("bridge", "fdb show")
    if no_gangs is not None:
        missing.append(f"{HOST_NETWORK} if their gang is on several hosts, because {no_gangs}")
    if network.allow and (dropping := _who_drops()):
        missing.append(
            f"network: {dropping} drops what this host forwards, so ranks reach nothing outside; accept there "
            'what comes from interfaces "gp*" and its answers'
        )
    return NetworkChoice(True, gangs=no_gangs is None, filters=True, missing=missing)


def find_tool(name: str) -> str | None:
    """The path of a program of the system."""
    return shutil.which(name, path=TOOLS_PATH)


def _try_rules() -> str | None:
    sample = FirewallRules(
        "gpu_platform_probe", "gpprobe-", "198.18.0.0/15", 8474,
        internet=True, control_plane=["192.0.2.1"], gangs=[GangPeers(1, ["192.0.2.2"])],
    )  # fmt: skip
    return _run_aside("nft", ("-f", "-"), render(sample), "nftables")


def _no_library() -> str | None:
    try:
        nftables.library()
    except HostUnavailable as error:
        return error.message
    return None


def _try(tool: str, *lines: str) -> str | None:
    return _run_aside(tool, ("-batch", "-"), "\n".join([*lines, ""]), "iproute2")


@cache
def _run_aside(tool: str, options: tuple[str, ...], text: str, package: str) -> str | None:
    """Run a tool in a network namespace that is thrown away. Returns why it failed."""
    program, unshare = find_tool(tool), find_tool("unshare")
    if program is None or unshare is None:
        return f"{tool if program is None else 'unshare'} is not installed (apt-get install {package})"
    try:
        done = tools.run([unshare, "--net", program, *options], say=text, timeout_s=_TIMEOUT_S)
    except (OSError, NotEnded) as error:
        return f"{tool} does not work here: {error}"
    return f"{tool} does not work here: {done.said.strip()[-200:]}" if done.code != 0 else None


def _who_drops() -> str | None:
    """The chain of somebody else that drops forwarded packets by default, as docker's and ufw's do."""
    program = find_tool("nft")
    if program is None:
        return None
    try:
        done = tools.run([program, "-j", "list", "chains"], timeout_s=_TIMEOUT_S)
    except NotEnded:
        return None
    if done.code != 0:
        return None
    chains = [entry["chain"] for entry in json.loads(done.output)["nftables"] if "chain" in entry]
    for chain in chains:
        if chain.get("hook") == "forward" and chain.get("policy") == "drop":
            return f"chain {chain['name']} of table {chain['family']} {chain['table']}"
    return None
