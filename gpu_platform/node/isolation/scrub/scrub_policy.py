"""When a GPU's memory is scrubbed, and what happens when that fails.

The policy belongs to the namespace whose data it is: ``always`` after each of its jobs, ``between_namespaces`` before
the first job of another one (so that a tenant's next job does not wait), ``never``. Without a record (the host is new,
or lost its records) the data count as another tenant's. A MIG instance is scrubbed before it is destroyed, because
nobody knows who gets its memory next. A record on disk says whose data a GPU holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import structlog

from gpu_platform.domain.errors import PlatformError, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.inherited import inherited
from gpu_platform.node.isolation.scrub import scrub_process
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.system import records, tools
from gpu_platform.node.system.tools import GivenUp, NotEnded, never
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

ScrubPolicy = Literal["never", "between_namespaces", "always"]

_CLEAN = ""
"""Recorded instead of a namespace after the memory was overwritten and verified."""
_NO_CUDA = "CUDA cannot be used here"


class Scrubber:
    """Decides when the memory of a GPU must be overwritten, and has it done.

    ``reset`` resets a GPU that nothing uses, which also clears its memory. It is called if CUDA cannot be used.
    ``on_failure`` gets the GPU and what is wrong with it.
    """

    def __init__(
        self,
        node: NodeSettings,
        nvml: NvmlLibrary,
        home: Path,
        *,
        reset: Callable[[str], None],
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._node = node
        self._has_memory = nvml.runs_cuda
        self._directory = home / "scrub"
        self._reset = reset
        self._on_failure = on_failure

    def before(self, gpu_uuid: str, namespace: str | None, given_up: GivenUp = never) -> None:
        """Make the GPU clean for ``namespace`` (None: shares of it go to several). Nothing may run on it.

        Raises :class:`PreflightFailed` if the data of an earlier tenant cannot be removed, and
        :class:`HostUnavailable` once ``given_up`` is true.
        """
        if not self._has_memory:
            return
        owner = self._owner(gpu_uuid)
        if owner not in (_CLEAN, namespace) and self._policy(owner) != "never":
            self._clean(gpu_uuid, given_up)
            owner = _CLEAN
        if namespace not in (None, owner):
            self._write(gpu_uuid, namespace)

    def after(self, gpu_uuid: str) -> None:
        """Clean the GPU after its last job ended. A failure is only reported, so that the job can end."""
        owner = self._owner(gpu_uuid) if self._has_memory else _CLEAN
        if owner != _CLEAN and self._policy(owner) == "always":
            try:
                self._clean(gpu_uuid)
            except PlatformError:
                return  # reported, and the record stays: nobody gets the GPU before it is clean

    def after_instance(self, gpu_uuid: str, instance_uuid: str, namespace: str) -> None:
        """Clean a MIG instance that will be destroyed."""
        if not self._has_memory or self._policy(namespace) == "never":
            return
        problem = self._overwrite(instance_uuid)
        if problem is not None:
            self._on_failure(gpu_uuid, f"the memory of its MIG instance cannot be scrubbed: {problem}")

    def _clean(self, gpu_uuid: str, given_up: GivenUp = never) -> None:
        problem = self._overwrite(gpu_uuid, given_up)
        if problem is not None and problem.startswith(_NO_CUDA):
            problem = self._clear_by_reset(gpu_uuid)
        if problem is not None:
            message = f"its memory cannot be scrubbed: {problem}"
            self._on_failure(gpu_uuid, message)
            raise PreflightFailed(f"GPU {gpu_uuid}: {message}", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=gpu_uuid)
        self._write(gpu_uuid, _CLEAN)

    def _clear_by_reset(self, gpu_uuid: str) -> str | None:
        try:
            self._reset(gpu_uuid)
        except PlatformError as error:
            return error.message
        return None

    def _overwrite(self, device: str, given_up: GivenUp = never) -> str | None:
        """Overwrite the memory. Returns why it failed, or None. ``device``: the uuid of a GPU or MIG device."""
        environ = inherited() | {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        command = [
            sys.executable,
            "-P",
            "-m",
            "gpu_platform.node.isolation.scrub.scrub_process",
            str(self._node.scrub_verify_every),
        ]
        name, timeout_s = f"the scrub of {device}", self._node.scrub_timeout_s
        try:
            done = tools.run(command, environ=environ, timeout_s=timeout_s, name=name, given_up=given_up)
        except NotEnded as error:
            if given_up():
                raise  # the GPU is as it was: the next one scrubs it
            return error.message
        try:
            answer = json.loads(done.output)
        except ValueError:
            return f"the scrubber ended with {done.code}: {done.said.strip()[-300:]}"
        if done.code == scrub_process.DONE:
            log.info("gpu.scrubbed", gpu=device, **answer)
            return None
        return (f"{_NO_CUDA}: " if done.code == scrub_process.NO_CUDA else "") + answer["problem"]

    def _policy(self, namespace: str | None) -> ScrubPolicy:
        return self._node.scrub_namespaces.get(namespace or "", self._node.scrub)

    def _owner(self, gpu_uuid: str) -> str | None:
        """Whose data is on the GPU: a namespace, or ``_CLEAN``. None: unknown, so it counts as another tenant's."""
        record = records.read_record(str(self._record(gpu_uuid)))
        return None if record is None else record["namespace"]

    def _write(self, gpu_uuid: str, owner: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        records.write_record(str(self._record(gpu_uuid)), {"namespace": owner}, durable=True)

    def _record(self, gpu_uuid: str) -> Path:
        return self._directory / f"{gpu_uuid}.json"
