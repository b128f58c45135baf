"""Checks that a GPU is fit for the next job, and that no process of the last one is left on it.

An attempt on a GPU that is not fit is refused before any rank starts. The error names the GPU, and the host reports
it as degraded until it is fit again.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import stat
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.domain.jobs.attempt import FaultReport, HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.lanes import LastKnown
from gpu_platform.node.health.gpu_reset import compute_processes_on
from gpu_platform.node.nvml.gpu_signals import row_remapping
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.stages import Stage
from gpu_platform.node.system.process_tree import all_processes, read_stat, send_signal
from gpu_platform.node.system.records import boot_clock_s
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_JAIL = re.compile(rb"/gpu-platform/[0-9a-f]{8}\.")
"""In the cgroups of a rank; see ``isolation/jail.py``."""
_CHECK_S = 0.3
"""A report waits so long for the checks of unfit GPUs."""
_GPU_RELEASE_S = 5.0
"""Seconds that the driver may need to notice the end of a process."""
_AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = -100, 0x4000, 1
_STATX = struct.Struct("=28xH98xII")
"""Of struct statx (statx(2)): the mode, and the two numbers of a device."""
_libc = ctypes.CDLL(None, use_errno=True)


class GpuFitness(Stage):
    """Checks GPUs before and after an attempt.

    ``own_pids`` gives the processes on a GPU that belong to open attempts or to the platform. ``on_fault`` gets faults
    that a reset can heal.
    """

    def __init__(
        self,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        node: NodeSettings,
        *,
        own_pids: Callable[[str], set[int]],
        on_fault: Callable[[FaultReport], None],
        dev: Path = Path("/dev"),
    ) -> None:
        self._nvml = nvml
        self._index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        self._host = node.name
        self._max_temperature_c = node.max_temperature_c
        self._own_pids = own_pids
        self._on_fault = on_fault
        self._dev = dev
        self._lock = threading.Lock()
        self._checks = LastKnown[None](None, "gpu-fitness", patience_s=_CHECK_S)
        self._unfit: dict[str, str] = {}
        self._prepared: dict[AttemptKey, int] = {}
        """Attempt -> when it was prepared, in clock ticks since boot."""
        self._met: dict[AttemptKey, set[int]] = {}
        """Attempt that was refused -> the processes of others for which it was."""

    def prepare(self, plan: HostPlan) -> None:
        """Check the GPUs of the attempt. Raises :class:`PreflightFailed`, which names a GPU that is not fit."""
        self._prepared[plan.key] = int(boot_clock_s() * _TICKS_PER_S)
        self._expel(plan)
        for uuid in plan.gpu_uuids:
            foreign: set[int] = set() if _is_partitioned(plan) else self._foreign(uuid)
            if foreign:
                self._met[plan.key] = foreign
            problem = _in_use(foreign) or self._too_hot(uuid)
            if problem is not None:
                self._mark(uuid, problem)
            elif not plan.shares and (problem := self._waits_for_reset(uuid)) is not None:
                self.report(uuid, problem)
            if problem is not None:
                raise PreflightFailed(f"GPU {uuid}: {problem}", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=uuid)

    def finish(self, plan: HostPlan) -> None:
        """Wait until the driver sees that the attempt is gone. Other attempts may share the GPU and run on.

        Processes for which :meth:`prepare` refused the attempt were there before it, so it does not wait for them.
        """
        since = self._prepared.pop(plan.key, None)
        met = self._met.pop(plan.key, set())
        self._expel(plan)
        for uuid in () if _is_partitioned(plan) else plan.gpu_uuids:
            deadline = time.monotonic() + _GPU_RELEASE_S
            while (left := self._foreign(uuid) - met) and time.monotonic() < deadline:
                time.sleep(0.05)
            if (problem := _in_use(left)) is not None:
                log.error("gpu.not_left", gpu=uuid, job=plan.key.job_id, attempt=plan.key.attempt, problem=problem)
                self._mark(uuid, problem)
            elif not plan.shares and since and (holders := self._holders(uuid, since)):
                # The process has the device open but no context. It may be a monitoring daemon, so the GPU stays in
                # service.
                key = plan.key
                log.warning("gpu.node_open", gpu=uuid, job=key.job_id, attempt=key.attempt, processes=_named(holders))

    def unfit(self) -> dict[str, str]:
        """GPU -> why it should get no work for now. Checks GPUs again that were unfit; while NVML does not answer, they
        stay so."""
        with self._lock:
            marked = list(self._unfit)
        if marked:
            self._checks.read(lambda: self._check_again(marked))
        with self._lock:
            return dict(self._unfit)

    def _check_again(self, marked: Sequence[str]) -> None:
        for uuid in marked:
            problem = _in_use(self._foreign(uuid)) or self._too_hot(uuid)
            with self._lock:
                if problem is None:
                    self._unfit.pop(uuid, None)
                else:
                    self._unfit[uuid] = problem

    def report(self, uuid: str, problem: str) -> None:
        """Report a fault that a reset can heal and that was found while no job was on the GPU. No job is to blame
        for it."""
        index = self._index.get(uuid, 0)
        self._on_fault(
            FaultReport(
                fault_id=f"{uuid}-between-{time.time_ns()}",
                host=self._host,
                gpu_uuid=uuid,
                gpu_index=index,
                xid=None,
                action=FaultAction.RESET,
                message=f"GPU {index} of {self._host}: {problem}",
                at_ms=time.time_ns() // 1_000_000,
                between_jobs=True,
            )
        )

    def _mark(self, uuid: str, problem: str) -> None:
        with self._lock:
            self._unfit[uuid] = problem

    def _foreign(self, uuid: str) -> set[int]:
        """Pids that compute on the GPU and belong neither to an attempt nor to the platform."""
        pids = self._compute_pids(uuid)
        return pids - self._own_pids(uuid) if pids else pids

    def _compute_pids(self, uuid: str) -> set[int]:
        return {pid for pid in compute_processes_on(self._nvml, uuid) if pid != os.getpid()}

    def _too_hot(self, uuid: str) -> str | None:
        try:
            device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            temperature = self._nvml.nvmlDeviceGetTemperature(device, self._nvml.NVML_TEMPERATURE_GPU)
        except self._nvml.NVMLError:
            return None  # the health monitor reports a GPU that does not answer
        if temperature <= self._max_temperature_c:
            return None
        return f"{temperature} °C is above the limit of {self._max_temperature_c}"

    def _waits_for_reset(self, uuid: str) -> str | None:
        try:
            pending = row_remapping(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(uuid))[0]
        except self._nvml.NVMLError:
            return None
        return "a remapped memory row waits for a reset, and nothing runs on it now" if pending else None

    def _expel(self, plan: HostPlan) -> None:
        """Kill ranks of other attempts that have a device node of these GPUs open. They were not given it: a job passed
        its descriptor through a socket in a directory that both see, and the device filter asks only at open(2)."""
        deadline = time.monotonic() + _GPU_RELEASE_S
        while (thieves := self._thieves(plan)) and time.monotonic() < deadline:
            key = plan.key
            log.error("gpu.passed_on", job=key.job_id, attempt=key.attempt, killed=_named(thieves))
            for pid in thieves:
                if (found := read_stat(pid)) is not None and _is_jailed(pid):
                    send_signal(found.process, signal.SIGKILL)
            time.sleep(0.01)

    def _thieves(self, plan: HostPlan) -> set[int]:
        numbers = {uuid: number for uuid in plan.gpu_uuids if (number := self._number(uuid)) is not None}
        if not numbers:
            return set()
        opened = {
            pid: _open_devices(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_jailed(pid)
        }
        found: set[int] = set()
        for uuid, number in numbers.items():
            holders = {pid for pid, devices in opened.items() if number in devices}
            found |= holders - self._own_pids(uuid) if holders else set()
        return found

    def _holders(self, uuid: str, since: int) -> set[int]:
        """Pids that have the GPU's device node open, and started after the attempt was prepared."""
        number = self._number(uuid)
        return set() if number is None else holders_of(number, since) - self._own_pids(uuid)

    def _number(self, uuid: str) -> int | None:
        """The number of the GPU's device node. None: there is no node."""
        if not self._nvml.has_device_nodes:
            return None
        try:
            device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return (self._dev / f"nvidia{self._nvml.nvmlDeviceGetMinorNumber(device)}").stat().st_rdev
        except (OSError, self._nvml.NVMLError):
            return None


def _in_use(foreign: set[int]) -> str | None:
    """What is wrong with a GPU on which these processes compute. None: there are none."""
    return f"a process that belongs to no job here computes on it: {_named(foreign)}" if foreign else None


def _is_partitioned(plan: HostPlan) -> bool:
    """True for MIG, which keeps others out by itself: an instance cannot be destroyed while something runs in it."""
    return any(grant.mode is ShareMode.MIG for grant in plan.shares)


def holders_of(device: int, since: int) -> set[int]:
    """Other processes that have the device open and started at ``since`` (clock ticks since boot) or later."""
    young = (pid for pid, found in all_processes().items() if found.process.started >= since and pid != os.getpid())
    return {pid for pid in young if device in _open_devices(pid)}


def _is_jailed(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return _JAIL.search(file.read()) is not None
    except OSError:
        return False


def _open_devices(pid: int) -> set[int]:
    """The numbers of the character devices that the process has open."""
    found: set[int] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        number = _character_device(f"/proc/{pid}/fd/{name}")
        if number is not None:
            found.add(number)
    return found


def _character_device(path: str) -> int | None:
    """The number of a character device. None: it is none, or it is gone.

    statx(2) with ``AT_STATX_DONT_SYNC`` asks no file system over a network: the process may have a file open there,
    which does not answer, and another job waits for this.
    """
    found = ctypes.create_string_buffer(256)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, found) != 0:
        return None
    mode, major, minor = _STATX.unpack_from(found.raw)
    return os.makedev(major, minor) if stat.S_ISCHR(mode) else None


def _named(pids: set[int]) -> str:
    return ", ".join(f"{pid} ({_comm(pid)})" for pid in sorted(pids)[:5])


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
