"""What attempts on one host share although each has its own network: the host's table of connections."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.network.firewall import most_connections
from gpu_platform.settings.node import NetworkSettings
from tests.security.hosts_on_lan import Host
from tests.support.lan import Lan

pytestmark = pytest.mark.usefixtures("jails", "networks")

MOST = 64
FEW = NetworkSettings(allow=["10.1.0.2:9000"], connections=MOST)

HOLD = """
import collections
taken, answers = [], collections.Counter()
for _ in range(300):
    link = socket.socket()
    link.settimeout(0.3)
    try:
        link.connect(("10.1.0.2", 9000))
        taken.append(link)
    except OSError as error:
        answers[type(error).__name__] += 1
        if answers.total() > 5:
            break
print("ready", len(taken), dict(answers), flush=True)
"""


def in_the_table(host: Host) -> list[str]:
    lines = host.machine.run("cat", "/proc/net/nf_conntrack").splitlines()
    return [line for line in lines if "dst=10.1.0.2" in line and "dport=9000" in line]


async def test_an_attempt_cannot_fill_the_hosts_table_of_connections(lan: Lan, hosts: Any) -> None:
    host = hosts("box", network=FEW)
    lan.machine("storage").listen(9000)
    hog = await host.start(f"{HOLD}\nwait_for('/nothing')")
    ready, count, *why = host.rig.log(hog).split(maxsplit=2)
    assert (ready, int(count)) == ("ready", MOST), why
    assert "ConnectionRefusedError" in why[0], "a refusal is told at once"
    assert len(in_the_table(host)) == MOST
    # Another attempt has connections of its own, and the first one can go on when it has closed some.
    assert (await host.run(HOLD))[0].startswith(f"ready {MOST} ")


async def test_an_attempt_cannot_fill_the_table_with_closed_connections(lan: Lan, hosts: Any) -> None:
    """The kernel's count leaves them out, but remembers each: for 120 s, if nobody says otherwise."""
    host = hosts("box", network=FEW)
    lan.machine("storage").listen(9000)
    lines = await host.run(
        """
import resource
end, begun = time.monotonic() + 1.5, 0
while time.monotonic() < end:
    with socket.socket() as link:
        link.settimeout(0.01)
        begun += 1
        try:
            link.connect(("10.1.0.2", 9000))
            link.recv(100)
        except TimeoutError:
            pass
print(begun)
"""
    )
    assert int(lines[0]) > MOST
    found = in_the_table(host)
    assert len(found) <= MOST + 3 * MOST // 10 + 1, (lines, len(found))
    assert max(int(line.split()[4]) for line in found if "TIME_WAIT" in line) <= 10


async def test_the_attack_fills_the_table_without_the_limit(lan: Lan, hosts: Any) -> None:
    """The attack itself is checked."""
    host = hosts("box", network=FEW)
    lan.machine("storage").listen(9000)
    host.machine.run("nft", "flush", "chain", "inet", host.table(), "admit")
    host.machine.run("nft", "add", "rule", "inet", host.table(), "admit", "accept")
    assert (await host.run(HOLD))[0] == "ready 300 {}"
    assert len(in_the_table(host)) == 300


def test_the_default_is_a_part_of_what_the_kernel_keeps(tmp_path: Path) -> None:
    table = tmp_path / "nf_conntrack_max"
    for kept, most in (("262144\n", 4096), ("65536\n", 2048), ("8192\n", 1024)):
        table.write_text(kept)
        assert most_connections(table) == most
    assert most_connections(tmp_path / "missing") == 4096


async def test_a_host_with_its_default_limits_launches_and_counts(lan: Lan, hosts: Any) -> None:
    host = hosts("box", network=NetworkSettings(allow=["10.1.0.2:9000"]))
    lan.machine("storage").listen(9000)
    began = time.monotonic()
    assert (await host.run(HOLD))[0] == "ready 300 {}"
    assert time.monotonic() - began < 10
    assert f"ct count over {most_connections()}" in host.machine.run(
        "nft", "list", "chain", "inet", host.table(), "admit"
    )
