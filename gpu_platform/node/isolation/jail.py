"""The jail around one attempt on one host: its cgroup, its device filter, its view of the host.

Made once per attempt by a process that the spawner forks, before any rank starts; each rank's
supervisor then joins it. ::

    <cgroup root>/gpu-platform/<hash of the host's directory>.<host>.<job>.<attempt>/     device filter
        holder/     the process that holds the namespaces
        rank-<n>/   limits; a kill of it spares nobody

The record (``records.JAIL``) is written before anything is made, so that whatever was made can be
removed. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpu_platform.node.isolation import privileges, sandbox
from gpu_platform.node.isolation.cgroups.cgroup import CGROUP_ROOT, Cgroup, Hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import apply_limits
from gpu_platform.node.isolation.filters import device_filter, port_filter, seccomp
from gpu_platform.node.isolation.furnishing import Furniture, furnish, open_trees
from gpu_platform.node.isolation.image_root import holder_files, leave_mounts_of_host, mount_root
from gpu_platform.node.isolation.orders import JailOrder, RankJailOrder
from gpu_platform.node.isolation.passwd import account_files
from gpu_platform.node.isolation.workdirs import Named, RefusedDirectory, Tree, look_at, open_below
from gpu_platform.node.network.links import AttemptNetwork
from gpu_platform.node.system import records
from gpu_platform.node.system.process_tree import FoundProcess, boot_id, is_alive, open_process, read_stat, send_signal

ROOT = "root"
"""In the directory of the attempt: where the root file system of a container is mounted while the jail is made."""
_HOLDER = "holder"
_LOG = "jail.log"
_GONE_PATIENCE_S = 10.0


def cgroup_name(home: str, host: str, job_id: str, attempt: int) -> str:
    """A name that is unique on this machine, which may run several simulated hosts and several platforms."""
    digest = hashlib.sha256(home.encode()).hexdigest()[:8]
    return f"{CGROUP_ROOT}/{digest}.{host}.{job_id}.{attempt}"


class Jail:
    """The jail around the attempt of ``attempt_dir``. It may be gone already."""

    def __init__(self, attempt_dir: str, record: dict[str, Any]) -> None:
        self._attempt_dir = attempt_dir
        self.cgroup = Cgroup(Hierarchies(*record["hierarchies"]), record["cgroup"])
        self._holder = record["holder"]
        self._boot_id = record["boot_id"]

    @classmethod
    def of(cls, attempt_dir: str) -> Jail | None:
        """The jail of the attempt, from its record. None: none was made."""
        record = records.read_record(os.path.join(attempt_dir, records.JAIL))
        return None if record is None else cls(attempt_dir, record)

    @property
    def holder(self) -> FoundProcess | None:
        """The living process that holds the namespaces."""
        if self._holder is None or self._boot_id != boot_id():
            return None
        holder = FoundProcess(*self._holder)
        return holder if is_alive(holder) else None

    @property
    def exists(self) -> bool:
        """True while its cgroup exists."""
        return os.path.isdir(self.cgroup.path)

    def rank_pids(self) -> set[int]:
        """Pids of all processes of all ranks, whatever they did to hide."""
        return self.cgroup.processes() - self.cgroup.child(_HOLDER).processes()

    def kill(self) -> None:
        """Send SIGKILL to all processes in it, at once."""
        self.cgroup.kill()

    def remove(self) -> bool:
        """Kill what is left and remove the cgroups. False: a process does not die."""
        self.cgroup.kill()
        deadline = time.monotonic() + _GONE_PATIENCE_S
        empty = self.cgroup.wait_empty(_GONE_PATIENCE_S)
        # The holder is pid 1 of the jail's PID namespace. It reaps the others, so it ends last.
        while not self.cgroup.remove() or self.holder is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return empty


def create_jail(order: JailOrder, reply: Callable[[dict[str, Any]], None]) -> None:
    """Make the jail unless it exists.

    ``reply`` is called once, with ``{"status": "started" | "closed" | "refused" | "error"}``; ``refused``: by the
    job's own fault.
    """
    os.setsid()
    os.umask(0o022)
    attempt_dir = order.attempt_dir
    try:
        with jail_lock(attempt_dir):
            if os.path.exists(os.path.join(attempt_dir, records.CLOSED)):
                return reply({"status": "closed"})
            old = Jail.of(attempt_dir)
            if old is None or old.holder is None:
                _create(order)
    except RefusedDirectory as error:
        return reply({"status": "refused", "message": str(error)})
    except OSError as error:
        return reply({"status": "error", "message": f"the jail cannot be made: {error.strerror or error}"})
    return reply({"status": "started"})


def _create(order: JailOrder) -> None:
    root_fd = None
    if order.root is not None:
        leave_mounts_of_host()
        root_fd = open_below(order.root, order.account)
    trees = open_trees(order.directories, order.account, order.mounts.hidden)
    named = look_at(path for path in order.mounts.writable if sandbox.may_be_writable(path))
    path = os.path.join(order.attempt_dir, records.JAIL)
    record = {
        "cgroup": order.cgroup,
        "hierarchies": list(order.hierarchies),
        "holder": None,
        "boot_id": boot_id(),
        "network": None if order.network is None else order.network.to_json(),
    }
    records.write_record(path, record, durable=False)
    cgroup = Cgroup(order.hierarchies, order.cgroup)
    cgroup.create(domain=True)
    apply_limits(cgroup, order.limits)
    device_filter.admit_only(cgroup, [*device_filter.HARMLESS, *order.devices])
    if order.ports is not None:
        port_filter.refuse_ports(cgroup, order.ports)
    inside = cgroup.child(_HOLDER)
    inside.create()
    network = None if order.network is None else AttemptNetwork(order.network)
    extras = sandbox.Extras([tree.directory.path for tree in trees], account_files(order.account))
    if root_fd is not None:
        extras = _with_root(order, extras, root_fd)
    holder = sandbox.start_sandbox(
        order.mounts,
        inside,
        os.path.join(order.attempt_dir, _LOG),
        extras,
        meanwhile=lambda: network.connect() if network is not None else None,
    )
    try:
        _furnish(holder, trees, named, order)
    except (OSError, RefusedDirectory):
        cgroup.kill()
        raise
    records.write_record(path, {**record, "holder": list(holder)}, durable=False)


def _with_root(order: JailOrder, extras: sandbox.Extras, root_fd: int) -> sandbox.Extras:
    """Mount the root file system of the container, and let the sandbox show it instead of the host's."""
    files = holder_files(sandbox.HOLDER_PROGRAMS)
    directories, places = sandbox.places_in_root(order.mounts, extras)
    root = mount_root(root_fd, os.path.join(order.attempt_dir, ROOT), directories, places)
    os.close(root_fd)
    return extras._replace(root=root, holder_files=files)


def _furnish(holder: FoundProcess, trees: list[Tree], named: list[Named], order: JailOrder) -> None:
    fd = open_process(holder)
    if fd is None:
        raise OSError(3, "the process that holds the jail has ended")
    try:
        furnish(fd, Furniture(order.account, order.cgroup, trees, named, order.secrets))
    finally:
        for one in (fd, *(tree.fd for tree in trees)):
            os.close(one)


@contextmanager
def jail_lock(attempt_dir: str) -> Iterator[None]:
    """The lock that is held while the jail of the attempt is made. The file says by whom."""
    os.makedirs(attempt_dir, records.PRIVATE_DIRECTORY, exist_ok=True)
    path = os.path.join(attempt_dir, records.JAIL_LOCK)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, records.PRIVATE_FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        stat = read_stat("self")
        if stat is not None:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{stat.process.pid} {stat.process.started}".encode(), 0)
        yield
    finally:
        os.close(fd)


def wait_for_maker(attempt_dir: str, patience_s: float) -> bool:
    """Wait until nobody makes a jail for the attempt, which is closed: none is begun after this. Who takes longer than
    ``patience_s`` hangs at a directory of the job, and is killed. False: not even that ended it. It makes no jail any
    more, since it ends as soon as the kernel lets it.
    """
    path = os.path.join(attempt_dir, records.JAIL_LOCK)
    if not os.path.exists(path):  # whoever makes the file after this look sees the attempt closed
        return True
    for number in (signal.SIGKILL, None):
        deadline = time.monotonic() + patience_s
        with open(path, "rb") as lock:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                time.sleep(0.01)
            words = lock.read().split()
        if number is not None and len(words) == 2:
            send_signal(FoundProcess(int(words[0]), int(words[1])), number)
    return False


class RankJail:
    """The cgroup of one rank in its attempt's jail, and how to enter the jail. For supervisors.

    ``join``: the cgroup must exist. So nothing is made for an attempt that ends meanwhile.
    """

    def __init__(self, attempt_dir: str, order: RankJailOrder, *, join: bool = False) -> None:
        jail = Jail.of(attempt_dir)
        process = None if jail is None else jail.holder
        holder = None if process is None else open_process(process)
        if jail is None or process is None or holder is None:
            raise OSError(3, "the jail is gone", attempt_dir)
        self._holder_fd = holder
        self.root = f"/proc/{process.pid}/root"
        """The file system that the rank sees, as a path of the host."""
        self.user: tuple[int | None, int | None] = order.uid, order.gid
        # Looked up here: in the jail, files of a container would say what the C library loads for that.
        self._groups = [] if order.uid is None or order.gid is None else privileges.groups_of(order.uid, order.gid)
        self._memlock_bytes = order.memlock_bytes
        seccomp.program()  # compiled here, where nothing of the job has been entered yet
        self.cgroup = jail.cgroup.child(f"rank-{order.rank}")
        if not join:
            self.cgroup.create()
            apply_limits(self.cgroup, order.limits, ends_together=True)
        sandbox.share_pids(holder)

    def fork(self) -> int:
        """Fork into the cgroup of the rank and the PID namespace of the jail. Returns as ``os.fork`` does."""
        pid = self.cgroup.fork()
        if pid != 0:
            sandbox.keep_own_pids()
        return pid

    def enter(self) -> None:
        """Enter the jail. The rank itself calls it, just before it executes its program."""
        sandbox.enter(self._holder_fd)
        privileges.limit_memlock(self._memlock_bytes)
        privileges.limit_cores()
        privileges.drop_privileges(*self.user, self._groups)
