"""IPv6: an isolated rank has none but its own ::1; in the host's network it is refused the platform there, too."""

from __future__ import annotations

import socket
import struct
import subprocess
from typing import Any

import pytest

from gpu_platform.settings import TemporalSettings
from gpu_platform.settings.node import NetworkSettings
from tests.support.lan import Lan, Machine

pytestmark = pytest.mark.usefixtures("jails", "networks")

OURS = "fe80::67:70ff:feff:fffe"
"""The address that the host's end of a link would have by itself, from its MAC."""


def with_ipv6(machine: Machine, number: int) -> None:
    """Give a machine an IPv6 address, and services that listen on [::]."""
    machine.run("ip", "addr", "add", f"fd00:1::{number}/64", "dev", "eth0", "nodad")
    for port in (8700, 7233, 5432):
        machine.listen(port, "::")


def link_local(machine: Machine) -> str:
    lines = machine.run("ip", "-o", "-6", "addr", "show", "eth0", "scope", "link").split()
    return lines[3].split("/")[0]


SCAN = """
def to(where, port):
    family, kind, protocol, _, address = socket.getaddrinfo(where, port, 0, socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as link:
        link.settimeout(2)
        link.connect(address)
        print("   ", link.recv(100).decode(), flush=True)

def shout(where, port):
    *_, address = socket.getaddrinfo(where, port, 0, socket.SOCK_DGRAM)[0]
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as link:
        link.sendto(b"anybody?", address)

for port in (8700, 7233, 5432):
    for where in PLACES:
        quickly(f"{where} {port}", to, where, port)
"""


async def test_an_isolated_rank_has_no_way_by_ipv6(lan: Lan, hosts: Any) -> None:
    """Not to its host, by any of its addresses, nor to others; not by a mapped address either."""
    host = hosts("box", network=NetworkSettings(allow=["internet", "10.0.0.0/8"]))
    with_ipv6(host.machine, 1)
    with_ipv6(lan.machine("other"), 2)
    places = [
        *("::1", "fd00:1::1", "fd00:1::2", "::ffff:10.1.0.1", "2600::1"),
        *(f"{address}%eth0" for address in (OURS, "fe80::1", link_local(host.machine))),
    ]
    lines = await host.run(
        f"""PLACES = {places!r}
{SCAN}
attempt("multicast", shout, "ff02::1%eth0", 5000)
print([line.split()[-1] for line in open("/proc/net/if_inet6")])
"""
    )
    assert len(lines) == 3 * len(places) + 2
    assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines
    assert lines[-1] == "['lo']"


async def test_a_router_advertisement_gives_a_rank_no_address(hosts: Any) -> None:
    """A router daemon of the host may send them on every interface."""
    host = hosts("box")
    plan = await host.start(
        """
print("ready", flush=True)
wait_for(os.environ["GPU_PLATFORM_CHECKPOINT_DIR"] + "/go")
print([line.split()[-1] for line in open("/proc/net/if_inet6")], flush=True)
"""
    )
    [name] = [name for name in host.machine.links() if name.startswith("gp")]
    with host.machine.here(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
        link.bind((name, 0))
        link.send(advertisement())
    (host.rig.settings.state_dir / "checkpoints" / plan.key.job_id / "1" / "go").touch()
    await host.rig.watch(plan)
    assert host.rig.log(plan).splitlines()[-1] == "['lo']"


def advertisement() -> bytes:
    """A router advertisement with a prefix for addresses (RFC 4861)."""
    sender = socket.inet_pton(socket.AF_INET6, OURS)
    receiver = socket.inet_pton(socket.AF_INET6, "ff02::1")
    prefix = struct.pack(
        "!BBBBIII16s", 3, 4, 64, 0xC0, 86_400, 86_400, 0, socket.inet_pton(socket.AF_INET6, "fd00:2::")
    )
    body = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + prefix
    total = sum(
        struct.unpack(f"!{(40 + len(body)) // 2}H", sender + receiver + struct.pack("!II", len(body), 58) + body)
    )
    total = (total & 0xFFFF) + (total >> 16)
    body = body[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + body[4:]
    head = struct.pack("!IHBB", 6 << 28, len(body), 58, 255) + sender + receiver
    return bytes.fromhex("333300000001" + "026770fffffe" + "86dd") + head + body


async def test_whoever_could_give_a_rank_an_ipv6_address_would_still_be_refused(hosts: Any) -> None:
    """The packet filter holds alone. Without it the same attempt succeeds, so the attempt is a good one."""
    host = hosts("box", network=NetworkSettings(allow=["internet"]))
    host.machine.listen(5432, "::")
    plan = await host.start("print('ready', flush=True)\nwait_for('/nothing')")
    rank = host.rig.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    inside = ["nsenter", f"--net=/proc/{rank.pid}/ns/net"]
    [name] = [name for name in host.machine.links() if name.startswith("gp")]
    host.machine.run("ip", "addr", "add", f"{OURS}/64", "dev", name, "nodad")
    run([*inside, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6"])
    run([*inside, "ip", "addr", "add", "fe80::2/64", "dev", "eth0", "nodad"])
    script = f"import socket; print(socket.create_connection(('{OURS}%eth0', 5432), 1).recv(9))"
    assert b"box" not in run([*inside, "python3", "-c", script]).stdout
    with host.machine.here():
        host.firewall.remove()
    assert b"box" in run([*inside, "python3", "-c", script]).stdout


def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, timeout=20)


async def test_a_rank_in_the_hosts_network_does_not_reach_the_platform_by_ipv6(lan: Lan, hosts: Any) -> None:
    """Here and on another machine. It reaches other services, as the host says in its missing guarantees."""
    host = hosts("box", network=NetworkSettings(mode="host"))
    with_ipv6(host.machine, 1)
    with_ipv6(lan.machine("control"), 2)
    host.rig.settings.api_url = "http://[fd00:1::2]:8700"
    host.rig.settings.temporal = TemporalSettings(address="[fd00:1::2]:7233")
    with host.machine.here():
        host.rig.restart()
    places = ["::1", "fd00:1::1", "fd00:1::2"]
    lines = await host.run(f"PLACES = {places!r}\n{SCAN}")
    works = [line.removesuffix(" WORKS") for line in lines if line.endswith(" WORKS")]
    assert works == [f"{where} 5432" for where in ("::1", "fd00:1::1")], lines


@pytest.mark.parametrize("entry", ["2001:db8::1", "[2001:db8::1]:443", "2001:db8::/32", "::1"])
def test_an_ipv6_address_in_the_settings_is_refused_with_a_clear_message(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is an IPv6 address: .* have IPv4 only\. Give the IPv4 address, or a name"):
        NetworkSettings(allow=[entry])
