"""Containers: the root file system that the ranks of a job see instead of the host's.

The jail of the attempt is what runs a container. So device filter, system calls, network, limits and account are those
of every job, and no program of the image ever has more. This stage finds the files: a directory of the host, an image
file that is unpacked for the attempt as the account of the job, or an image of a registry (``container_images``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gpu_platform import disk_room
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.environment import DOCKER_LABEL, SQUASHFS_LABEL, ContainerKind
from gpu_platform.domain.jobs.secret_uses import is_of_the_platform
from gpu_platform.node.environments.container_images import ContainerImages, Image, docker_tool, squashfs_tool
from gpu_platform.node.environments.driver_libraries import DRIVER_DIR, driver_files
from gpu_platform.node.environments.removal import remove_tree, remove_what_is_left
from gpu_platform.node.isolation import workdirs
from gpu_platform.node.isolation.accounts import account_of
from gpu_platform.node.isolation.isolation import step_cgroup
from gpu_platform.node.isolation.jail import ROOT
from gpu_platform.node.processes import stopping
from gpu_platform.node.processes.step_process import Bounds, NoStepAnswer, look, run_python
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system import paths, records
from gpu_platform.settings import NodeSettings

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""``PATH`` in a container whose image sets none."""
UNPACKED, _USED = "image", "image.json"
"""In the directory of the attempt: an unpacked image file, and which directory the ranks see."""
_OF_HOST = ("HOME", "USER", "LOGNAME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "TERM")
"""Variables that follow from the account and the network of the attempt."""
_UNPACK_TIMEOUT_S, _UNPACK_CPU_S, _UNPACK_MEMORY_BYTES = 100.0, 200.0, 1 << 30


class ContainerStage(Stage):
    """Gives the ranks of a job the root file system that it names."""

    def __init__(self, node: NodeSettings, state_dir: Path, home: Path, *, jailed: bool, simulated: bool) -> None:
        self._node, self._home, self._jailed, self._simulated = node, home, jailed, simulated
        directory = (node.image_dir or state_dir / "images").resolve()
        self._images = ContainerImages(directory, node.name, node, node.network.allow)
        self._most_bytes = int(node.image_max_gib * (1 << 30))
        self._private = [str(state_dir.resolve()), str(directory)]

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Remove unpacked image files of attempts that have ended, and images that nobody used for long."""
        living = {paths.attempt_dir(self._home, plan.key) for plan in attempts}
        for left in self._home.glob(f"jobs/*/*/{UNPACKED}"):
            if left.parent not in living:
                remove_tree(left)
        remove_what_is_left(self._home.glob("jobs/*/*"))
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
                given_up = partial(stopping.is_closed, self._home, plan.key)
                found = self._images.get(container, given_up, step_cgroup(self._home, plan, "image"))
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
        """A directory of the host. The jail opens it with the account's rights."""
        given_up = partial(stopping.is_closed, self._home, plan.key)
        arguments = {"container": container, "private": self._private}
        found = look("root_directory", arguments, [container], given_up=given_up)
        if "wrong" in found:
            raise _refused(plan, container, found["wrong"])
        return Path(found["path"])

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
        arguments = {
            "image": container,
            "place": str(place),
            "most_bytes": self._most_bytes,
            "most_files": self._node.image_max_files,
            "account": [account.uid, account.gid, account.groups],
        }
        bounds = Bounds(wall_s=_UNPACK_TIMEOUT_S, cpu_s=_UNPACK_CPU_S, memory_bytes=_UNPACK_MEMORY_BYTES)
        given_up, cgroup = partial(stopping.is_closed, self._home, plan.key), step_cgroup(self._home, plan, "unpack")
        try:
            found = run_python("unpack_squashfs", arguments, bounds, given_up, cgroup)
        except NoStepAnswer as error:
            raise _refused(
                plan,
                container,
                f"it was not unpacked within {bounds.wall_s:g} s, {bounds.cpu_s:g} s of CPU and "
                f"{_UNPACK_MEMORY_BYTES >> 20} MiB of memory ({error.details['why']}): unpack it once, and name the "
                "directory",
            ) from None
        if "wrong" not in found:
            return place / "rootfs"
        if disk_room.says_full(found["wrong"]):
            why = disk_room.told(f"its records ({place})")
            raise HostUnavailable(f"{plan.host} cannot unpack the container image {container}: {why}")
        raise _refused(plan, container, found["wrong"])


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
