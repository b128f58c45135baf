"""The kernel's view of a jail: which system calls are left, and that the process that holds the jail is no way out.

Each attack is made by a real rank, once with its user's own account and once with one of its job. The calls go to the
kernel by number, as an attacker's would.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import gpu_platform
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation import isolation, privileges
from gpu_platform.node.isolation.cgroups.cgroup import find_hierarchies
from gpu_platform.node.isolation.filters import seccomp, system_calls
from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.isolation.orders import RankOrder
from gpu_platform.node.isolation.passwd import HOLDER_UID, Account, is_account
from gpu_platform.node.processes.spawner_client import _PROGRAM
from gpu_platform.node.system import records
from gpu_platform.node.system.lease_page import anonymous_page
from gpu_platform.node.system.lock_watch import wait_released
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.settings import NodeSettings
from tests.security import attacks
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")

PYTHON = "/usr/bin/python3"
"""One that every account can execute."""
X32 = 0x4000_0000
NUMBERS = {
    "x86_64": {
        "ptrace": 101,
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "unshare": 272,
        "setns": 308,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "fanotify_init": 300,
        "open_by_handle_at": 304,
        "init_module": 175,
        "finit_module": 313,
        "kexec_load": 246,
        "reboot": 169,
        "swapon": 167,
        "quotactl": 179,
        "settimeofday": 164,
        "clock_settime": 227,
        "adjtimex": 159,
        "sethostname": 170,
        "syslog": 103,
        "iopl": 172,
        "modify_ldt": 154,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "open_tree": 428,
        "move_mount": 429,
        "fsopen": 430,
        "fsmount": 432,
        "fspick": 433,
        "mount_setattr": 442,
        "open_tree_attr": 467,
        "a call of the future": 600,
        "getpid by x32": X32 | 39,
    },
}
"""Of x86_64: the numbers of the calls that were tried and refused before, and of some that only a list of what is
allowed refuses."""

REFUSED = f"calls = {NUMBERS['x86_64']!r}\n" + textwrap.dedent("""
    for name, number in calls.items():
        if name != "ptrace":
            attempt(name, call, "syscall", number, 0, 0, 0, 0, 0)
    attempt("clone with a user namespace", call, "syscall", 56, 0x10000000 | 17, 0, 0, 0, 0)
    attempt("clone with a network namespace", call, "syscall", 56, 0x40000000 | 17, 0, 0, 0, 0)
    attempt("clone3", call, "syscall", 435, ctypes.create_string_buffer(88), 88)
    for family in (17, 40, 38, 44, 30):  # packet, vsock, crypto of the kernel, XDP, TIPC
        attempt(f"socket {family}", lambda: socket.socket(family, socket.SOCK_DGRAM).close())
    attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
    attempt("setuid", os.setuid, 12345)
    attempt("setgroups", os.setgroups, [0, 4])
    attempt("device node", os.mknod, "/tmp/node", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    master, slave = os.openpty()
    import fcntl
    attempt("TIOCSTI", fcntl.ioctl, slave, 0x5412, b"x")
    for root, _, names in os.walk("/sys/fs/cgroup"):
        if "cgroup.kill" in names and "gpu-platform" in root:
            attempt("cgroup.kill", open, root + "/cgroup.kill", "w")
            break
    attempt("sysfs", open, "/sys/kernel/mm/transparent_hugepage/enabled", "w")
""")


@pytest.fixture(params=["own account", "temporary account"])
async def host(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[HostRig]:
    users = {"ada": "nobody"} if request.param == "own account" else {}
    rig = HostRig(tmp_path / "state", isolation="required", users=users, rank_pids_max=200, rank_memory_mib=256)
    yield rig
    await rig.aclose()


def attack(host: HostRig, script: str) -> HostPlan:
    return attacks.attack(host, script, None, PYTHON)


async def run(host: HostRig, script: str) -> list[str]:
    return await attacks.run(host, script, None, PYTHON)


def jail_of(host: HostRig, plan: HostPlan) -> Jail:
    jail = Jail.of(str(attempt_dir(host.home, plan.key)))
    assert jail is not None
    return jail


def status_of(pid: int | str) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


async def test_a_rank_that_traces_the_holder_gains_nothing(host: HostRig) -> None:
    """Pid 1 of the jail was once root with no filter: a rank traced it and made it execute what it liked."""
    lines = await run(
        host,
        """
        import subprocess
        ATTACH, SEIZE, DETACH = 16, 0x4206, 17
        own = subprocess.Popen(["sleep", "600"])
        attempt("own child", call, "ptrace", SEIZE, own.pid, 0, 0)
        attempt("attach", call, "ptrace", ATTACH, 1, 0, 0)
        attempt("seize", call, "ptrace", SEIZE, 1, 0, 0)
        class Vector(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        here = ctypes.create_string_buffer(8)
        local, remote = Vector(ctypes.addressof(here), 8), Vector(0x1000, 8)
        attempt("write its memory", call, "process_vm_writev", 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        for name in ("mem", "environ", "auxv", "maps"):
            attempt(name, lambda: open(f"/proc/1/{name}", "rb").read())
        for name in ("root", "cwd", "exe", "ns/mnt", "ns/user"):
            attempt(name, os.readlink, f"/proc/1/{name}")
        attempt("descriptors", os.listdir, "/proc/1/fd")
        attempt("signal", os.kill, 1, 9)
        attempt("pidfd_getfd", call, "syscall", 438, os.pidfd_open(1), 0, 0)
        own.kill()
        """,
    )
    assert lines[0] == "own child WORKS", "the attack itself is right"
    assert len(lines) == 16
    assert not [line for line in lines[1:] if "WORKS" in line], lines


async def test_the_holder_of_a_jail_has_nothing_that_could_be_stolen(host: HostRig) -> None:
    plan = attack(host, "time.sleep(600)")
    host.launch(plan)
    jail = jail_of(host, plan)
    holders = jail.cgroup.child("holder").processes()
    assert jail.holder is not None
    assert holders == {jail.holder.pid}, "and no process that started it"
    rank = host.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    for pid in (jail.holder.pid, rank.pid):
        status = status_of(pid)
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    uids = {pid: set(status_of(pid)["Uid"].split()) for pid in (jail.holder.pid, rank.pid)}
    assert uids[jail.holder.pid] == {str(HOLDER_UID)}
    assert not uids[rank.pid] & uids[jail.holder.pid]


def test_no_rank_runs_as_the_holder() -> None:
    account = Account("ada", 1000, 1000, "/home/ada", [])
    assert is_account([*account])
    assert not is_account([*account._replace(uid=HOLDER_UID)])


async def test_the_holder_is_in_every_tree_of_cgroups_that_the_ranks_are_in(host: HostRig) -> None:
    plan = attack(host, "time.sleep(600)")
    host.launch(plan)
    jail = jail_of(host, plan)
    rank = host.worker.local.rank(plan.key, 0).main_process
    assert rank is not None
    assert jail.holder is not None
    of_rank, of_holder = (
        dict(re.findall(r"^\d+:(\S*):(.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE))
        for pid in (rank.pid, jail.holder.pid)
    )
    trees = {tree for tree, path in of_rank.items() if jail.cgroup.name in path}
    assert trees
    assert {tree: of_holder[tree] for tree in trees} == dict.fromkeys(trees, f"/{jail.cgroup.name}/holder")


async def test_no_tree_of_cgroups_can_be_mounted_from_inside(host: HostRig) -> None:
    lines = await run(
        host,
        """
        os.mkdir("/tmp/tree")
        for kind, options in ((b"cgroup2", None), (b"cgroup", b"pids"), (b"cgroup", b"memory"),
                              (b"cgroup", b"devices"), (b"proc", None), (b"sysfs", None), (b"tmpfs", None),
                              (b"overlay", b"lowerdir=/,upperdir=/tmp")):
            attempt(f"{kind} {options}", call, "mount", b"none", b"/tmp/tree", kind, 0, options)
        """,
    )
    assert len(lines) == 8
    assert {line.split()[-1] for line in lines} == {"EPERM"}


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="the calls are named by their numbers on x86_64")
async def test_what_is_not_allowed_is_refused(host: HostRig) -> None:
    lines = await run(host, REFUSED)
    answers = dict(line.rsplit(" ", 1) for line in lines)
    assert set(NUMBERS["x86_64"]) - {"ptrace"} <= answers.keys()
    assert not [name for name, answer in answers.items() if answer == "WORKS"], answers
    expected = {"ENOSYS": ("open_tree_attr", "a call of the future", "clone3"), "EPERM": ("bpf", "keyctl", "mount")}
    for answer, names in expected.items():
        assert {answers[name] for name in names} == {answer}
    assert {answers[f"socket {family}"] for family in (17, 40, 38, 44, 30)} == {"EAFNOSUPPORT"}


async def test_su_gains_nothing(host: HostRig) -> None:
    script = 'ran = subprocess.run(["su", "-c", "id -u"], capture_output=True, text=True, stdin=subprocess.DEVNULL)'
    lines = await run(host, f"{script}\nprint(ran.returncode, ran.stdout.strip() or '-')")
    if os.geteuid() == 0 and host.settings.node.users:
        assert lines[0].split()[0] != "0"
    status = "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapBnd'))))"
    assert await run(host, status) == [f"{'0' * 16} {'0' * 16}"]


async def test_what_jobs_need_works(host: HostRig) -> None:
    """CUDA and NCCL (memory policies, shared memory, affinity), debuggers, data loaders, asynchronous I/O."""
    lines = await run(
        host,
        """
        import mmap, multiprocessing, threading
        from multiprocessing import shared_memory
        def ok(what, works):
            print(what, "WORKS" if works else "FAILS", flush=True)
        memory = mmap.mmap(-1, 1 << 20)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if hasattr(libc, "syscall"):
            nodes = ctypes.c_ulong(1)
            attempt("mbind", call, "syscall", 237, ctypes.c_void_p(address), 1 << 20, 1, ctypes.byref(nodes), 64, 0)
            attempt("set_mempolicy", call, "syscall", 238, 0, None, 0)
            attempt("get_mempolicy", call, "syscall", 239, None, None, 0, None, 0)
            attempt("move_pages", call, "syscall", 279, 0, 0, None, None, None, 0)
            attempt("io_setup", call, "syscall", 206, 1, ctypes.byref(ctypes.c_ulong(0)))
            attempt("personality", call, "syscall", 135, 0x40000)
            attempt("membarrier", call, "syscall", 324, 0, 0, 0)
        attempt("mlock", call, "mlock", ctypes.c_void_p(address), ctypes.c_size_t(1 << 20))
        attempt("affinity", os.sched_setaffinity, 0, os.sched_getaffinity(0))
        attempt("memfd", os.memfd_create, "x")
        child = subprocess.Popen(["sleep", "600"])
        pidfd = attempt("pidfd_open", os.pidfd_open, child.pid)
        attempt("pidfd_getfd", call, "syscall", 438, pidfd, 1, 0)
        attempt("seize", call, "ptrace", 0x4206, child.pid, 0, 0)
        attempt("memory of a child", lambda: open(f"/proc/{child.pid}/mem", "rb").close())
        attempt("pidfd_send_signal", signal.pidfd_send_signal, pidfd, signal.SIGKILL)
        thread = threading.Thread(target=lambda: ok("thread", True)); thread.start(); thread.join()
        block = shared_memory.SharedMemory(create=True, size=4096); block.close(); block.unlink()
        with multiprocessing.Pool(2) as pool:
            ok("pool", pool.map(abs, [-1, -2]) == [1, 2])
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            attempt(str(family), lambda: socket.socket(family, socket.SOCK_STREAM).close())
        attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close())
        attempt("fifo", os.mkfifo, "/tmp/fifo")
        """,
    )
    if platform.machine() == "x86_64":
        assert len(lines) == 22
    assert not [line for line in lines if not line.endswith("WORKS")], lines


async def test_processes_that_nobody_waits_for_do_not_stay(host: HostRig) -> None:
    """The holder is pid 1: all whose parent ends become its children, and it must not keep them as zombies."""
    lines = await run(
        host,
        """
        for _ in range(30):
            if os.fork() == 0:
                if os.fork() == 0:
                    time.sleep(0.05)
                os._exit(0)
            os.wait()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and len([n for n in os.listdir("/proc") if n.isdigit()]) > 2:
            time.sleep(0.01)
        print(len([n for n in os.listdir("/proc") if n.isdigit()]))
        """,
    )
    assert lines == ["2"], "the holder and the rank"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls of x86_64")
async def test_32_bit_calls_are_refused(host: HostRig) -> None:
    """``int 0x80`` in a 64-bit process has other numbers, which a filter of 64-bit numbers does not know."""
    lines = await run(
        host,
        """
        import mmap
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(bytes.fromhex("b8140000 00 cd80 c3".replace(" ", "")))  # eax = 20 (getpid); int 0x80; ret
        getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        if os.fork() == 0:
            os._exit(1 if getpid() == -errno.EPERM else 0)
        status = os.wait()[1]
        print("refused" if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 1 else "WORKS")
        """,
    )
    assert lines == ["refused"]


async def test_set_user_id_programs_give_nothing(tmp_path: Path) -> None:
    """A program of root with the set-user-ID bit and with file capabilities, in a directory that a job may use."""
    work = tmp_path / "work"
    work.mkdir()
    rig = HostRig(tmp_path / "state", isolation="required", writable_paths=[work])
    shutil.copy("/usr/bin/id", work / "id")
    (work / "id").chmod(0o6755)
    capabilities = struct.pack("<IIIII", 0x0200_0001, 0xFFFF_FFFF, 0, 0xFFFF_FFFF, 0)  # all, effective
    with contextlib.suppress(OSError):
        os.setxattr(work / "id", "security.capability", capabilities)
    try:
        options = "next(line for line in open('/proc/self/mountinfo') if '/work ' in line).split()[5]"
        lines = await run(rig, f"subprocess.run([{str(work / 'id')!r}, '-u'])\nprint({options})")
        assert int(lines[0]) in rig.settings.node.attempt_uid_range
        assert {"nosuid", "nodev"} <= set(lines[1].split(","))
    finally:
        await rig.aclose()


@pytest.mark.parametrize(("pattern", "limited"), [("|/usr/share/apport", True), ("@/run/dumps", True), ("core", False)])
def test_no_program_of_root_gets_the_core_dump_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, limited: bool
) -> None:
    """The kernel starts that program as root outside of the jail, also if the limit of cores is 0 (core(5))."""
    (tmp_path / "core_pattern").write_text(f"{pattern}\n")
    monkeypatch.setattr(privileges, "_CORE_PATTERN", str(tmp_path / "core_pattern"))
    pid = os.fork()
    if pid == 0:
        privileges.limit_cores()
        os._exit(resource.getrlimit(resource.RLIMIT_CORE) == (1, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == limited


def test_our_own_processes_cannot_be_read_by_others_of_their_user() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after execve
        os.write(writing, str(os.stat("/proc/self/environ").st_uid).encode() + b" ")
        privileges.hide_memory()
        os.write(writing, str(os.stat("/proc/self/environ").st_uid).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading) as file:
        assert file.read() == "65534 0", "proc(5): what belongs to root there is readable by root alone"


async def test_spawner_and_idle_supervisors_are_hidden_from_ranks_that_run_as_their_user() -> None:
    root = str(Path(gpu_platform.__file__).parent.parent)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-I", "-S", "-c"]
    look = await asyncio.create_subprocess_exec(*as_nobody, f"open({root + '/pyproject.toml'!r})", stderr=-3)
    if await look.wait() != 0:
        pytest.skip("another user cannot read this Python or this checkout")
    page, (life, ours), (orders, theirs) = anonymous_page(), os.pipe(), socket.socketpair()
    arguments = [root, str(page), "", str(life), "forks"]
    process = await asyncio.create_subprocess_exec(
        *as_nobody, _PROGRAM, *arguments, stdin=theirs, stdout=-1, env={}, pass_fds=[page, life]
    )
    theirs.close()
    try:
        assert process.stdout is not None
        begun = json.loads(await process.stdout.readline())
        assert begun["guard"] == process.pid
        await eventually(lambda: status_of(begun["spawner"])["Name"] == "gpu-spawner", "the spawner")
        for pid in (begun["guard"], begun["spawner"]):
            await eventually(lambda pid=pid: os.stat(f"/proc/{pid}/environ").st_uid == 0, "a hidden process")
            assert status_of(pid)["Uid"].split()[0] == "65534"
        # The memory of a supervisor that has run a rank may still have the rank's environment.
        supervisor = await run_rank(process, orders)
        assert os.stat(f"/proc/{supervisor}/environ").st_uid == 0
        assert status_of(supervisor)["Uid"].split()[0] == "65534"
    finally:
        for fd in (page, life, ours):
            os.close(fd)
        orders.close()
        await process.wait()


async def run_rank(spawner: asyncio.subprocess.Process, orders: socket.socket) -> int:
    """Run `true` through a spawner that runs as nobody. Returns the pid of the supervisor, which is idle then."""
    with tempfile.TemporaryDirectory() as place:  # pytest's directories are for their owner only
        os.chown(place, 65534, 65534)
        order = RankOrder(f"{place}/rank-0", place, ["true"], {"TOKEN": "x", "PATH": os.defpath}, None, "box", 4096, 2)
        body = json.dumps(order.to_json()).encode()
        assert spawner.stdout is not None
        orders.sendall(len(body).to_bytes(4) + (1).to_bytes(4) + bytes([True]) + body)
        assert json.loads(await spawner.stdout.readline())["status"] == "started"
        await eventually(lambda: os.path.exists(f"{place}/rank-0/{records.EXIT}"), "the end of the rank")
        await wait_released(f"{place}/rank-0")
        return json.loads(Path(f"{place}/rank-0/{records.LOCK}").read_text())["pid"]


@pytest.fixture
def forget() -> Iterator[None]:
    yield
    seccomp.program.cache_clear()
    isolation._probe.cache_clear()


def test_without_libseccomp_there_is_no_jail(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    monkeypatch.setattr(seccomp, "LIBRARY", "libseccomp-that-nobody-has.so")
    seccomp.program.cache_clear()
    isolation._probe.cache_clear()
    found = isolation.choose_isolation(NodeSettings(isolation="auto"))
    assert found.kind == "plain-process"
    assert any("apt-get install libseccomp2" in text for text in found.missing)
    with pytest.raises(HostUnavailable, match="libseccomp is not installed"):
        isolation.choose_isolation(NodeSettings(isolation="required"))


def test_every_name_is_a_call_that_some_kernel_has() -> None:
    """A misspelt name would silently stay refused."""
    library = seccomp._Library()
    unknown = {name for name in system_calls.ALLOWED if library.number_of(name) == -1}
    newer = {
        *("getxattrat", "setxattrat", "listxattrat", "removexattrat", "statmount", "listmount", "mseal", "uretprobe"),
        *("cachestat", "fchmodat2", "map_shadow_stack", "futex_wake", "futex_wait", "futex_requeue"),
    }
    assert unknown <= newer
    assert find_hierarchies().unified or find_hierarchies().v1


ROOT = Path(gpu_platform.__file__).parents[1]
PLANTED = """
import ctypes, sys
from gpu_platform.node.isolation import privileges
from gpu_platform.node.isolation.filters import seccomp, system_calls

seccomp.ALLOWED = system_calls.ALLOWED | {"unshare", "keyctl"}
code = seccomp._compile(seccomp._Library())
seccomp.program = lambda: code
privileges.drop_privileges(65534, 65534, [65534])
libc = ctypes.CDLL(None, use_errno=True)
found = libc.syscall(int(sys.argv[1]), 0, -3, 1) >= 0 and libc.unshare(0x1000_0000) == 0
sys.exit(0 if found else 1)
"""
"""In a process of its own: the kernel gives no user namespace to one with threads, and a fork of the tests may have
some."""


def test_a_planted_hole_is_found() -> None:
    """The attacks above see a filter that lets something through."""
    number = str(NUMBERS["x86_64"]["keyctl"])
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, number], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
