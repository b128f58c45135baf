"""Ranks in the host's network (``node.network.mode: host``): they take no ports of other jobs and of the platform."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.isolation.filters import port_filter
from gpu_platform.node.network import choice, firewall, nftables
from gpu_platform.settings.node import NetworkSettings
from tests.security.hosts_on_lan import logs, start_gang

pytestmark = pytest.mark.usefixtures("jails", "networks")

TAKE = """
import collections
def take(port, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as link:
        link.bind(("", port))
        return link.getsockname()[1]
"""


@pytest.fixture(autouse=True)
def can_filter() -> None:
    if not port_filter.is_supported():
        pytest.skip("the kernel takes no eBPF program for bind(2)")


@pytest.fixture
def without_nftables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine does not have the package nftables: neither the program nor its library."""
    find_tool = choice.find_tool
    monkeypatch.setattr(choice, "find_tool", lambda name: None if name == "nft" else find_tool(name))
    monkeypatch.setattr(nftables, "_LIBRARY", "libnftables-that-is-not-there.so.1")
    caches = (choice._run_aside, nftables.library)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


async def test_a_rank_takes_no_port_of_the_platform_or_of_another_job(hosts: Any) -> None:
    """By TCP and UDP, IPv4 and IPv6. Its own ports, one of the kernel's choice and those that nobody uses are free."""
    host = hosts("box", network=NetworkSettings(mode="host"), port=8701)
    lines = await host.run(
        f"""{TAKE}
first, last = map(int, os.environ["GPU_PLATFORM_PORTS"].split("-"))
taken = collections.Counter()
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for port in range(20000, 32000):
            try:
                taken["own" if first <= take(port, family, kind) <= last else "others"] += 1
            except PermissionError:
                taken["refused"] += 1
        for port in (8474, 8701, 0, 8888, 19999, 32000):
            attempt(f"{{port}}", take, port, family, kind)
print(dict(sorted(taken.items())))
"""
    )
    assert lines[-1] == str({"own": 4 * 16, "refused": 4 * (12_000 - 16)})
    expected = ["8474 EPERM", "8701 EPERM", "0 WORKS", "8888 WORKS", "19999 WORKS", "32000 WORKS"]
    assert lines[:-1] == expected * 4


async def test_an_attempt_takes_the_ports_of_a_gangs_rendezvous_on_another_host(hosts: Any) -> None:
    """``GPU_PLATFORM_PORTS`` names them on each host of the gang."""
    pair = [hosts(name, network=NetworkSettings(mode="host")) for name in ("one", "two")]
    script = f"""{TAKE}
first, last = map(int, os.environ["GPU_PLATFORM_PORTS"].split("-"))
attempt("told", take, first + 3)
attempt("rendezvous", take, int(os.environ["MASTER_PORT"]))
"""
    assert await logs(pair, await start_gang(pair, script)) == [["told WORKS", "rendezvous WORKS"]] * 2


async def test_the_ports_of_an_isolated_rank_are_all_its_own(hosts: Any) -> None:
    host = hosts("box")
    lines = await host.run(f"{TAKE}\nfor port in (20000, 31999, 8474, 8701): attempt(str(port), take, port)")
    assert lines == [f"{port} WORKS" for port in (20000, 31999, 8474, 8701)]


def test_the_host_says_what_its_network_does_not_keep_apart(hosts: Any) -> None:
    host = hosts("box", network=NetworkSettings(mode="host"))
    [said] = [text for text in host.rig.inventory.missing_guarantees if "network isolation" in text]
    assert "may take ports that other programs want" in said


@pytest.mark.usefixtures("without_nftables")
@pytest.mark.parametrize("mode", ["auto", "host"])
async def test_a_host_without_nftables_runs_jobs_and_says_what_is_missing(hosts: Any, mode: Any) -> None:
    """Also after a restart. Ports of the platform stay refused: another filter of the kernel keeps them."""
    host = hosts("box", network=NetworkSettings(mode=mode), port=8701)
    host.rig.restart()
    lines = await host.run(f"{TAKE}\nfor port in (8700, 7233, 8701, 8888): attempt(str(port), take, port)")
    assert lines == ["8700 EPERM", "7233 EPERM", "8701 EPERM", "8888 WORKS"]
    [said] = [text for text in host.rig.inventory.missing_guarantees if "packet filter" in text]
    assert said.endswith("because nft is not installed (apt-get install nftables)")
    assert not host.firewall.is_there()


@pytest.mark.usefixtures("without_nftables")
def test_a_host_that_must_isolate_its_network_refuses_to_start_without_nftables(hosts: Any) -> None:
    with pytest.raises(HostUnavailable, match=r"mode: isolated\) and cannot: .*\(apt-get install nftables\)"):
        hosts("box", network=NetworkSettings(mode="isolated"))


def test_a_machine_whose_forwarding_is_fixed_is_named(hosts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "_FORWARDING", Path("/proc/version"))  # a file that also root cannot write
    with pytest.raises(HostUnavailable, match=r"ip_forward is 0 here and cannot be changed \(.*set it to 1"):
        hosts("box")
