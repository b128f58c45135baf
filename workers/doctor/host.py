"""Checks of a GPU host, with the code by which its node worker finds out what it can do."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.checkpoints.store import CheckpointStore
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.cgroups.cgroup import find_hierarchies
from gpu_platform.node.isolation.filters import device_filter
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.node.local_attempts import check_room
from gpu_platform.node.network.choice import find_tool
from gpu_platform.node.nvml.opening import NoGpus, open_nvml
from gpu_platform.node.system.paths import node_dir
from gpu_platform.settings import NodeSettings, Settings
from workers.doctor.results import Part, Result
from workers.doctor.roles import Roles

TOOLS = {
    "bwrap": "bubblewrap",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "bridge": "iproute2",
    "nft": "nftables",
}
"""Programs that jails and their networks need, and the Debian package of each."""
SHARED = (
    "nfs",
    "lustre",
    "ceph",
    "beegfs",
    "gpfs",
    "cifs",
    "smb",
    "glusterfs",
    "ocfs2",
    "gfs2",
    "pvfs2",
    "9p",
    "virtiofs",
    "fuse",
)
"""Beginnings of types of file systems that several hosts can share, as ``/proc/self/mountinfo`` has them."""


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """The checks of this part."""
    part = Part("host")
    if roles.no_host:
        yield part.skipped("all", roles.no_host)
        return
    for check in (_tools, _cgroups, _isolation, _nvml, _records, _checkpoint_root):
        yield from part.guarded(check(part, settings))


def _jails(node: NodeSettings) -> bool:
    return node.isolation == "required" or (node.isolation == "auto" and node.simulate is None)


def _tools(part: Part, settings: Settings) -> Iterator[Result]:
    node = settings.node
    if not _jails(node):
        yield part.skipped("isolation tools", "ranks are plain processes here (node.isolation, node.simulate)")
        return
    wanted = [tool for tool in TOOLS if node.network.mode != "host" or TOOLS[tool] != "iproute2"]
    missing = [tool for tool in wanted if find_tool(tool) is None]
    if not missing:
        yield part.ok("isolation tools", ", ".join(wanted))
        return
    packages = " ".join(dict.fromkeys(TOOLS[tool] for tool in missing))
    found, advice = f"{', '.join(missing)} cannot be found", f"apt-get install {packages}"
    must = node.isolation == "required"
    yield part.failed("isolation tools", found, advice) if must else part.warning("isolation tools", found, advice)


def _cgroups(part: Part, settings: Settings) -> Iterator[Result]:
    if not _jails(settings.node):
        yield part.skipped("cgroups", "ranks are plain processes here (node.isolation, node.simulate)")
        return
    found = find_hierarchies()
    if found.unified is None and not found.v1:
        yield part.failed("cgroups", "no cgroup file system is mounted", "boot with systemd.unified_cgroup_hierarchy=1")
        return
    trees = [] if found.unified is None else [f"v2 at {found.unified}: {', '.join(found.v2) or 'no controller'}"]
    trees += [f"v1: {', '.join(found.v1)}"] if found.v1 else []
    yield part.ok("cgroups", "; ".join(trees))
    if os.geteuid() != 0:
        yield part.skipped("device programs", "only root may load them: run this command as root")
    elif found.unified is not None and device_filter.has_bpf():
        yield part.ok("device programs", "the kernel takes eBPF programs for devices")
    elif "devices" in found.v1:
        yield part.ok("device programs", "the devices controller of cgroup v1 takes their place")
    else:
        advice = "use a kernel with CONFIG_CGROUP_BPF, and give the node worker CAP_BPF or root"
        yield part.failed("device programs", "the kernel takes no eBPF program for devices", advice)


def _isolation(part: Part, settings: Settings) -> Iterator[Result]:
    node = settings.node
    if os.geteuid() != 0 and _jails(node):
        yield part.skipped("isolation", "only root can try it: run this command as root, as the node worker")
        return
    try:
        found = choose_isolation(node)
    except HostUnavailable as error:
        yield part.failed("isolation", error.message, "docs/how-to/harden-a-host.md; the node worker does not start")
        return
    if found.missing and _jails(node):
        yield part.warning(
            "isolation", f"{found.kind}; missing: {'; '.join(found.missing)}", "docs/how-to/harden-a-host.md"
        )
    else:
        yield part.ok("isolation", found.kind)


def _nvml(part: Part, settings: Settings) -> Iterator[Result]:
    node = settings.node
    try:
        nvml = open_nvml(node, node_dir(settings.state_dir.resolve(), node.name))
    except HostUnavailable as error:
        advice = "install the NVIDIA driver, or set node.gpus: false on a host without GPUs; `nvidia-smi` must work"
        yield part.failed("NVML", error.message, advice)
        return
    if isinstance(nvml, NoGpus):
        yield part.skipped("NVML", "this host offers no GPUs (node.gpus: false)")
        return
    inventory = read_inventory(nvml, node)
    kind = "simulated GPUs" if inventory.simulated else "GPUs"
    driver = f", driver {inventory.driver_version}" if inventory.driver_version else ""
    if not inventory.gpus:
        yield part.failed("NVML", f"it answers, and finds no GPU{driver}", "look at `nvidia-smi` and `dmesg`")
        return
    yield part.ok("NVML", f"{len(inventory.gpus)} {kind}{driver}")
    if shutil.which("nvidia-smi") is None and not inventory.simulated:
        yield part.warning("nvidia-smi", "it cannot be found", "install it: GPUs are reset with it")


def _records(part: Part, settings: Settings) -> Iterator[Result]:
    home = node_dir(settings.state_dir, settings.node.name)
    if not home.exists():
        yield part.skipped("records", f"there is no {home} yet: the node worker has not run")
        return
    try:
        check_room(home, settings.node.name, settings.node.disk_reserve_mib)
    except HostUnavailable as error:
        yield part.failed("records", error.message, f"make room on the disk of {home}")
        return
    yield part.ok("records", f"{home} has {shutil.disk_usage(home).free >> 20} MiB left")


def _checkpoint_root(part: Part, settings: Settings) -> Iterator[Result]:
    name = "checkpoint root"
    root = settings.node.checkpoint_root or settings.state_dir / "checkpoints"
    if not root.exists():
        yield part.failed(
            name, f"{root} does not exist", "make it, or mount the shared file system (node.checkpoint_root)"
        )
        return
    if not os.access(root, os.W_OK) or CheckpointStore(root).identity() is None:
        mode = stat.filemode(root.stat().st_mode)
        yield part.failed(name, f"{root} cannot be written ({mode})", "let the node worker's account write there")
        return
    kind = file_system_of(root)
    if kind.startswith(SHARED):
        yield part.ok(name, f"{root} is on {kind}, which hosts can share")
        return
    yield part.warning(
        name,
        f"{root} is on {kind}, a file system of this machine alone",
        "with several hosts, set node.checkpoint_root to a shared file system; `gpu-platform hosts checkpoint-roots` "
        "tests which hosts share one",
    )


def file_system_of(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that ``path`` is on, e.g. ``ext4`` or ``nfs4`` (proc(5))."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0]
    return "an unknown file system"
