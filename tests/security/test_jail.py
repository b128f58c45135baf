"""Attacks on the jail, each by a real rank as root, with real cgroups, a real device filter and real namespaces.

GPUs are played by character devices of this machine that the jail does not admit by itself. Every
attack has a cap of its own, so that a jail that fails harms nobody.
"""

from __future__ import annotations

import os
import stat
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.node.inventory.cuda_driver import CudaStage
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, find_hierarchies
from gpu_platform.node.isolation.filters import device_filter
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.settings import NodeSettings
from tests.security.attacks import PRELUDE, PYTHON, attack, can_make_node, can_open, run
from tests.support.hosts_rig import HostRig, is_running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")


@pytest.fixture
async def host(tmp_path: Path, dev: Path) -> AsyncIterator[HostRig]:
    work = tmp_path / "work"
    work.mkdir()
    rig = HostRig(
        tmp_path / "state",
        isolation="required",
        dev=dev,
        writable_paths=[Path(sys.prefix), work],
        rank_pids_max=60,
        rank_memory_mib=96,
        rank_tmp_mib=16,
    )
    yield rig
    await rig.aclose()


async def test_a_rank_opens_its_own_gpu_and_sees_no_other(host: HostRig) -> None:
    lines = await run(host, "print(*sorted(n for n in os.listdir('/dev') if 'nvidia' in n)); open_it('/dev/nvidia0')")
    assert lines == ["nvidia0 nvidiactl"]
    lines = await run(host, "print(*sorted(n for n in os.listdir('/dev') if 'nvidia' in n))", gpu=1)
    assert lines == ["nvidia1 nvidiactl"]


async def test_a_job_without_gpus_sees_none(host: HostRig) -> None:
    lines = await run(host, "print([n for n in os.listdir('/dev') if 'nvidia' in n])", gpu=None)
    assert lines == ["[]"]


async def test_another_jobs_gpu_cannot_be_opened_by_any_name(host: HostRig, dev: Path, tmp_path: Path) -> None:
    other = (dev / "nvidia1").stat().st_rdev
    work = tmp_path / "work"
    os.mknod(work / "planted", stat.S_IFCHR | 0o666, other)  # even a node that somebody left where the job can read
    lines = await run(
        host,
        f"""
        attempt("planted", open_it, {str(work / "planted")!r})
        attempt("by path", open_it, {str(dev / "nvidia1")!r})
        for place in ("/tmp/n", "/dev/shm/n", {str(work / "n")!r}):
            attempt("mknod", node, place, {other})
        for pid in filter(str.isdigit, os.listdir("/proc")):
            attempt("root of a process", open_it, f"/proc/{{pid}}/root{dev}/nvidia1")
        attempt("own", open_it, "/dev/nvidia0")
        """,
    )
    assert lines[-1] == "own WORKS"
    assert not [line for line in lines[:-1] if "WORKS" in line]
    assert "planted EPERM" in lines or "planted EACCES" in lines


async def test_the_kernels_filter_holds_even_where_files_and_privileges_do_not(host: HostRig, dev: Path) -> None:
    """Root with all capabilities, on the host's own files, but in the rank's cgroup: only eBPF is left."""
    plan = attack(host, "time.sleep(600)")
    host.launch(plan)
    jail = Jail.of(str(attempt_dir(host.home, plan.key)))
    assert jail is not None
    assert can_open(jail.cgroup.child("rank-0"), dev / "nvidia0")
    assert not can_open(jail.cgroup.child("rank-0"), dev / "nvidia1")
    assert not can_make_node(jail.cgroup.child("rank-0"), dev / "again", (dev / "nvidia0").stat().st_rdev)


@pytest.mark.parametrize("mechanism", ["ebpf", "v1"])
def test_both_device_filters_admit_only_what_they_were_told(dev: Path, mechanism: str) -> None:
    hierarchies = find_hierarchies()
    if mechanism == "v1":
        if "devices" not in hierarchies.v1:
            pytest.skip("no v1 devices controller is mounted here")
        hierarchies = hierarchies._replace(unified=None, v1={**hierarchies.v1, "freezer": "/sys/fs/cgroup/freezer"})
        if not Path(hierarchies.v1["freezer"]).is_dir():
            pytest.skip("no v1 freezer is mounted here")
    cgroup = Cgroup(hierarchies, f"gpu-platform/test-{os.getpid()}-{mechanism}")
    cgroup.create()
    try:
        device_filter.admit_only(cgroup, [*device_filter.HARMLESS, device_filter.device_of(str(dev / "nvidia0"))])
        assert can_open(cgroup, dev / "nvidia0")
        assert can_open(cgroup, Path("/dev/null"))
        assert not can_open(cgroup, dev / "nvidia1")
        assert not can_make_node(cgroup, dev / "again", (dev / "nvidia0").stat().st_rdev)
    finally:
        cgroup.kill()
        assert cgroup.wait_empty(5)
        assert cgroup.remove()


async def test_nothing_of_the_host_can_be_mounted_or_changed(host: HostRig) -> None:
    lines = await run(
        host,
        """
        attempt("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
        attempt("remount", call, "mount", None, b"/", None, 32 | 4096, None)
        attempt("umount", call, "umount2", b"/tmp", 2)
        attempt("chroot", os.chroot, "/tmp")
        attempt("user namespace", call, "unshare", 0x10000000)
        attempt("mount namespace", call, "unshare", 0x20000)
        attempt("setns", call, "setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0)
        attempt("bpf", call, "syscall", 321, 5, None, 0)
        for path in ("/etc/passwd", "/usr/bin/env", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                     "/sys/fs/cgroup", "/sys/kernel/uevent_helper", "/dev/nvidia9", "/root/x"):
            attempt(path, open, path if not os.path.isdir(path) else path + "/x", "a")
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(*(status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")))
        """,
    )
    nothing = "0" * 16
    assert lines[-1] == f"{nothing} {nothing} {nothing} {nothing} 1 2"
    assert not [line for line in lines if "WORKS" in line]


async def test_a_rank_inherits_nothing_that_leads_out(host: HostRig) -> None:
    lines = await run(
        host,
        """
        for fd in os.listdir("/proc/self/fd"):
            try:
                print(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                pass
        for name in ("root", "cwd"):
            print(os.readlink(f"/proc/1/{name}") if os.access(f"/proc/1/{name}", os.R_OK) else "/")
        """,
    )
    opened = {line for line in lines if not line.startswith("/proc/")}
    pipes = {line for line in opened if line.startswith("pipe:")}
    assert len(pipes) <= 1, "its log"
    assert opened - pipes <= {"/dev/null", "/"}


async def test_another_job_can_be_neither_seen_signalled_nor_traced(host: HostRig, tmp_path: Path) -> None:
    victim = attack(host, "print('up', flush=True); time.sleep(600)", gpu=1)
    pid = host.launch(victim).ranks[0].pid
    await eventually(lambda: "up" in host.log(victim), "the victim")
    lines = await run(
        host,
        f"""
        attempt("kill", os.kill, {pid}, 9)
        attempt("ptrace", call, "ptrace", 16, {pid}, 0, 0)
        attempt("memory", open, "/proc/{pid}/mem", "rb")
        print(*sorted(int(name) for name in os.listdir("/proc") if name.isdigit()))
        """,
    )
    assert lines[:3] == ["kill ESRCH", "ptrace ESRCH", "memory ENOENT"]
    assert len(lines[3].split()) <= 3
    assert is_running(pid)


async def test_kill_minus_one_reaches_only_the_jobs_own_processes(host: HostRig) -> None:
    victim = attack(host, "print('up', flush=True); time.sleep(600)", gpu=1)
    pid = host.launch(victim).ranks[0].pid
    attacker = attack(host, "subprocess.Popen(['sleep', '600']); os.kill(-1, 9); print('done')")
    host.launch(attacker)
    await host.watch(attacker)
    await host.stop(attacker.key)
    assert is_running(pid)


async def test_other_jobs_files_and_the_platforms_are_out_of_sight(host: HostRig) -> None:
    victim = attack(host, "open(os.environ['GPU_PLATFORM_CHECKPOINT_DIR'] + '/secret', 'w').write('x')", gpu=1)
    host.launch(victim)
    await host.watch(victim)
    state = host.settings.state_dir
    assert (state / "checkpoints" / victim.key.job_id / "1" / "secret").exists()
    lines = await run(
        host,
        f"""
        print(os.listdir({str(state)!r}), len(os.listdir({str(state / "checkpoints")!r})))
        attempt("secret", open, {str(state / "checkpoints" / victim.key.job_id / "1" / "secret")!r})
        mine = os.environ["GPU_PLATFORM_CHECKPOINT_DIR"]
        attempt("mine", open, mine + "/x", "w")
        attempt("a later attempt's", os.mkdir, mine + "/../2")
        """,
    )
    assert lines == ["['checkpoints'] 1", "secret ENOENT", "mine WORKS", "a later attempt's EROFS"]


async def test_a_workdir_inside_the_platforms_own_directory_or_the_system_gives_nothing(host: HostRig) -> None:
    plan = attack(host, "")
    with pytest.raises(PreflightFailed, match="belongs to the platform"):
        host.worker.prepare(plan.model_copy(update={"workdir": str(host.settings.state_dir)}))
    for system in ("/etc", "/", "/root", "/usr/local", "/proc/self/cwd"):
        with pytest.raises(PreflightFailed, match=r"is not allowed|belongs to the platform"):
            host.worker.prepare(plan.model_copy(update={"workdir": system}))


async def test_a_fork_bomb_hurts_only_itself(host: HostRig) -> None:
    script = """
    made = 0
    try:
        for _ in range(500):  # our own cap
            if os.fork() == 0:
                time.sleep(600)
            made += 1
    except OSError as error:
        print(made, errno.errorcode[error.errno], flush=True)
    time.sleep(600)
    """
    plan = attack(host, script)
    host.launch(plan)
    await eventually(lambda: host.log(plan), "the limit")
    made, code = host.log(plan).split()
    assert code == "EAGAIN"
    assert int(made) < 60
    await host.stop(plan.key)
    assert host.processes(plan.key) == {}


async def test_a_memory_bomb_ends_the_rank_that_set_it_off(host: HostRig) -> None:
    plan = attack(
        host, "x = []\nfor _ in range(40):\n    x.append(bytearray(os.urandom(1 << 20) * 10))\nprint('WORKS')"
    )
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is not None
    assert exits.first_failure.exit_code == 137
    assert "WORKS" not in host.log(plan)
    assert "at its memory limit" in host.log(plan)


async def test_tmp_and_shared_memory_fill_up_for_their_job_alone(host: HostRig) -> None:
    lines = await run(
        host,
        """
        def fill(path):
            with open(path, "wb") as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
        attempt("tmp", fill, "/tmp/full")
        attempt("var", fill, "/var/tmp/full")
        """,
    )
    assert lines == ["tmp ENOSPC", "var ENOSPC"]
    assert not Path("/tmp/full").exists()


@pytest.mark.parametrize("supervised", [True, False])
async def test_nothing_survives_a_stop(host: HostRig, supervised: bool) -> None:
    """Double fork, a new session, an empty environment, another name, no signals; even without its supervisor."""
    script = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                if number not in (9, 19):
                    signal.signal(number, signal.SIG_IGN)
            os.execve("/bin/sleep", ["[kworker/0:1]", "600"], {})
        os._exit(0)
    os.wait()
    print("up", flush=True)
    time.sleep(600)
    """
    plan = attack(host, script)
    host.launch(plan)
    await eventually(lambda: "up" in host.log(plan), "up")
    pids = list(host.processes(plan.key).values())
    assert len(pids) == 2
    if not supervised:
        supervisor = host.worker.local.rank(plan.key, 0).supervisor
        assert supervisor is not None
        os.kill(supervisor.pid, 9)
    jail = Jail.of(str(attempt_dir(host.home, plan.key)))
    await host.stop(plan.key, grace_s=0.1)
    assert not any(map(is_running, pids))
    assert jail is not None
    assert not jail.exists
    assert jail.holder is None


async def test_the_cgroup_cannot_be_left(host: HostRig) -> None:
    lines = await run(
        host,
        """
        for directory in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory"):
            if os.path.exists(directory + "/cgroup.procs"):
                attempt(directory, lambda: open(directory + "/cgroup.procs", "w").write("0"))
        """,
    )
    assert lines
    assert all(line.endswith("EROFS") for line in lines)


async def test_cgroups_of_others_are_not_seen(host: HostRig) -> None:
    """Their names are ids of other tenants' jobs, and their files say what those jobs do."""
    victim = attack(host, "print('up', flush=True); time.sleep(600)", gpu=1)
    host.launch(victim)
    await eventually(lambda: "up" in host.log(victim), "the victim")
    lines = await run(
        host,
        f"""
        print([names for _, names, _ in os.walk("/sys/fs/cgroup") if {victim.key.job_id!r} in str(names)])
        own = {{line.rstrip().split(":", 2)[2] for line in open("/proc/self/cgroup")}}
        [own] = [path for path in own if "rank-0" in path]
        print([root for root, _, files in os.walk("/sys/fs/cgroup") if root.endswith(own) and files] != [])
        attempt("write", open, "/sys/fs/cgroup" + own + "/x", "w")
        for root, names, _ in os.walk("/sys/fs/cgroup"):
            if os.path.basename(root) == "gpu-platform":
                print(len(names), oct(os.stat(root).st_mode), os.access(root, os.W_OK))
        """,
    )
    assert lines[:2] == ["[]", "True"]
    assert lines[2].split()[1] in ("EROFS", "EACCES", "ENOENT")
    assert lines[3:]
    assert all(line.split()[0] in ("0", "1") and line.endswith("False") for line in lines[3:]), lines


async def test_ranks_of_one_job_share_memory_and_reach_the_hosts_loopback(host: HostRig, tmp_path: Path) -> None:
    """What NCCL needs between ranks, and what simulated gangs need for their rendezvous."""
    script = """
    port, mine = int(os.environ["MASTER_PORT"]), os.environ["RANK"]
    if mine == "0":
        open("/dev/shm/handle", "w").write(str(os.getpid()))
        server = socket.create_server(("127.0.0.1", port))
        server.accept()
    else:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        peer = int(open("/dev/shm/handle").read())
        os.kill(peer, 0)
    """
    plan = host.plan(PYTHON, "-c", PRELUDE + textwrap.dedent(script), ranks=2)
    host.launch(plan)
    exits = await host.watch(plan)
    assert exits.first_failure is None, [host.log(plan, rank) for rank in (0, 1)]


async def test_a_user_with_an_account_runs_as_it(host: HostRig, tmp_path: Path) -> None:
    host.settings.node.users["ada"] = "nobody"
    plan = host.plan("sh", "-c", "id -u; id -un; touch $GPU_PLATFORM_CHECKPOINT_DIR/x && echo written")
    host.launch(plan)
    await host.watch(plan)
    assert host.log(plan).split()[1:] == ["nobody", "written"]
    strange = HostRig(tmp_path / "state", isolation="required", users={"ada": "no-such-account"})
    with pytest.raises(PreflightFailed, match="no-such-account"):
        strange.worker.prepare(strange.plan("true"))
    await strange.aclose()


async def test_a_jail_outlives_the_node_worker_and_its_successor_takes_it_down(host: HostRig) -> None:
    plan = attack(host, "time.sleep(600)")
    pid = host.launch(plan).ranks[0].pid
    host.restart()
    assert host.launch(plan).ranks[0].pid == pid
    assert is_running(pid)
    await host.stop(plan.key)
    assert not is_running(pid)


def test_hosts_say_what_they_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    jailed = choose_isolation(NodeSettings(isolation="required"))
    assert jailed.kind == "jailed"
    assert not [text for text in jailed.missing if "device" in text]
    plain = choose_isolation(NodeSettings(simulate="dgx-h100"))
    assert plain.kind == "plain-process"
    assert [text for text in plain.missing if "device" in text]
    monkeypatch.setenv("PATH", "/nowhere")
    from gpu_platform.node.isolation import isolation

    isolation._probe.cache_clear()
    try:
        auto = choose_isolation(NodeSettings(isolation="auto"))
        assert auto.kind == "plain-process"
        assert any("bubblewrap is not installed" in text for text in auto.missing)
        with pytest.raises(HostUnavailable, match="bubblewrap"):
            choose_isolation(NodeSettings(isolation="required"))
    finally:
        isolation._probe.cache_clear()


async def test_a_cuda_installation_below_tmp_is_seen_and_read_only(tmp_path: Path, dev: Path) -> None:
    directory = tmp_path / "opt" / "cuda-12.4"
    (directory / "bin").mkdir(parents=True)
    (directory / "version.json").write_text('{"cuda": {"version": "12.4.0"}}')
    rig = HostRig(tmp_path / "state", isolation="required", dev=dev, cuda_roots=[directory])
    assert str(directory).startswith("/tmp/"), "below what the jail replaces"
    rig.restart([CudaStage(rig.inventory.cuda_installations, rig.inventory.cuda_version)])
    try:
        shell = 'ls "$CUDA_HOME"; touch "$CUDA_HOME/mine" 2>/dev/null && echo written'
        plan = rig.plan("sh", "-c", f"{shell}; true", cuda="12")
        rig.launch(plan)
        assert (await rig.watch(plan)).first_failure is None
        assert rig.log(plan).split() == ["bin", "version.json"]
    finally:
        await rig.aclose()
