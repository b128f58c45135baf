"""Attacks over the network, each by a real rank: on the host, on the platform, on another job, and out of its network.

Machines are network namespaces of this kernel, joined by a switch; packet filters, links and VXLANs are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.launcher import Launcher
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.settings import NodeSettings, TemporalSettings
from gpu_platform.settings.node import NetworkSettings
from tests.security.hosts_on_lan import Host, logs, start_gang
from tests.support.hosts_rig import is_running
from tests.support.lan import Lan, Machine
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails", "networks")


def platform_on(machine: Machine) -> None:
    """What stands for service, node worker, Temporal and database on a machine."""
    machine.listen(8700, "127.0.0.1")
    machine.listen(7233)
    machine.listen(5432)


SCAN = """
for port in (8700, 7233, 5432):
    for where in ("127.0.0.1", "10.1.0.1", "169.254.1.1", "localhost"):
        quickly(f"{where}:{port}", tcp, where, port)
"""


async def test_a_rank_reaches_nothing_that_listens_on_its_host(hosts: Any) -> None:
    host = hosts("box", network=NetworkSettings(allow=["internet", "10.0.0.0/8"]))
    platform_on(host.machine)
    host.machine.run("ip", "route", "add", "default", "via", "10.1.0.99")
    lines = await host.run(SCAN)
    assert len(lines) == 12
    assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines


async def test_the_scan_finds_what_a_rank_in_the_hosts_network_reaches(hosts: Any) -> None:
    """The scan itself is checked: where nothing protects, it succeeds."""
    host = hosts("box", network=NetworkSettings(mode="host"))
    platform_on(host.machine)
    lines = await host.run(SCAN)
    assert "127.0.0.1:5432 WORKS" in lines
    assert "10.1.0.1:5432 WORKS" in lines
    # The packet filter by cgroup still refuses the platform: its default ports on this host.
    assert "127.0.0.1:8700 ECONNREFUSED" in lines
    assert "10.1.0.1:7233 ECONNREFUSED" in lines
    assert any("network isolation" in text for text in host.rig.inventory.missing_guarantees)


async def test_a_rank_reaches_what_is_allowed_and_is_told_at_once_about_the_rest(lan: Lan, hosts: Any) -> None:
    host = hosts("box", network=NetworkSettings(allow=["internet", "10.1.0.2:2049", "10.1.0.2:9000-9001"]))
    other = lan.machine("storage")
    for port in (2049, 9001, 9002, 22):
        other.listen(port)
    other.run("ip", "addr", "add", "93.184.216.34/32", "dev", "lo")
    host.machine.run("ip", "route", "add", "default", "via", "10.1.0.2")
    lines = await host.run(
        """
        for where, port in (("10.1.0.2", 2049), ("10.1.0.2", 9001), ("10.1.0.2", 9002), ("10.1.0.2", 22),
                            ("93.184.216.34", 22)):
            quickly(f"{where}:{port}", tcp, where, port)
        """.replace("\n        ", "\n")
    )
    assert [line for line in lines if not line.startswith(" ")] == [
        "10.1.0.2:2049 WORKS",
        "10.1.0.2:9001 WORKS",
        "10.1.0.2:9002 ECONNREFUSED",
        "10.1.0.2:22 ECONNREFUSED",
        "93.184.216.34:22 WORKS",
    ]


@pytest.mark.parametrize("allow", [["internet", "10.0.0.0/8"], ["internet"], []])
async def test_a_rank_does_not_reach_the_platform_elsewhere(lan: Lan, tmp_path: Path, allow: list[str]) -> None:
    """Service and Temporal are on another machine, once by a private and once by a public address."""
    machine, control = lan.machine("box"), lan.machine("control")
    control.run("ip", "addr", "add", "93.184.216.34/32", "dev", "lo")
    machine.run("ip", "route", "add", "default", "via", "10.1.0.2")
    for port in (8700, 7233, 5432):
        control.listen(port)
    host = Host(machine, tmp_path / "box", network=NetworkSettings(allow=allow))
    host.rig.settings.api_url = "http://93.184.216.34:8700"
    host.rig.settings.temporal = TemporalSettings(address="10.1.0.2:7233")
    with machine.here():
        host.rig.restart()
    try:
        lines = await host.run(
            """
for where in ("10.1.0.2", "93.184.216.34"):
    for port in (8700, 7233, 5432):
        quickly(where, tcp, where, port)
"""
        )
        assert len(lines) == 6
        assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines
    finally:
        await host.aclose()


async def test_an_entry_with_address_and_port_opens_the_service_for_jobs_that_submit_jobs(
    lan: Lan, tmp_path: Path
) -> None:
    machine, control = lan.machine("box"), lan.machine("control")
    control.listen(8700)
    control.listen(7233)
    network = NetworkSettings(allow=["10.1.0.2:8700"])
    host = Host(machine, tmp_path / "box", network=network)
    host.rig.settings.api_url = "http://10.1.0.2:8700"
    with machine.here():
        host.rig.restart()
    try:
        lines = await host.run("for port in (8700, 7233): quickly(str(port), tcp, '10.1.0.2', port)")
        assert [line for line in lines if not line.startswith(" ")] == ["8700 WORKS", "7233 ECONNREFUSED"]
    finally:
        await host.aclose()


LISTEN = """
server = socket.create_server(("0.0.0.0", 4000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", 4001))
names = socket.socket(socket.AF_UNIX)
names.bind("\\0passing-gpus")
names.listen()
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("93.184.216.34", 1))
print("at", probe.getsockname()[0], flush=True)
print("ready", flush=True)
datagrams.settimeout(1000)
print("GOT", datagrams.recv(100), flush=True)
"""


async def test_two_attempts_on_one_host_do_not_reach_each_other(hosts: Any) -> None:
    """By TCP, by UDP, and by abstract sockets, through which a descriptor of a GPU was handed over."""
    host = hosts("box", network=NetworkSettings(allow=["internet", "198.18.0.0/15", "10.0.0.0/8"]))
    victim = await host.start(LISTEN)
    address = host.rig.log(victim).split("at ")[1].split()[0]
    assert address.startswith("198.18.")
    lines = await host.run(
        f"""
for where in ({address!r}, "127.0.0.1", "10.1.0.1"):
    quickly(where, tcp, where, 4000)
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", (where, 4001))
quickly("abstract", abstract, "passing-gpus")
"""
    )
    assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines
    assert "GOT" not in host.rig.log(victim)
    with host.machine.here(), pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, 4000), 2)


async def test_the_two_attempts_would_meet_without_the_packet_filter(hosts: Any) -> None:
    """What tries them is checked: without the table one attempt reaches the other by TCP, and never by its names."""
    host = hosts("box")
    victim = await host.start(LISTEN)
    address = host.rig.log(victim).split("at ")[1].split()[0]
    with host.machine.here():
        host.firewall.remove()
    lines = await host.run(
        f"""
attempt("tcp", lambda: socket.create_connection(({address!r}, 4000), 3))
attempt("abstract", abstract, "passing-gpus")
"""
    )
    assert lines == ["tcp WORKS", "abstract ECONNREFUSED"]


async def test_a_job_that_takes_every_port_disturbs_nobody(hosts: Any) -> None:
    host = hosts("box")
    hog = await host.start(
        """
taken = []
for port in range(20000, 20900):
    one = socket.socket()
    one.bind(("", port))
    taken.append(one)
print("ready", flush=True)
wait_for("/nothing")
"""
    )
    lines = await host.run(
        """
with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as server:
    print(os.environ["GPU_PLATFORM_PORTS"], socket.create_server(("", 20000)).getsockname()[1])
"""
    )
    assert lines == ["29500-29515 20000"]
    await host.rig.stop(hog.key)


async def test_an_attempt_in_the_hosts_network_does_not_reach_isolated_ones(lan: Lan, tmp_path: Path) -> None:
    machine = lan.machine("box")
    isolated = Host(machine, tmp_path / "one")
    plain = Host(machine, tmp_path / "two", network=NetworkSettings(mode="host"))
    try:
        victim = await isolated.start(LISTEN)
        address = isolated.rig.log(victim).split("at ")[1].split()[0]
        lines = await plain.run(
            f"quickly('tcp', tcp, {address!r}, 4000)\nquickly('abstract', abstract, 'passing-gpus')"
        )
        assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines
    finally:
        await isolated.aclose()
        await plain.aclose()


async def test_ranks_of_one_attempt_meet_and_use_abstract_sockets(hosts: Any) -> None:
    host = hosts("box")
    plan = host.plan(
        """
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
print(socket.gethostbyname(socket.gethostname()), os.environ["NCCL_SOCKET_IFNAME"], flush=True)
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        link, _ = server.accept()
        print(link.recv(100).decode())
else:
    while True:
        try:
            socket.create_connection(address).sendall(b"hello from rank 1")
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            break
"""
    )
    ranks = [plan.ranks[0].model_copy(update={"rank": rank, "local_rank": rank}) for rank in (0, 1)]
    plan = plan.model_copy(update={"ranks": ranks, "world_size": 2})
    host.launch(plan)
    assert (await host.rig.watch(plan)).first_failure is None, host.rig.log(plan)
    assert host.rig.log(plan).splitlines() == ["127.0.0.1 lo", "hello from rank 1"]


MEET = """
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank = int(os.environ["RANK"])
me = socket.gethostbyname(socket.gethostname())
print("ready", me, os.environ["NCCL_SOCKET_IFNAME"], socket.if_nametoindex("gang0") > 0, flush=True)
def again(where):
    while True:
        try:
            return socket.create_connection(where, 3)
        except (ConnectionRefusedError, TimeoutError):
            time.sleep(0.01)
if rank == 0:
    with socket.create_server(address) as server:
        link, _ = server.accept()
        word, peer = link.recv(100).decode().split()  # as NCCL does: a port of the kernel's choice, announced
        print(word, flush=True)
        again((peer.split(":")[0], int(peer.split(":")[1]))).sendall(b"from rank 0 " + "TOKEN".encode())
else:
    with socket.create_server((me, 0)) as server:
        link = again(address)
        link.sendall(f"TOKEN-from-rank-{rank} {me}:{server.getsockname()[1]}".encode())
        back, _ = server.accept()
        print(back.recv(100).decode(), flush=True)
"""


async def test_a_gang_on_two_hosts_meets_and_reaches_any_port_of_its_own(hosts: Any) -> None:
    pair = [hosts("one"), hosts("two")]
    plans = await start_gang(pair, MEET)
    first, second = await logs(pair, plans)
    assert first == ["ready 198.19.0.1 gang0 True", "TOKEN-from-rank-1"]
    assert second == ["ready 198.19.0.2 gang0 True", "from rank 0 TOKEN"]


async def test_two_gangs_on_the_same_hosts_do_not_meet(hosts: Any) -> None:
    """They have the same addresses, and each reaches its own. A rank without a gang reaches neither."""
    pair = [hosts("one"), hosts("two")]
    red = await start_gang(pair, MEET.replace("TOKEN", "red"))
    blue = await start_gang(pair, MEET.replace("TOKEN", "blue"))
    assert [log[1] for log in await logs(pair, blue)] == ["blue-from-rank-1", "from rank 0 blue"]
    assert [log[1] for log in await logs(pair, red)] == ["red-from-rank-1", "from rank 0 red"]
    waiting = await start_gang(pair, LISTEN.replace("probe.connect", "(lambda _: None)"))
    await eventually(lambda: all("ready" in h.rig.log(p, p.ranks[0].rank) for h, p in zip(pair, waiting, strict=True)))
    lines = await pair[0].run(
        """
frame = b"\\x08" + bytes(7) + b"anything"
for where in ("10.1.0.2", "10.1.0.1"):
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.connect((where, 8474))
    attempt("a frame of its own", lambda: (link.send(frame), time.sleep(0.2), link.send(frame)))
for where in ("198.19.0.1", "198.19.0.2"):
    quickly(where, tcp, where, 4000)
"""
    )
    assert not [line for line in lines if "WORKS" in line or "SLOW" in line], lines


async def test_a_gang_with_a_host_that_cannot_isolate_uses_the_network_of_its_hosts(hosts: Any) -> None:
    """What worked before goes on, unless the settings say ``isolated``: then the launch says what to do."""
    pair = [hosts("one"), hosts("two", network=NetworkSettings(mode="host"))]
    script = "print('gang0' in [name for _, name in socket.if_nameindex()], os.environ['MASTER_ADDR'])"
    plans = await start_gang(pair, script)
    assert await logs(pair, plans) == [["False 10.1.0.1"], ["False 10.1.0.1"]]
    strict = hosts("three", network=NetworkSettings(mode="isolated"))
    with pytest.raises(HostUnavailable, match=r"not every host of .* set node.network.mode to auto"):
        await start_gang([strict, pair[1]], script)


async def test_a_rank_cannot_leave_or_change_its_network(hosts: Any) -> None:
    host = hosts("box")
    lines = await host.run(
        """
attempt("setns", call, "setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0x40000000)
attempt("unshare", call, "unshare", 0x40000000)
for pid in filter(str.isdigit, os.listdir("/proc")):
    attempt("setns of a process", lambda: call("setns", os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0))
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)
def tool(*command):
    if subprocess.run(command, capture_output=True).returncode != 0:
        raise OSError(errno.EPERM, "")
attempt("route", tool, "ip", "route", "add", "10.1.0.1/32", "dev", "lo")
attempt("address", tool, "ip", "addr", "add", "198.18.0.9/32", "dev", "eth0")
attempt("forwarding", open, "/proc/sys/net/ipv4/ip_forward", "w")
print(sorted(name for _, name in socket.if_nameindex()))
"""
    )
    assert lines[-1] == "['eth0', 'lo']"
    assert not [line for line in lines[:-1] if "WORKS" in line], lines


async def test_a_forged_sender_is_dropped(lan: Lan, hosts: Any) -> None:
    """Whoever could set a rank's addresses would still be held by the host's end of the link."""
    host = hosts("box", network=NetworkSettings(allow=["10.0.0.0/8"]))
    other = lan.machine("other")
    other.listen(80)
    plan = await host.start("print('ready', flush=True)\nwait_for('/nothing')")
    rank = host.rig.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    inside = ["nsenter", f"--net=/proc/{rank.pid}/ns/net"]
    connect = [*inside, sys.executable, "-c", "import socket; socket.create_connection(('10.1.0.2', 80), 1)"]
    assert run(connect).returncode == 0
    run([*inside, "ip", "addr", "add", "10.1.0.77/32", "dev", "eth0"])
    run([*inside, "ip", "route", "replace", "default", "via", "169.254.1.1", "dev", "eth0", "src", "10.1.0.77"])
    assert b"timed out" in run(connect).stderr


def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, timeout=20)


async def test_exec_is_in_the_ranks_network(hosts: Any) -> None:
    from tests.integration.test_hosts_exec import ExecRig

    host = hosts("box")
    plan = await host.start("print('ready', os.readlink('/proc/self/ns/net'), flush=True)\nwait_for('/nothing')")
    sessions = ExecRig(host.rig)
    try:
        with host.machine.here():
            ran = await sessions.run(plan.key, "readlink", "/proc/self/ns/net")
        assert host.rig.log(plan).split() == ["ready", ran.out.strip()]
        assert ran.out.strip() != os.readlink("/proc/self/ns/net")
    finally:
        sessions.sessions.close()


def left_on(host: Host) -> list[str]:
    return [name for name in host.machine.links() if name.startswith("gp")]


async def test_nothing_is_left_after_the_end(hosts: Any) -> None:
    pair = [hosts("one"), hosts("two")]
    rules = [host.machine.run("nft", "list", "ruleset") for host in pair]
    plans = await start_gang(pair, "print('ready', flush=True)\nwait_for('/nothing')")
    assert [host.machine.run("nft", "list", "ruleset") for host in pair] != rules, "the gang was admitted"
    assert [len(left_on(host)) for host in pair] == [1, 1]
    for host, plan in zip(pair, plans, strict=True):
        await host.rig.stop(plan.key)
        await eventually(lambda host=host: not left_on(host), "the links are gone")
        assert "8474" not in host.machine.run("ss", "-Hlun"), "nor the socket of the gang's network"
    assert [host.machine.run("nft", "list", "ruleset") for host in pair] == rules, "nor a rule"


@pytest.mark.parametrize("after_ms", [0, 3, 6, 10, 15, 25])
async def test_a_spawner_killed_in_the_middle_leaves_nothing(hosts: Any, after_ms: int) -> None:
    host = hosts("box")
    with host.machine.here():
        pid = host.rig.worker._launcher.spawner.pid
    plan = host.plan("print('ready', flush=True)\nwait_for('/nothing')")
    launching = asyncio.get_running_loop().run_in_executor(None, lambda: host.launch(plan))
    await asyncio.sleep(after_ms / 1000)
    for process in [pid, *children_of(pid)]:
        if is_running(process):
            os.kill(process, 9)
    with contextlib.suppress(HostUnavailable):
        await launching
    with host.machine.here():
        host.rig.restart()
    await host.rig.stop(plan.key)
    await eventually(lambda: not left_on(host), "the links are gone")


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


async def test_rules_that_another_program_throws_away_are_written_again(hosts: Any) -> None:
    host = hosts("box")
    host.machine.listen(5432)
    plan = await host.start("print('ready', flush=True)\nwait_for('/nothing')")
    host.machine.run("nft", "flush", "ruleset")
    await eventually(lambda: host.table() in host.machine.run("nft", "list", "tables"), "the table is back")
    lines = await host.run("quickly('database', tcp, '10.1.0.1', 5432)")
    assert lines == ["database ECONNREFUSED"]
    await host.rig.stop(plan.key)


async def test_a_program_that_changes_many_rules_does_not_keep_the_guard_busy(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts("box")
    looks: list[bool] = []
    is_there = host.firewall.is_there
    monkeypatch.setattr(host.firewall, "is_there", lambda: looks.append(is_there()) or looks[-1])
    tables = "".join(f"table ip theirs{number} {{\n}}\n" for number in range(300))
    host.machine.run("nft", "-f", "-", say=tables)
    await eventually(lambda: looks, "the guard looked")
    host.machine.run("nft", "flush", "ruleset")
    await eventually(lambda: host.table() in host.machine.run("nft", "list", "tables"), "the table is back")
    assert len(looks) < 10


async def test_rules_of_others_stay_and_two_hosts_on_one_machine_have_two_tables(lan: Lan, tmp_path: Path) -> None:
    machine = lan.machine("box")
    foreign = "table ip theirs {\nchain in {\ntype filter hook input priority 0\ntcp dport 99 drop\n}\n}\n"
    machine.run("nft", "-f", "-", say=foreign)
    before = machine.run("nft", "list", "table", "ip", "theirs")
    both = [Host(machine, tmp_path / name) for name in ("one", "two")]
    try:
        plans = [await host.start(LISTEN) for host in both]
        addresses = [host.rig.log(plan).split("at ")[1].split()[0] for host, plan in zip(both, plans, strict=True)]
        assert len(set(addresses)) == 2
        lines = await both[0].run(f"quickly('the other host', tcp, {addresses[1]!r}, 4000)")
        assert lines == ["the other host ECONNREFUSED"]
        tables = machine.run("nft", "list", "tables")
        assert all(host.table() in tables for host in both)
        assert machine.run("nft", "list", "table", "ip", "theirs") == before
    finally:
        for host in both:
            await host.aclose()


async def test_a_machine_that_did_not_route_routes_for_ranks_only(lan: Lan, hosts: Any) -> None:
    host = hosts("box")
    other, far = lan.machine("other"), Machine("far")
    far.listen(80)
    try:
        with host.machine.here():
            command = ["ip", "link", "add", "eth1", "up", "type", "veth", "peer", "name", "eth0",
                       "netns", f"/proc/{os.getpid()}/fd/{far.fd}"]  # fmt: skip
            assert run(command).returncode == 0
        host.machine.run("ip", "addr", "add", "10.2.0.1/24", "dev", "eth1")
        far.run("ip", "addr", "add", "10.2.0.2/24", "dev", "eth0")
        far.run("ip", "link", "set", "eth0", "up")
        far.run("ip", "route", "add", "default", "via", "10.2.0.1")
        other.run("ip", "route", "add", "10.2.0.0/24", "via", "10.1.0.1")
        assert host.machine.run("cat", "/proc/sys/net/ipv4/ip_forward") == "1\n"
        with other.here(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(("10.2.0.2", 80), 2)
        with host.machine.here():
            host.rig.restart()  # the next node worker finds forwarding on, and still knows
        with other.here(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(("10.2.0.2", 80), 2)
    finally:
        far.close()


def test_a_host_says_what_drops_the_packets_of_ranks(lan: Lan) -> None:
    machine = lan.machine("box")
    docker = "table ip filter {\nchain FORWARD {\ntype filter hook forward priority 0; policy drop\n}\n}\n"
    machine.run("nft", "-f", "-", say=docker)
    with machine.here():
        found = choose_isolation(NodeSettings(isolation="required"))
    assert found.network.isolated
    assert [text for text in found.missing if "chain FORWARD of table ip filter drops" in text]


def test_a_host_without_nft_says_so_and_does_not_start_if_it_must_isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_platform.node.network import choice

    found = choice.find_tool
    monkeypatch.setattr(choice, "find_tool", lambda name: None if name == "nft" else found(name))
    choice._run_aside.cache_clear()
    try:
        auto = choose_isolation(NodeSettings(isolation="required"))
        assert not auto.network.isolated
        assert [text for text in auto.missing if "nft is not installed (apt-get install nftables)" in text]
        with pytest.raises(HostUnavailable, match=r"node.network.mode: isolated.*apt-get install nftables"):
            choose_isolation(NodeSettings(isolation="required", network=NetworkSettings(mode="isolated")))
    finally:
        choice._run_aside.cache_clear()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed here: apt-get install openmpi-bin")
async def test_mpirun_starts_its_processes_in_the_jails_of_its_own_gang(hosts: Any) -> None:
    pair = [hosts("one"), hosts("two")]
    say = "echo $OMPI_COMM_WORLD_RANK on $GPU_PLATFORM_HOST as $(id -u) in $(readlink /proc/self/ns/net)"
    plans = await start_gang(pair, "", launcher=Launcher.MPI, command=["mpirun", "sh", "-c", say], host_count=2)
    first, second = await logs(pair, plans)
    told = sorted(line.split() for line in first)
    assert [line[:3] for line in told] == [["0", "on", "one"], ["1", "on", "two"]]
    assert all(int(line[4]) in NodeSettings(name="x").attempt_uid_range for line in told)
    networks = {line[-1] for line in told}
    assert len(networks) == 2
    assert os.readlink("/proc/self/ns/net") not in networks
    assert second == []
