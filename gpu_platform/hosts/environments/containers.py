"""Containers: the root file system that the ranks of a job see instead of the host's.

The jail of the attempt is what runs a container. So device filter, system calls, network, limits and account are those
of every job, and no program of the image ever has more. This stage finds the files: a directory of the host, an image
file that is unpacked for the attempt as the account of the job, or an image of a registry (``container_images``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_platform import disk_room
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.environment import DOCKER_LABEL, SQUASHFS_LABEL, ContainerKind
from gpu_platform.domain.jobs.secrets import is_of_the_platform
from gpu_platform.hosts.environments.container_images import ContainerImages, Image, docker_tool, squashfs_tool
from gpu_platform.hosts.environments.driver_libraries import DRIVER_DIR, driver_files
from gpu_platform.hosts.environments.uploads import remove_tree
from gpu_platform.hosts.isolation import workdirs
from gpu_platform.hosts.isolation.accounts import account_of
from gpu_platform.hosts.isolation.jail import ROOT
from gpu_platform.hosts.processes import stopping
from gpu_platform.hosts.processes.preflight import is_closed
from gpu_platform.hosts.stages import Provision, Stage
from gpu_platform.hosts.system import paths, records
from gpu_platform.settings import NodeSettings

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""``PATH`` in a container whose image sets none."""
UNPACKED, _USED = "image", "image.json"
"""In the directory of the attempt: an unpacked image file, and which directory the ranks see."""
_OF_HOST = ("HOME", "USER", "LOGNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "TERM")
"""Variables that follow from the account and the network of the attempt."""
_MAGIC = b"hsqs"
_BLOCK = 4096
_SEARCHED = 64 << 20
"""How far into a SIF its SquashFS is searched: before it are headers and small partitions."""
_UNPACK_TIMEOUT_S = 100.0


class ContainerStage(Stage):
    """Gives the ranks of a job the root file system that it names."""

    def __init__(self, node: NodeSettings, state_dir: Path, home: Path, *, jailed: bool, simulated: bool) -> None:
        self._node, self._home, self._jailed, self._simulated = node, home, jailed, simulated
        directory = (node.image_dir or state_dir / "images").resolve()
        self._images = ContainerImages(directory, node.name, node, node.network.allow)
        self._private = [str(state_dir.resolve()), str(directory)]

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Remove unpacked image files of attempts that have ended, and images that nobody used for long."""
        living = {paths.attempt_dir(self._home, plan.key) for plan in attempts}
        for left in self._home.glob(f"jobs/*/*/{UNPACKED}"):
            if left.parent not in living:
                remove_tree(left)
        used = (records.read_record(str(directory / _USED)) for directory in living)
        self._images.sweep({Path(one["rootfs"]) for one in used if one is not None})

    def prepare(self, plan: HostPlan) -> None:
        """Find or make the root file system."""
        container = _container_of(plan)
        if container is None or plan.environment is None:
            return
        if not self._jailed:
            raise HostUnavailable(f"{plan.host} does not isolate ranks, so it runs no containers: see node.isolation")
        match plan.environment.container_kind:
            case ContainerKind.DOCKER:
                if docker_tool() is None:
                    raise HostUnavailable(f"{plan.host} has no podman, which gets {container}: install it there")
                found = self._images.get(container, lambda: stopping.is_closed(self._home, plan.key))
            case ContainerKind.SQUASHFS:
                found = Image(self._unpack(plan, container), {})
            case _:
                found = Image(self._directory(plan, container), {})
        record = {"rootfs": str(found.rootfs), "environ": found.environ}
        records.write_record(str(paths.attempt_dir(self._home, plan.key) / _USED), record, durable=False)

    def provides(self, plan: HostPlan) -> Provision:
        """The root file system, and what its program needs of the host: the libraries of the GPU driver."""
        if _container_of(plan) is None:
            return Provision()
        directory = paths.attempt_dir(self._home, plan.key)
        record = records.read_record(str(directory / _USED))
        if record is None:
            raise HostUnavailable(f"{plan.host} has lost which image attempt {plan.key} has")
        rootfs = record["rootfs"]
        # What the platform itself has unpacked is below directories that only root enters.
        is_ours = any(workdirs.is_below(rootfs, one) for one in self._private)
        below = os.path.dirname(rootfs) if is_ours else "/"
        files = [] if self._simulated or not plan.gpu_uuids else driver_files()
        shown = [str(path) for path in self._node.container_mounts]
        environs = {
            spec.rank: _environ(record["environ"], plan.program(spec).env, has_driver=bool(files))
            for spec in plan.ranks
        }
        return Provision(root=(rootfs, below), rank_environ=environs, files=files, readable=shown)

    def finish(self, plan: HostPlan) -> None:
        """Remove an unpacked image file, and the place where the jail mounted the root file system."""
        if _container_of(plan) is not None:
            directory = paths.attempt_dir(self._home, plan.key)
            remove_tree(directory / UNPACKED)
            with contextlib.suppress(OSError):  # it was not made, or is not empty
                os.rmdir(directory / ROOT)

    def _directory(self, plan: HostPlan, container: str) -> Path:
        """A directory of the host: without links, none of the system or of the platform. The jail opens it with the
        account's rights."""
        found = os.path.realpath(container)
        wrong = workdirs.is_system(found) or workdirs.is_below(found, workdirs.HOME_OF_ROOT)
        wrong = wrong or any(workdirs.is_below(found, one) or workdirs.is_below(one, found) for one in self._private)
        if wrong:
            raise _refused(plan, container, "it is a directory of the system or of the platform")
        if not is_closed(found) and not os.path.isdir(found):
            raise _refused(plan, container, "there is no such directory")
        return Path(found)

    def _unpack(self, plan: HostPlan, container: str) -> Path:
        """Unpack an image file for this attempt, with the rights of its account: it reads what its user may read."""
        if squashfs_tool() is None:
            raise HostUnavailable(
                f"{plan.host} has no unsquashfs, which unpacks {container}: install squashfs-tools there"
            )
        account = account_of(self._node, plan)
        place = paths.attempt_dir(self._home, plan.key) / UNPACKED
        remove_tree(place)
        place.mkdir(0o755)
        os.chown(place, account.uid, account.gid)
        rights: dict[str, Any] = {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
        offset = self._offset(plan, container, rights)
        # The file is opened by its path: a process of the account looks it up, so it gets what the account may read.
        command = [
            "unsquashfs",
            "-no-xattrs",
            "-quiet",
            "-no-progress",
            "-offset",
            str(offset),
            "-dest",
            "rootfs",
            container,
        ]
        try:
            done = subprocess.run(
                ["setpriv", "--no-new-privs", "--inh-caps=-all", "--", *command],
                cwd=place,
                env={"PATH": os.defpath},
                capture_output=True,
                check=False,
                timeout=_UNPACK_TIMEOUT_S,
                **rights,
            )
        except subprocess.TimeoutExpired:
            raise HostUnavailable(
                f"{plan.host} did not unpack {container} in {_UNPACK_TIMEOUT_S:g} s: unpack it once, and name the "
                "directory"
            ) from None
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0 and disk_room.says_full(said):
            why = disk_room.told(f"its records ({place})")
            raise HostUnavailable(f"{plan.host} cannot unpack the container image {container}: {why}")
        root = place / "rootfs"
        # Device nodes cannot be made by this account, and are not needed: then unsquashfs answers 2, and goes on.
        if done.returncode not in (0, 2) or not root.is_dir():
            raise _refused(plan, container, said[-300:] or "it is no SquashFS")
        return root

    def _offset(self, plan: HostPlan, container: str, rights: dict[str, Any]) -> int:
        """Where the SquashFS begins in the file: at 0, or, in a SIF, behind its headers."""
        head = ["head", "-c", str(_SEARCHED), "--", container]
        done = subprocess.run(head, capture_output=True, check=False, env={"PATH": os.defpath}, **rights)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().rpartition(": ")[2]
            raise _refused(plan, container, f"the account of the job cannot read it ({said})")
        for offset in range(0, len(done.stdout), _BLOCK):
            if done.stdout[offset : offset + len(_MAGIC)] == _MAGIC:
                return offset
        raise _refused(plan, container, "there is no SquashFS in it")


def container_labels(*, jailed: bool) -> dict[str, str]:
    """The labels that say which containers this host can run. A directory needs none: every jail shows it."""
    found: dict[str, str] = {}
    if jailed and (tool := docker_tool()) is not None:
        found[DOCKER_LABEL] = tool
    if jailed and (tool := squashfs_tool()) is not None:
        found[SQUASHFS_LABEL] = tool
    return found


def _environ(of_image: dict[str, str], of_job: dict[str, str], *, has_driver: bool) -> dict[str, str]:
    """The variables of the image, where neither the job nor the platform sets them. Images of CUDA, for example, set
    NVIDIA_VISIBLE_DEVICES to all."""
    ours = {name for name in of_image if is_of_the_platform(name) or name in _OF_HOST or not name or "\0" in name}
    environ = {"PATH": DEFAULT_PATH, **{name: value for name, value in of_image.items() if name not in ours}}
    environ |= {name: value for name, value in of_job.items() if name in (*environ, "LD_LIBRARY_PATH")}
    environ.setdefault("LD_LIBRARY_PATH", "")
    if has_driver:
        libraries = [f"{DRIVER_DIR}/lib", *([environ["LD_LIBRARY_PATH"]] if environ.get("LD_LIBRARY_PATH") else [])]
        environ |= {"LD_LIBRARY_PATH": ":".join(libraries), "PATH": f"{environ['PATH']}:{DRIVER_DIR}/bin"}
    return environ


def _container_of(plan: HostPlan) -> str | None:
    return None if plan.environment is None else plan.environment.container


def _refused(plan: HostPlan, container: str, why: str) -> PreflightFailed:
    return PreflightFailed(
        f"the container {container} cannot be used on {plan.host}: {why}. Name an image that every host has, or one "
        "of a registry (docker://…)",
        kind=blame(FailureCause.REQUEST),
    )
