"""The files of container images on this host: got from a registry by podman, once for each image, and kept.

``<image_dir>/<image id>/``: ``rootfs/`` and ``image.json`` (its environment, when it was last used). Only root enters
``image_dir``: programs of an image that run with more rights than their user (setuid) are nothing that users of the
host may find. Nothing of an image is executed here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from gpu_platform import disk_room
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.inherited import inherited
from gpu_platform.node.environments.image_pull import Pulled, PullLimits, pull, remove_left_pulls
from gpu_platform.node.environments.registry_way import Registries
from gpu_platform.node.environments.removal import remove_tree, remove_what_is_left
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.processes.step_process import LOOK_S, Bounds, GivenUp, StepEnd, StepProgram, StepStopped, run
from gpu_platform.settings import NodeSettings

_PREFIX = "docker://"
_ID = re.compile(r"[0-9a-f]{64}")
_ROOTFS, _RECORD = "rootfs", "image.json"
_NO_SUCH = ("not known", "manifest unknown", "unauthorized", "denied", "invalid reference", "not found")
"""What registries and podman say of an image that waiting does not bring."""
_SAID = 400
"""How many characters of what podman said a message has."""
_MEMORY_BYTES, _SAYS_BYTES = 4 << 30, 16 << 20
"""What one of podman's programs may use, and say of an image."""
_TOO_MANY = 3
_UNPACK = """
exec 3>&1
codes=$( { {
    podman export "$1" 2>/dev/null 4>&-; echo "export $?" >&4
} | { tar -x -v --numeric-owner -p --no-xattrs -C "$2" 4>&-; echo "tar $?" >&4; } |
    awk -v most="$3" 'NR > most { exit 3 }' 4>&-; echo "awk $?" >&4; } 4>&1 >&3 )
case "$codes" in *"awk 3"*) exit 3;; esac
case "$codes" in *"export 0"*) ;; *) exit 1;; esac
case "$codes" in *"tar 0"*) ;; *) exit 1;; esac
"""
"""Arguments: container, directory, the most entries. Each program's exit status counts, and awk ends them all."""
_HARMLESS = (
    ["(", "-type", "b", "-o", "-type", "c", ")", "-delete"],
    ["-type", "f", "-perm", "/6000", "-exec", "chmod", "ug-s", "--", "{}", "+"],
)
"""They remove device nodes, and the bits with which a program gets the rights of its owner (setuid, setgid)."""
PULL_WAITS_S = (2.0, 10.0)
"""Seconds before each further try to get an image. podman itself tries a refused connection four times."""

log = structlog.get_logger(__name__)


class Image(NamedTuple):
    """An image whose files are here."""

    rootfs: Path
    environ: dict[str, str]


class _For(NamedTuple):
    """Who waits for an image."""

    given_up: GivenUp = lambda: False
    cgroup: Cgroup | None = None


_FOR_NOBODY = _For()
"""What must be done although the job was stopped."""


class ContainerImages:
    """Thread-safe. Several node workers of one machine may share the directory."""

    def __init__(self, directory: Path, host: str, settings: NodeSettings, allow: Sequence[str]) -> None:
        """``allow``: as ``node.network.allow``."""
        self._registries = Registries(tuple(settings.image_registries), tuple(allow))
        self.directory, self._host = directory, host
        self._timeout_s, self._keep_s = settings.image_timeout_s, settings.image_keep_days * 86_400
        self._most_bytes, self._most_files = int(settings.image_max_gib * (1 << 30)), settings.image_max_files
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, reference: str, given_up: GivenUp = lambda: False, cgroup: Cgroup | None = None) -> Image:
        """The image that ``docker://…`` names. One that the host has already is not asked for again. It ends soon when
        ``given_up``. ``cgroup``: of what gets and unpacks it.

        Raises :class:`PreflightFailed` if there is none, if it is too large, or if its registry does not give it, and
        :class:`HostUnavailable` if this host cannot keep it now.
        """
        name = reference.removeprefix(_PREFIX)
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        while not lock.acquire(timeout=LOOK_S):  # another job gets it
            self._check(given_up, name)
        try:
            return self._get(reference, name, _For(given_up, cgroup))
        finally:
            lock.release()

    def _get(self, reference: str, name: str, job: _For) -> Image:
        here = found = self._inspect(name, job)
        if found is None:
            self._pull(reference, name, job)
            found = self._inspect(name, job)
        if found is None:
            raise HostUnavailable(f"{self._host} has no image {name}, although podman got it: look into its log")
        if found.get("Size", 0) > self._most_bytes:
            if here is None:
                self._podman(_FOR_NOBODY, "rmi", "--", name)
            raise self._too_large(name, f"it has {found['Size'] / (1 << 30):.1f} GiB")
        return self._unpacked(name, found, job)

    def sweep(self, in_use: set[Path]) -> None:
        """Remove images that nobody used for long, and what killed pulls left. ``in_use``: files of images that
        attempts have."""
        remove_left_pulls(self.directory)
        remove_what_is_left([self.directory])
        for record in self.directory.glob(f"*/{_RECORD}"):
            with contextlib.suppress(OSError):
                old = time.time() - record.stat().st_mtime > self._keep_s
                if old and record.parent / _ROOTFS not in in_use:
                    record.unlink()
                    remove_tree(record.parent)
                    log.info("image.removed", image=record.parent.name[:12])

    def _inspect(self, name: str, job: _For) -> dict[str, Any] | None:
        done = self._podman(job, "image", "inspect", "--", name)
        if done.code != 0:
            return None
        try:
            [found] = json.loads(done.output)
        except ValueError as error:
            raise HostUnavailable(f"podman of {self._host} says nothing sensible about {name}: {error}") from error
        if not _ID.fullmatch(str(found.get("Id", ""))):
            raise HostUnavailable(f"podman of {self._host} gives {name} no id")
        return found

    def _pull(self, reference: str, name: str, job: _For) -> None:
        """Get it, in a few tries."""
        if not self._registries.have(name):
            raise self._refused(
                f"{self._host} gets no container image {name[:200]}: it takes images of "
                f"{', '.join(self._registries.names) or 'no registry'} (node.image_registries). Name one of these with "
                "its registry, or let an operator load the image there (podman load) or add the registry",
                only_here=True,
            )
        self._make_directory()
        disks = (self.directory, self._store)
        limits = PullLimits(self._most_bytes, self._timeout_s, disks, job.given_up, self._registries, cgroup=job.cgroup)
        for wait_s in (0.0, *PULL_WAITS_S):
            self._wait(wait_s, job.given_up, name)
            log.info("image.pulling", image=name)
            try:
                done = pull(reference, self.directory, limits)
            except OSError as error:
                raise HostUnavailable(f"{self._host} cannot get container images now: {error}") from error
            if done.code == 0 and done.stopped is None:  # SIGTERM may also end podman with 0
                return
            if (refusal := self._for_good(name, done)) is not None:
                raise refusal
            log.warning("image.not_pulled", image=name, error=done.said[-_SAID:])
            if any(text in done.said.lower() for text in _NO_SUCH):
                break
        raise self._not_given(name)

    def _not_given(self, name: str) -> PreflightFailed:
        """One message for whatever went wrong beyond this host: it tells nothing of the network. The log has it."""
        return self._refused(
            f"{self._host} did not get the container image {name} from its registry: there is no such image, it needs "
            "a password, it is damaged, or the registry does not answer. Name one that the registry has for everybody, "
            "or load it there (podman load, podman import); the node worker's log says more (image.not_pulled)",
            only_here=True,
        )

    def _for_good(self, name: str, done: Pulled) -> PreflightFailed | HostUnavailable | None:
        """The error of a pull that it is no use to repeat here."""
        if done.stopped is StepStopped.GIVEN_UP:
            return self._given_up(name)
        if done.stopped is StepStopped.TOO_LARGE:
            return self._too_large(name, "it became larger while it was got")
        if done.stopped is StepStopped.TOO_SLOW:
            return self._refused(
                f"{self._host} did not get the container image {name} within {self._timeout_s:g} s "
                "(node.image_timeout_s): use a nearer registry or a smaller image, or load it there (podman load)",
                only_here=True,
            )
        if done.stopped is StepStopped.NO_ROOM or disk_room.says_full(done.said[-_SAID:]):
            return self._no_room(name)
        return None

    def _refused(self, message: str, *, only_here: bool) -> PreflightFailed:
        """``only_here``: another host may get it."""
        return PreflightFailed(message, kind=blame(FailureCause.REQUEST), only_here=only_here)

    def _too_large(self, name: str, how: str) -> PreflightFailed:
        return self._refused(
            f"the container image {name} is larger than {self._most_bytes / (1 << 30):g} GiB, the most that "
            f"{self._host} takes (node.image_max_gib): {how}. Use a smaller image, and put data where hosts find it",
            only_here=False,
        )

    def _no_room(self, name: str) -> HostUnavailable:
        """``podman image prune`` makes room in podman's store."""
        disks = f"container images ({self.directory}) or of podman's store ({self._store})"
        return HostUnavailable(
            f"{self._host} has no room for the container image {name}: {disk_room.told(disks)} (podman image prune)"
        )

    @cached_property
    def _store(self) -> Path:
        """Where podman keeps images."""
        done = self._podman(_FOR_NOBODY, "info", "--format", "{{.Store.GraphRoot}}")
        return Path(done.output.decode().strip() or "/var/lib/containers/storage")

    def _unpacked(self, name: str, found: dict[str, Any], job: _For) -> Image:
        home = self.directory / found["Id"]
        environ = _environ(found)
        with self._locked(name, job.given_up):
            record = home / _RECORD
            if not record.exists():
                remove_tree(home)
                self._unpack(name, found["Id"], home / _ROOTFS, job)
                record.write_text(json.dumps({"image": name}))
            os.utime(record)
        return Image(home / _ROOTFS, environ)

    def _unpack(self, name: str, image_id: str, rootfs: Path, job: _For) -> None:
        rootfs.mkdir(parents=True)
        for directory in (rootfs.parent, rootfs):
            directory.chmod(0o755)
        made = self._podman(job, "create", "--pull", "never", "--network", "none", "--", image_id, "true")
        if made.code != 0:
            raise self._failed(name, made.said)
        container = made.output.decode().strip()
        try:
            words = [container, str(rootfs), str(self._most_files)]
            ended = self._step(job, name, ["/bin/sh", "-c", _UNPACK, "unpack", *words], file_bytes=self._most_bytes)
            if ended.code == _TOO_MANY:
                raise self._refused(
                    f"the container image {name} has more than {self._most_files} files and directories, the most that "
                    f"{self._host} takes (node.image_max_files): use an image with fewer",
                    only_here=False,
                )
            if ended.code != 0:
                raise self._failed(name, ended.said)
            for tests in _HARMLESS:
                harmless = self._step(job, name, ["find", str(rootfs), "-xdev", *tests])
                if harmless.code != 0:
                    raise self._failed(name, harmless.said)
        except OSError as error:
            raise self._failed(name, str(error)) from error
        finally:
            self._podman(_FOR_NOBODY, "rm", "--force", "--", container)

    def _wait(self, seconds: float, given_up: GivenUp, name: str) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check(given_up, name)
            time.sleep(min(left, LOOK_S))

    def _check(self, given_up: GivenUp, name: str) -> None:
        """Raise :class:`HostUnavailable` if nobody waits for the image any more."""
        if given_up():
            raise self._given_up(name)

    def _given_up(self, name: str) -> HostUnavailable:
        return HostUnavailable(f"{self._host} does not get the container image {name}: its job was stopped meanwhile")

    def _failed(self, name: str, said: str) -> HostUnavailable:
        if disk_room.says_full(said):
            return self._no_room(name)
        return HostUnavailable(
            f"{self._host} cannot unpack the container image {name} into {self.directory}: {said[-300:]}"
        )

    def _podman(self, job: _For, *arguments: str) -> StepEnd:
        return self._step(job, arguments[-1], ["podman", *arguments])

    def _step(self, job: _For, name: str, argv: list[str], file_bytes: int | None = None) -> StepEnd:
        bounds = Bounds(self._timeout_s, memory_bytes=_MEMORY_BYTES, file_bytes=file_bytes, output_bytes=_SAYS_BYTES)
        ended = run(StepProgram(argv, cgroup=job.cgroup, env=inherited()), bounds, job.given_up)
        if ended.stopped is StepStopped.GIVEN_UP:
            raise self._given_up(name)
        if ended.stopped is not None:
            raise HostUnavailable(
                f"{argv[0]} {argv[1]} for the container image {name} was ended on {self._host} ({ended.stopped}): it "
                f"may take {self._timeout_s:g} s (node.image_timeout_s), {_MEMORY_BYTES >> 20} MiB of memory, and say "
                f"{_SAYS_BYTES >> 20} MiB"
            )
        return ended

    @contextlib.contextmanager
    def _locked(self, name: str, given_up: GivenUp) -> Iterator[None]:
        self._make_directory()
        with open(self.directory / "lock", "w") as file:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                self._wait(LOOK_S, given_up, name)
            yield

    def _make_directory(self) -> None:
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        os.chmod(self.directory, 0o700)


def docker_tool() -> str | None:
    """The program with which this host gets images of registries. None: it has none."""
    return "podman" if os.geteuid() == 0 and shutil.which("podman") else None


def squashfs_tool() -> str | None:
    """The program with which this host unpacks image files. None: it has none."""
    return "unsquashfs" if shutil.which("unsquashfs") else None


def _environ(found: dict[str, Any]) -> dict[str, str]:
    """The variables that the image sets."""
    lines = (found.get("Config") or {}).get("Env") or []
    return dict(line.split("=", 1) for line in lines if "=" in line)
