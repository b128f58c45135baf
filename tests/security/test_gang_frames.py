"""Attacks on the network of a gang from the network between hosts: frames of strangers, and of ranks of other jobs.

A frame of VXLAN is a UDP datagram. The number of a gang's network can be guessed (24 bits of a hash of the job's id),
so only the sender's address says who may send one.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest

from gpu_platform.node.network.rules import GangPeers
from gpu_platform.node.system import paths, records
from gpu_platform.settings.node import NetworkSettings
from tests.security.hosts_on_lan import Host, logs, start_gang
from tests.support.lan import Lan, Machine
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails", "networks")

WAIT_FOR_A_DATAGRAM = """
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", 4001))
datagrams.settimeout(60)
print("ready", flush=True)
print("GOT", datagrams.recv(100).decode(), flush=True)
"""


def frame(vni: int, text: bytes, port: int = 4001) -> bytes:
    """What the second host of a gang sends to the first for its rank: VXLAN, Ethernet, IPv4, UDP."""
    sender, receiver = socket.inet_aton("198.19.0.2"), socket.inet_aton("198.19.0.1")
    udp = struct.pack("!HHHH", 5000, port, 8 + len(text), 0) + text
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, sender, receiver)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    macs = bytes.fromhex("0267616e0000" + "0267616e0001")  # to, from
    return struct.pack("!BxxxI", 8, vni << 8) + macs + b"\x08\x00" + head + udp


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def send(machine: Machine, data: bytes, to: str, *, source: str | None = None) -> None:
    with machine.here(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        if source is not None:
            link.bind((source, 0))
        link.sendto(data, (to, 8474))


async def start(pair: list[Host]) -> tuple[Any, int]:
    """Start a gang that waits for a datagram. Returns its plans, and the number of its network."""
    plans = await start_gang(pair, WAIT_FOR_A_DATAGRAM)
    for host, plan in zip(pair, plans, strict=True):
        await eventually(lambda host=host, plan=plan: "ready" in host.rig.log(plan, plan.ranks[0].rank), "ranks wait")
    return plans, vni_of(pair[0], plans[0])


def vni_of(host: Host, plan: Any) -> int:
    record = records.read_record(str(paths.attempt_dir(host.rig.home, plan.key) / records.JAIL))
    assert record is not None
    return record["network"][1][0]


def dropped(host: Host) -> int:
    """How many frames of strangers the host has dropped."""
    listed = json.loads(host.machine.run("nft", "-j", "list", "chain", "inet", host.table(), "gang_peers"))
    rules = [entry["rule"]["expr"] for entry in listed["nftables"] if "rule" in entry]
    return next(part["counter"]["packets"] for part in rules[-1] if "counter" in part)


async def test_only_hosts_of_a_gang_send_frames_into_it(lan: Lan, hosts: Any) -> None:
    """An attacker on the network between hosts, a host of another gang, and the right host with the wrong number."""
    pair = [hosts("one"), hosts("two")]
    attacker, third = lan.machine("attacker"), hosts("three")
    plans, vni = await start(pair)
    for machine in (attacker, third.machine):
        send(machine, frame(vni, b"forged"), "10.1.0.1")
    send(pair[1].machine, frame(vni ^ 1, b"of another gang"), "10.1.0.1")
    await eventually(lambda: dropped(pair[0]) >= 3, "the frames were dropped")
    assert "GOT" not in pair[0].rig.log(plans[0])
    # What the host of the gang sends arrives: the forged frames were good ones.
    send(pair[1].machine, frame(vni, b"from the gang"), "10.1.0.1")
    await eventually(lambda: "GOT from the gang" in pair[0].rig.log(plans[0]), "the frame of the gang arrives")


async def test_the_attack_works_without_the_filter_of_frames(lan: Lan, hosts: Any) -> None:
    """The attack itself is checked."""
    pair = [hosts("one"), hosts("two")]
    attacker = lan.machine("attacker")
    plans, vni = await start(pair)
    pair[0].machine.run("nft", "flush", "chain", "inet", pair[0].table(), "gang_peers")
    send(attacker, frame(vni, b"forged"), "10.1.0.1")
    await eventually(lambda: "GOT forged" in pair[0].rig.log(plans[0]), "nothing else stops the frame")


async def test_every_address_of_a_host_is_guarded(lan: Lan, hosts: Any) -> None:
    """The kernel takes frames at each address of the machine, whatever address the link was made with."""
    pair = [hosts("one"), hosts("two")]
    attacker = lan.machine("attacker")
    pair[0].machine.run("ip", "addr", "add", "10.1.0.111/24", "dev", "eth0")
    plans, vni = await start(pair)
    send(attacker, frame(vni, b"forged"), "10.1.0.111")
    await eventually(lambda: dropped(pair[0]) >= 1, "the frame was dropped")
    assert "GOT" not in pair[0].rig.log(plans[0])


@pytest.mark.parametrize("mode", ["auto", "host"])
async def test_a_rank_of_another_job_sends_no_frames_into_a_gang(hosts: Any, mode: str) -> None:
    """It runs on a host of the gang, so the address of its frames would be right."""
    pair = [hosts("one"), hosts("two")]
    plans, vni = await start(pair)
    forged = frame(vni, b"forged")
    other = Host(
        pair[1].machine, pair[1].work.parent / "again", network=NetworkSettings(mode=mode, allow=["10.1.0.1:8474"])
    )
    try:
        lines = await other.run(
            f"""
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("10.1.0.1", 8474))
attempt("a frame", lambda: (link.send({forged!r}), time.sleep(0.1), link.send({forged!r})))
"""
        )
    finally:
        await other.aclose()
    assert lines in (["a frame ECONNREFUSED"], ["a frame EPERM"], ["a frame EACCES"], ["a frame EHOSTUNREACH"]), lines
    assert "GOT" not in pair[0].rig.log(plans[0])


async def test_a_gang_goes_on_when_its_node_worker_restarts_and_when_rules_are_thrown_away(
    lan: Lan, hosts: Any
) -> None:
    pair = [hosts("one"), hosts("two")]
    attacker = lan.machine("attacker")
    plans, vni = await start(pair)
    with pair[0].machine.here():
        pair[0].rig.restart()
    pair[0].machine.run("nft", "flush", "ruleset")
    await eventually(lambda: pair[0].table() in pair[0].machine.run("nft", "list", "tables"), "the table is back")
    send(attacker, frame(vni, b"forged"), "10.1.0.1")
    await eventually(lambda: dropped(pair[0]) >= 1, "strangers are dropped as before")
    send(pair[1].machine, frame(vni, b"from the gang"), "10.1.0.1")
    await eventually(lambda: "GOT from the gang" in pair[0].rig.log(plans[0]), "the gang meets as before")


async def test_a_gang_that_has_ended_is_admitted_no_more(hosts: Any) -> None:
    pair = [hosts("one"), hosts("two")]
    before = [host.machine.run("nft", "list", "ruleset") for host in pair]
    plans, vni = await start(pair)
    network = pair[0].rig.worker._launcher._jail_planner.network
    assert network._gangs_here() == [GangPeers(vni, ["10.1.0.1", "10.1.0.2"])]
    for host, plan in zip(pair, plans, strict=True):
        await host.rig.stop(plan.key)
        with host.machine.here():  # as a node worker, which is on its machine all the time
            host.rig.worker._launcher._jail_planner.network.leave(plan.key)
    assert network._gangs_here() == []
    after = [host.machine.run("nft", "list", "ruleset") for host in pair]
    assert [str(hex(vni)) in text for text in after] == [False, False]
    assert [text.count("\n") for text in after] == [text.count("\n") for text in before]


SIZES = """
import fcntl

def mtu(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        return struct.unpack_from("i", fcntl.ioctl(link, 0x8921, struct.pack("16si12x", name.encode(), 0)), 16)[0]

me = socket.gethostbyname(socket.gethostname())
rank, peer = int(os.environ["RANK"]), "198.19.0.1" if os.environ["RANK"] == "1" else "198.19.0.2"
print("mtu", mtu("gang0"), os.environ["GLOO_SOCKET_IFNAME"], socket.gethostbyaddr("::ffff:" + peer)[0], flush=True)
server = socket.create_server((me, 5000 + rank))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((me, 6000))
datagrams.settimeout(15)

def read(link, size):
    data = b""
    while len(data) < size:
        data += link.recv(1 << 20)
    return data

def again(where):
    deadline = time.monotonic() + 15
    while True:
        try:
            return socket.create_connection(where, 3)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)

out = again((peer, 5000 + (1 - rank)))
back, _ = server.accept()
message = os.urandom(65536)
out.sendall(message)
print("a message of 64 KiB", len(read(back, 65536)), flush=True)
for size in (1422, 1423, 8972, 65507):  # the last that fits into one frame; fragments; the largest datagram
    datagrams.sendto(bytes(size), (peer, 6000))
    print("a datagram of", len(datagrams.recv(1 << 16)), flush=True)
out.sendall(b"done")
read(back, 4)
"""


async def test_large_messages_get_through_the_smaller_frames_of_a_gang(hosts: Any) -> None:
    """VXLAN takes 50 bytes of each frame: a message of 64 KiB and the largest datagram get through all the same."""
    pair = [hosts("one"), hosts("two")]
    seen = await logs(pair, await start_gang(pair, SIZES))
    got = ["a message of 64 KiB 65536", *(f"a datagram of {size}" for size in (1422, 1423, 8972, 65507))]
    assert seen == [[f"mtu 1450 gang0 gang-{peer}", *got] for peer in (1, 0)]
    for host in pair:  # nor is one of these connections in the host's table: a rank could fill it with them
        assert "dport=8474" not in host.machine.run("cat", "/proc/net/nf_conntrack")
