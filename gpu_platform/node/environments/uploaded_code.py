"""Uploaded code on this host: fetched, verified and unpacked for each attempt, and removed with it.

The archive comes from the service into a file that only the node worker reads. Its hash is compared with the one in
the plan, before anything looks into it. A process of its own unpacks it (``unpacking``), as the account of the job.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from gpu_platform import disk_room
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.upload_limits import MAX_ENTRIES
from gpu_platform.node.environments import unpacking
from gpu_platform.node.environments.removal import remove_tree, remove_what_is_left
from gpu_platform.node.isolation.accounts import account_of
from gpu_platform.node.isolation.isolation import step_cgroup
from gpu_platform.node.processes.step_process import Bounds, StepGivenUp, StepProgram, StepStopped, run
from gpu_platform.node.processes.stopping import is_closed
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system import paths, records
from gpu_platform.settings import NodeSettings

CODE, _ARCHIVE = "code", "upload.tar"
"""In the directory of the attempt: the unpacked files, and the archive while it is unpacked."""
_UNPACKING = Bounds(wall_s=45.0, cpu_s=40.0, memory_bytes=256 << 20)
"""What unpacking the largest archive may use. Its bytes are those of the archive."""

_BLOCK_BYTES = 16 << 20

UploadSource = Callable[[HostPlan, IO[bytes]], None]
"""Writes the archive of the plan's job into a file. Raises :class:`HostUnavailable` and :class:`PreflightFailed`."""


class UploadStage(Stage):
    """Gives each attempt the code of its job, as its working directory."""

    def __init__(self, node: NodeSettings, home: Path, source: UploadSource | None, *, jailed: bool) -> None:
        """``source``: None on hosts that have no service to ask, as in tests. ``jailed``: ranks have accounts."""
        self._node, self._home, self._source, self._jailed = node, home, source, jailed

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Remove code whose attempt has ended: the node worker ended while it removed it."""
        living = {paths.attempt_dir(self._home, plan.key) for plan in attempts}
        for left in self._home.glob(f"jobs/*/*/{CODE}"):
            if left.parent not in living:
                remove_tree(left)
        remove_what_is_left(self._home.glob("jobs/*/*"))

    def prepare(self, plan: HostPlan) -> None:
        """Fetch, verify and unpack the code."""
        if _hash_of(plan) is None:
            return
        directory = paths.attempt_dir(self._home, plan.key)
        archive, code = directory / _ARCHIVE, directory / CODE
        try:
            remove_tree(code)
            self._fetch(plan, archive)
            self._unpack(plan, archive, code)
        except OSError as error:
            raise cannot_keep(plan, directory, error) from error
        finally:
            archive.unlink(missing_ok=True)

    def provides(self, plan: HostPlan) -> Provision:
        """The working directory."""
        if _hash_of(plan) is None:
            return Provision()
        directory = paths.attempt_dir(self._home, plan.key)
        return Provision(owned=[(str(directory / CODE), str(directory))], workdir=str(directory / CODE))

    def finish(self, plan: HostPlan) -> None:
        """Remove the code, with what the job wrote there."""
        if _hash_of(plan) is not None:
            remove_tree(paths.attempt_dir(self._home, plan.key) / CODE)

    def _fetch(self, plan: HostPlan, archive: Path) -> None:
        if self._source is None:
            raise HostUnavailable(f"{plan.host} has no service to ask for the job's code")
        fd = os.open(archive, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, records.PRIVATE_FILE)
        with os.fdopen(fd, "w+b") as file:
            self._source(plan, file)
            file.seek(0)
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                if is_closed(self._home, plan.key):
                    raise StepGivenUp
            found = digest.hexdigest()
        if found != _hash_of(plan):
            raise HostUnavailable(
                f"{plan.host} got other code than job {plan.key.job_id} names ({found[:12]}… instead of "
                f"{(_hash_of(plan) or '')[:12]}…): it was damaged on its way, or somebody changed it. Nothing of it ran"
            )

    def _unpack(self, plan: HostPlan, archive: Path, code: Path) -> None:
        code.mkdir(0o755)
        os.chmod(code, 0o755)
        size = archive.stat().st_size
        command = [sys.executable, "-I", "-S", unpacking.__file__, str(size), str(MAX_ENTRIES)]
        if self._jailed:
            account = account_of(self._node, plan)
            os.chown(code, account.uid, account.gid)
            command += [str(account.uid), str(account.gid)]
        cgroup = step_cgroup(self._home, plan, "unpack") if self._jailed else None
        with open(archive, "rb") as file:
            program = StepProgram(command, cgroup=cgroup, stdin=file, cwd=code, env={})
            ended = run(program, _UNPACKING, partial(is_closed, self._home, plan.key))
        if ended.stopped is StepStopped.GIVEN_UP:
            raise StepGivenUp
        if ended.stopped is not None:
            raise PreflightFailed(
                f"{plan.host} did not unpack the uploaded code {(_hash_of(plan) or '')[:12]}… within "
                f"{_UNPACKING.wall_s:g} s, {_UNPACKING.cpu_s:g} s of CPU and "
                f"{(_UNPACKING.memory_bytes or 0) >> 20} MiB of memory ({ended.stopped}): upload less",
                kind=blame(FailureCause.REQUEST),
                only_here=ended.stopped is StepStopped.TOO_SLOW,
            )
        if ended.code == 0:
            return
        said = ended.said
        if ended.code == unpacking.NOT_WRITTEN:
            first, _, said = said.partition(" ")
            if disk_room.is_fault_of_disk(number := int(first)):
                raise OSError(number, os.strerror(number))
        why = said[-400:] or f"exit code {ended.code}"
        if ended.code in (unpacking.REFUSED, unpacking.NOT_WRITTEN):
            raise PreflightFailed(
                f"{plan.host} refuses the uploaded code {(_hash_of(plan) or '')[:12]}…: {why}. Make the archive with "
                "`gpu-platform submit --upload DIR`",
                kind=blame(FailureCause.REQUEST),
            )
        raise HostUnavailable(f"{plan.host} cannot unpack the job's code: {why}")


def cannot_keep(plan: HostPlan, directory: Path, error: OSError) -> HostUnavailable:
    """The host cannot write the code: another one may."""
    if disk_room.is_fault_of_disk(error.errno):
        why = disk_room.told_of_error(f"its records ({directory})", error)
    else:
        why = f"{directory}: {error.strerror or error}"
    return HostUnavailable(f"{plan.host} cannot keep the job's code: {why}")


def _hash_of(plan: HostPlan) -> str | None:
    return None if plan.environment is None else plan.environment.upload
