"""Finds out how well this host can isolate ranks, and makes the orders for their jails.

Ranks are either **jailed** (``jail``: cgroups, a device filter, namespaces, no privileges) or they are
**plain processes**; each host says which, and what is missing, in its inventory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import structlog

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.gpu import ISOLATED, HostInventory
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.isolation import privileges, workdirs
from gpu_platform.node.isolation.accounts import EVERYBODY, AccountBook, account_of, configuration_problem, tenant_of
from gpu_platform.node.isolation.cgroups import host_limits
from gpu_platform.node.isolation.cgroups.cgroup import (
    CGROUP_ROOT,
    Cgroup,
    Hierarchies,
    find_hierarchies,
    without_unusable,
)
from gpu_platform.node.isolation.cgroups.cpus import nearest, own_gpus
from gpu_platform.node.isolation.filters import device_filter, port_filter
from gpu_platform.node.isolation.filters.port_filter import Ports
from gpu_platform.node.isolation.jail import cgroup_name
from gpu_platform.node.isolation.orders import JailOrder, RankJailOrder
from gpu_platform.node.isolation.passwd import Account
from gpu_platform.node.isolation.sandbox import Mounts
from gpu_platform.node.isolation.workdirs import Directory
from gpu_platform.node.network.choice import NetworkChoice, choose_network
from gpu_platform.node.network.links import NetworkOrder
from gpu_platform.node.network.network import HostNetwork
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.stages import Provision
from gpu_platform.node.system import paths, tools
from gpu_platform.node.system.ports import PORTS, PORTS_OF_AN_ATTEMPT
from gpu_platform.node.system.sysfs import Sysfs
from gpu_platform.node.system.tools import NotEnded
from gpu_platform.settings import NodeSettings, Settings

log = structlog.get_logger(__name__)

_STEP = "+"
"""Between the name of an attempt's cgroup and the step that prepares it."""
_OF_STEPS = ("memory", "pids", "freezer")
"""The controllers of v1 that bound a step. Each tree costs time."""

Look = Callable[[str, Mapping[str, Any], Sequence[str]], Any]

JAILED, PLAIN = ISOLATED, "plain-process"

_PLAIN_LACKS = [
    "device isolation: a rank can open GPUs that it was not given",
    "memory, process and CPU limits: ranks share the host's",
    "file system and user isolation: ranks run as the node worker's user",
]
_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf")
_SECRETS = ("/etc/gpu-platform", workdirs.HOME_OF_ROOT)


@dataclass(frozen=True)
class Isolation:
    """What this host can guarantee about its ranks."""

    jailed: bool
    missing: list[str]
    """What ranks here are not protected from, for people."""
    hierarchies: Hierarchies | None = None
    network: NetworkChoice = field(default_factory=lambda: NetworkChoice(False))

    @property
    def kind(self) -> str:
        """Its name in the inventory: ``jailed`` for ranks in a jail, or ``plain-process``."""
        return JAILED if self.jailed else PLAIN


def choose_isolation(node: NodeSettings) -> Isolation:
    """Choose by the settings ``isolation`` and ``network.mode`` and by what this machine can do.

    Raises :class:`HostUnavailable` if a setting says ``required`` or ``isolated`` and this machine cannot.
    """
    isolation = _choose_jail(node)
    if node.network.mode == "isolated" and not isolation.network.isolated:
        raise HostUnavailable(
            f"host {node.name} must isolate the network of ranks (node.network.mode: isolated) and cannot: "
            f"{'; '.join(isolation.network.missing or isolation.missing)}"
        )
    return isolation


def _choose_jail(node: NodeSettings) -> Isolation:
    if node.isolation == "plain" or (node.isolation == "auto" and node.simulate is not None):
        return Isolation(False, _PLAIN_LACKS)
    problems, hierarchies = _probe()
    if not problems and (problem := configuration_problem(node)) is not None:
        problems = [problem]
    if problems and node.isolation == "required":
        raise _impossible(node, problems)
    if problems or hierarchies is None:
        return Isolation(False, [*_PLAIN_LACKS, *(f"no jail because: {problem}" for problem in problems)])
    wanted = {"memory": "memory limit", "pids": "process limit", "cpuset": "CPU binding"}
    weights = {"cpu": "CPU weight", "io": "limit of reading and writing"}
    lacks = [
        f"{what}: the kernel offers no {controller} controller"
        for controller, what in wanted.items()
        if not hierarchies.has(controller)
    ]
    if lacks and node.isolation == "required":
        raise _impossible(node, lacks)
    lacks += [
        f"{what}: the kernel offers no {controller} controller"
        for controller, what in weights.items()
        if not hierarchies.has(controller)
    ]
    if (locked := privileges.memlock_bytes()) is not None and node.rank_memlock_mib is None:
        lacks.append(
            f"RDMA: ranks may lock only {locked >> 20} MiB of memory (give the node worker LimitMEMLOCK=infinity)"
        )
    network = choose_network(node.network)
    if not (network.isolated and network.gangs) and not port_filter.is_supported():
        lacks.append("ports: ranks take those of other jobs, because the kernel takes no eBPF program for bind(2)")
    return Isolation(True, [*lacks, *network.missing], hierarchies, network)


def _impossible(node: NodeSettings, problems: list[str]) -> HostUnavailable:
    return HostUnavailable(
        f"host {node.name} must isolate ranks (node.isolation: required) and cannot: {'; '.join(problems)}"
    )


@cache
def _probe() -> tuple[list[str], Hierarchies | None]:
    """Try everything that a jail needs. Returns why no jail is possible here (empty: it is), and where cgroups are."""
    if os.geteuid() != 0:
        return ["the node worker does not run as root"], None
    if not workdirs.is_supported():
        return ["the kernel has no openat2(2) and mount_setattr(2): Linux 5.12 has them"], None
    if (why := privileges.why_not()) is not None:
        return [why], None
    try:
        hierarchies = without_unusable(find_hierarchies(), CGROUP_ROOT)
        probe = Cgroup(hierarchies, f"{CGROUP_ROOT}/probe-{os.getpid()}")
        if not device_filter.is_supported(probe):
            return ["the kernel takes no device filter (CONFIG_CGROUP_BPF, or the v1 devices controller)"], None
        if device_filter.has_bpf() and hierarchies.unified is not None:
            hierarchies.v1.pop("devices", None)  # one filter is enough, and each tree costs time
        probe.create()
        probe.remove()
    except OSError as error:
        return [f"cgroups cannot be used: {error}"], None
    problem = _try_bubblewrap()
    return ([problem], None) if problem else ([], hierarchies)


def _try_bubblewrap() -> str | None:
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    if shutil.which("setpriv") is None:
        return "setpriv is not installed (apt-get install util-linux)"
    command = [program, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "true"]
    try:
        done = tools.run(command, timeout_s=30)
    except NotEnded as error:
        return error.message
    return f"bubblewrap does not work here: {done.said.strip()[-200:]}" if done.code != 0 else None


def step_cgroup(home: Path, plan: HostPlan, step: str) -> Cgroup | None:
    """The cgroup of a step that prepares the attempt: beside the jail, which a process that hangs in the kernel would
    keep from being removed. None: this host has no cgroups for attempts. ``home``: the host's directory."""
    hierarchies = _probe()[1]
    if hierarchies is None:
        return None
    kept = {name: path for name, path in hierarchies.v1.items() if name in _OF_STEPS}
    name = cgroup_name(str(home), plan.host, plan.key.job_id, plan.key.attempt)
    return Cgroup(hierarchies._replace(v1=kept), f"{name}{_STEP}{step}")


class JailPlanner:
    """Decides how the jail of an attempt looks, and that of each rank. Makes the orders for them."""

    def __init__(
        self,
        settings: Settings,
        isolation: Isolation,
        inventory: HostInventory,
        *,
        home: Path,
        checkpoints: Path,
        look: Look,
        dev: Path = Path("/dev"),
    ) -> None:
        """``look``: how paths are looked at whose file system may never answer; see ``step_process.look``."""
        assert isolation.hierarchies is not None
        self._look = look
        self._node = settings.node
        self._hierarchies = isolation.hierarchies
        host_limits.limit_all_jails(settings.node, isolation.hierarchies)
        unified = isolation.hierarchies.unified
        cgroup = None if unified is None else Path(unified, CGROUP_ROOT)
        self.network = HostNetwork(settings, isolation.network, home, cgroup=cgroup)
        self._filters_ports = port_filter.is_supported()
        self._home = home
        self._checkpoints = checkpoints
        self._dev = dev
        # The NUMA nodes of a simulated host are not those of this machine.
        self._gpus = {} if inventory.simulated else {gpu.uuid: gpu for gpu in inventory.gpus}
        self._book = AccountBook()
        self._end_steps()
        if EVERYBODY in self._node.users:
            log.warning(
                "users.one_account_for_all",
                account=self._node.users[EVERYBODY],
                hint="node.users '*' is ignored: each job runs as an account of its own (node.attempt_uids); remove it",
            )
        self._own = [str(settings.state_dir.resolve()), str(checkpoints)]
        self._hidden = [*self._own, *_SECRETS]
        configured = [os.path.realpath(path) for path in self._node.writable_paths]
        # What is hidden inside a writable directory is mounted on top of it, which only bubblewrap does in order.
        self._shared = [path for path in configured if self._can_be_shared(path)]
        self._by_name = [path for path in configured if path not in self._shared]

    def check(self, plan: HostPlan) -> None:
        """Raise :class:`PreflightFailed` for a wish that no jail can fulfil."""
        self._workdir(plan, account_of(self._node, plan))

    def claim(self, plan: HostPlan) -> None:
        """Reserve the account of the attempt. Raises :class:`HostUnavailable` if another job uses it."""
        account = account_of(self._node, plan)
        if account.is_temporary:
            attempt_dir = paths.attempt_dir(self._home, plan.key)
            self._book.claim(account, tenant_of(plan), self._cgroup_name(plan), attempt_dir)

    def release(self, plan: HostPlan) -> None:
        """Give the account of an attempt back. Nothing of the attempt lives."""
        try:
            account = account_of(self._node, plan)
        except PreflightFailed:  # the user's own account was removed, which nobody has to give back
            return
        if account.is_temporary:
            self._book.release(account, self._cgroup_name(plan))

    def jail_order(
        self,
        nvml: NvmlLibrary,
        plan: HostPlan,
        checkpoint_dir: Path,
        provision: Provision,
        network: NetworkOrder | None = None,
        own_ports: Collection[int] = (),
    ) -> JailOrder:
        """The order that makes the attempt's jail; see :func:`gpu_platform.node.isolation.jail.create_jail`.

        ``own_ports``: the first port of each range that is the attempt's own in the host's network.
        """
        nodes = [*self._device_nodes(nvml, plan), *provision.devices]
        account = account_of(self._node, plan)
        checkpoints = str(self._checkpoints)
        others = [path for path in provision.readable if workdirs.is_below(path, checkpoints)]
        directories = [
            Directory(str(checkpoint_dir), checkpoints, workdirs.OWNED),
            *(Directory(path, checkpoints, workdirs.READ) for path in others),
            *(Directory(path, root, workdirs.OWNED) for path, root in provision.owned),
            *(Directory(path, path, workdirs.SHARED) for path in ([] if provision.root else self._shared)),
        ]
        if (workdir := self._workdir(plan, account)) is not None:
            directories.append(workdir)
        mounts = Mounts(
            writable=[*([] if provision.root else self._by_name), *provision.writable],
            # The root of checkpoints is there: a directory for this attempt was made in it.
            hidden=[path for path in self._hidden if path == checkpoints or os.path.isdir(path)],
            readable=[str(checkpoint_dir.parent), *(path for path in provision.readable if path not in others)],
            devices=nodes,
            tmp_mib=self._node.rank_tmp_mib,
            shm=provision.shm,
            tmp_files=self._node.rank_tmp_files,
            shm_mib=self._node.rank_shm_mib,
            files=self._files(plan, provision, network),
        )
        return JailOrder(
            attempt_dir=str(paths.attempt_dir(self._home, plan.key)),
            hierarchies=self._trees(provision),
            cgroup=self._cgroup_name(plan),
            devices=[device_filter.device_of(node) for node in nodes],
            mounts=mounts,
            limits=host_limits.of_attempt(self._node, plan),
            account=account,
            directories=directories,
            network=network,
            ports=self._ports(own_ports) if network is None and self._filters_ports else None,
            root=None if provision.root is None else Directory(*provision.root, workdirs.AS_ACCOUNT),
        )

    def rank_order(self, plan: HostPlan, spec: RankSpec, provision: Provision) -> RankJailOrder:
        """The order for the jail of one rank; see :class:`gpu_platform.node.isolation.jail.RankJail`."""
        account = account_of(self._node, plan)
        bound = provision.rank_cpus.get(spec.rank)
        cpus, mems = bound or nearest(own_gpus(plan, spec, self._gpus), Sysfs())
        memlock = self._node.rank_memlock_mib
        return RankJailOrder(
            rank=spec.rank,
            limits=host_limits.of_rank(self._node, plan, self._hierarchies)._replace(cpus=cpus, mems=mems),
            memlock_bytes=None if memlock is None else memlock << 20,
            uid=account.uid,
            gid=account.gid,
        )

    def environ(self, plan: HostPlan) -> dict[str, str]:
        """The variables that depend on the account that the ranks run as."""
        account = account_of(self._node, plan)
        return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}

    def workdir(self, plan: HostPlan) -> str | None:
        """The working directory by its name without links: the links may not be there inside the jail."""
        directory = self._workdir(plan, account_of(self._node, plan))
        return None if directory is None else directory.path

    def _workdir(self, plan: HostPlan, account: Account) -> Directory | None:
        """The working directory of the plan, as far as it can be judged before it is opened.

        Raises :class:`PreflightFailed` if it is not allowed.
        """
        if plan.workdir is None:
            return None
        allowed = self._allowed_workdirs(account)
        asked = [plan.workdir, *allowed]
        try:
            path, *roots = self._look("real_paths", {"paths": asked}, asked)
        except OSError as error:
            raise PreflightFailed(
                f"the working directory {plan.workdir!r} cannot be found on {plan.host}, or it changes just now: "
                f"{error.strerror}",
                kind=blame(FailureCause.REQUEST),
            ) from error
        if not workdirs.is_system(path) and _touches(path, self._own):
            raise PreflightFailed(
                f"the working directory {plan.workdir!r} belongs to the platform on {plan.host}, or contains its "
                "files: name a directory of your own",
                kind=blame(FailureCause.REQUEST),
            )
        for root in roots:
            directory = Directory(path, root, workdirs.AS_ACCOUNT)
            if directory.is_valid:
                return directory
        raise PreflightFailed(
            f"the working directory {plan.workdir!r} is not allowed on {plan.host}: jobs work in or below "
            f"{', '.join(allowed) or 'no directory'} there (node.workdirs), and never in a directory of the system",
            kind=blame(FailureCause.REQUEST),
        )

    def _files(self, plan: HostPlan, provision: Provision, network: NetworkOrder | None) -> list[list[str]] | None:
        """Files that appear in other places. A container has those of the host's network, if it shares that."""
        found = self.network.files(network, paths.attempt_dir(self._home, plan.key))
        if provision.root is not None and not found:
            found = [[os.path.realpath(path), path] for path in _NETWORK_FILES if os.path.exists(path)]
        return [*(found or []), *provision.files] or None

    def _ports(self, own: Collection[int]) -> Ports:
        closed = [[port, port] for port in self.network.firewall.closed_ports()]
        return Ports(
            own=[[first, first + PORTS_OF_AN_ATTEMPT - 1] for first in sorted(own)],
            closed=[[PORTS.start, PORTS.stop - 1], *closed],
        )

    def _can_be_shared(self, path: str) -> bool:
        return os.path.isdir(path) and not _touches(path, self._hidden) and not workdirs.is_system(path)

    def _allowed_workdirs(self, account: Account) -> list[str]:
        homes = [] if account.is_temporary else [account.home]
        found = [path for name in self._node.workdirs for path in (homes if name == "~" else [name])]
        return list(dict.fromkeys(found))

    def _end_steps(self) -> None:
        """End what is left of the steps of an earlier node worker of this host."""
        trees = self._hierarchies._replace(v1={k: v for k, v in self._hierarchies.v1.items() if k in _OF_STEPS})
        tracking = trees.unified or trees.v1.get("freezer", "")
        ours = os.path.basename(cgroup_name(str(self._home), self._node.name, "", 0)).removesuffix(".0")
        for path in Path(tracking, CGROUP_ROOT).glob(f"{ours}*{_STEP}*"):
            left = Cgroup(trees, f"{CGROUP_ROOT}/{path.name}")
            left.kill()
            left.remove()

    def _cgroup_name(self, plan: HostPlan) -> str:
        return cgroup_name(str(self._home), plan.host, plan.key.job_id, plan.key.attempt)

    def _trees(self, provision: Provision) -> Hierarchies:
        """The trees that the jail uses. Each v1 tree costs time, so cpuset's is left out if there is nothing to bind
        to, and that of the disks if nothing is limited there."""
        unused = set() if provision.rank_cpus or Sysfs().numa_nodes() > 1 else {"cpuset"}
        if self._node.attempt_io_mib_s is None:
            unused.add("io")
        v1 = {name: path for name, path in self._hierarchies.v1.items() if name not in unused}
        return self._hierarchies._replace(v1=v1)

    def _device_nodes(self, nvml: NvmlLibrary, plan: HostPlan) -> list[str]:
        """Nodes of the attempt's GPUs, and those that CUDA needs beside them. Empty without GPUs."""
        if not plan.gpu_uuids:
            return []
        minors = [nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByUUID(uuid)) for uuid in plan.gpu_uuids]
        wanted = [self._dev / f"nvidia{minor}" for minor in minors]
        missing = [str(path) for path in wanted if not path.exists()]
        if missing and nvml.has_device_nodes:
            raise HostUnavailable(f"{plan.host} has no device node {missing[0]}: run nvidia-modprobe -u -c 0 there")
        nodes = [*wanted, *(self._dev / name for name in _CONTROL_NODES)]
        return [str(path) for path in nodes if path.exists()]


def _touches(path: str, directories: Sequence[str]) -> bool:
    """True if ``path`` is, contains or is below one of ``directories``."""
    return any(workdirs.is_below(path, one) or workdirs.is_below(one, path) for one in directories)
