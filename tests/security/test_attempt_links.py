"""The links of an attempt where names and addresses are taken, in namespaces of this kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpu_platform.node.network.links import GangLink
from tests.support.lan import Lan, Machine

pytestmark = pytest.mark.usefixtures("networks")

GANG = GangLink(77, 0, ["10.1.0.1", "10.1.0.2"], "198.19.0.0/16", 8474, 1450)

CONNECT = """
import random, subprocess, sys
from gpu_platform.node.network import links

random.sample = lambda *_: {numbers}
network = links.AttemptNetwork(links.NetworkOrder(links.Uplink("gpt-", "198.18.0.0/16", 1500), {gang}))
try:
    network.connect()
except OSError as error:
    sys.exit(f"{{type(error).__name__}} {{error.strerror}}")
print(subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True).stdout)
"""


def connect(machine: Machine, numbers: list[int], gang: GangLink | None = None) -> subprocess.CompletedProcess[str]:
    """Make the links of an attempt that tries these addresses, the last one first."""
    made = "None" if gang is None else f"links.{gang}"
    with machine.here():
        return subprocess.run(
            [sys.executable, "-c", CONNECT.format(numbers=numbers, gang=made)], capture_output=True, text=True
        )


@pytest.mark.parametrize("gang", [None, GANG], ids=["alone", "gang"])
def test_an_attempt_takes_the_first_address_that_is_free(lan: Lan, gang: GangLink | None) -> None:
    """Another platform on this machine may have the name of the link, or a route to the address."""
    machine = lan.machine("one")
    machine.run("ip", "link", "add", "gpt-5", "type", "bridge")
    machine.run("ip", "route", "add", "blackhole", "198.18.0.6/32")
    made = connect(machine, [8, 7, 6, 5], gang)
    assert made.returncode == 0, made.stderr
    assert "198.18.0.7/32" in made.stdout
    assert ("198.19.0.1/16" in made.stdout) == (gang is not None)


@pytest.mark.parametrize("gang", [None, GANG], ids=["alone", "gang"])
def test_an_attempt_without_a_free_address_says_so(lan: Lan, gang: GangLink | None) -> None:
    machine = lan.machine("one")
    for number in (5, 6):
        machine.run("ip", "route", "add", "blackhole", f"198.18.0.{number}/32")
    made = connect(machine, [6, 5], gang)
    assert made.returncode == 1
    assert "FileExistsError no free address was found in 198.18.0.0/16" in made.stderr


def test_a_network_of_the_gangs_number_is_not_taken_for_an_address(lan: Lan) -> None:
    """The attempt fails at once and says what the kernel said: another address does not help."""
    machine = lan.machine("one")
    machine.run("ip", "link", "add", "other", "type", "vxlan", "id", "77", "dstport", "8474", "dev", "eth0")
    made = connect(machine, [8, 7, 6, 5], GANG)
    assert made.returncode == 1
    assert "OSError ip:" in made.stderr, made.stderr
