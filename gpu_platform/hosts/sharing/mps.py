"""CUDA's Multi-Process Service: one control daemon per GPU, run as its tenant, while it has clients.

The daemon is outside the fences of its clients and known by its environment alone, so that it is found again after
a crash at any moment. What each client may use is said in the client's own environment, which is NVIDIA's way:
the daemon holds every client to it from its first context on. nvidia-cuda-mps-control(1); NVIDIA Multi-Process
Service, "Volta MPS Execution Resource Provisioning" and "Client Memory Limit".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.share import ShareGrant
from gpu_platform.hosts.process_tree import Process, all_processes, has_environ, is_alive, send_signal
from gpu_platform.hosts.sharing.tools import run_tool

PROGRAM = "nvidia-cuda-mps-control"
_MARK = "GPU_PLATFORM_MPS_DAEMON"
_MAX_PATH = 92
"""Of the pipe directory: the sockets in it have names of up to 15 bytes, and their path 108 (unix(7))."""
_PATIENCE_S = 10.0


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class MpsDaemon:
    """The daemon of one GPU; ``directory`` is its own. ``private_shm``: its clients are fenced."""

    def __init__(self, directory: Path, gpu_uuid: str, *, private_shm: bool = False) -> None:
        self._directory = directory
        self._gpu_uuid = gpu_uuid
        self.pipes = directory / "pipe"
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
        self.shm = f"/dev/shm/gpu-platform-mps-{digest}" if private_shm else None
        """Daemon and clients exchange shared memory: this is ``/dev/shm`` to both, and to no other tenant."""

    @property
    def was_started(self) -> bool:
        """And not stopped since."""
        return self.pipes.exists()

    def start(self, uid: int | None, gid: int | None) -> None:
        """Unless it runs. Raises :class:`HostUnavailable`, or :class:`PreflightFailed` when it serves another account:
        an MPS server has one user, and would let the second one wait for the first."""
        owner = os.geteuid() if uid is None else uid
        if running := self.processes():
            serves = os.stat(f"/proc/{running[0].pid}").st_uid
            if serves != owner:
                raise PreflightFailed(
                    f"GPU {self._gpu_uuid} is shared by MPS for the account {serves}, not for {owner}",
                    kind="hardware",
                    gpu_uuid=self._gpu_uuid,
                )
            return
        if len(os.fsencode(self.pipes)) > _MAX_PATH:
            raise HostUnavailable(
                f"MPS needs a path of at most {_MAX_PATH} bytes for its sockets: state_dir is too long ({self.pipes})"
            )
        for directory in filter(None, (self.pipes, self._directory / "log", self.shm)):
            shutil.rmtree(directory, ignore_errors=True)  # what a killed daemon left in it
            os.makedirs(directory)
            os.chmod(directory, 0o700)
            if uid is not None and gid is not None:
                os.chown(directory, uid, gid)
        run_tool(self._command(uid, gid), environ=self._environ())
        if not self.processes():
            raise HostUnavailable(f"the MPS daemon of GPU {self._gpu_uuid} ended at once: see {self._directory}/log")

    def stop(self) -> None:
        """Ask it to quit, and kill what is left of it and its servers. Nothing happens if it does not run."""
        running = self.processes()
        if running:
            self._quit(running[0])
        deadline = time.monotonic() + _PATIENCE_S
        while living := [process for process in running if is_alive(process)] or self.processes():
            if time.monotonic() > deadline - _PATIENCE_S / 2:
                for process in living:
                    send_signal(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise HostUnavailable(f"the MPS daemon of GPU {self._gpu_uuid} does not end: {living}")
            time.sleep(0.01)
        for directory in filter(None, (self.pipes, self.shm)):
            shutil.rmtree(directory, ignore_errors=True)

    def _quit(self, daemon: Process) -> None:
        with contextlib.suppress(HostUnavailable):
            owner = os.stat(f"/proc/{daemon.pid}")
            as_other = owner.st_uid != os.geteuid()
            run_tool(
                [PROGRAM],
                environ=self._environ(),
                say="quit -t 2\n",
                uid=owner.st_uid if as_other else None,
                gid=owner.st_gid if as_other else None,
            )

    def processes(self) -> list[Process]:
        """The control daemon and its servers, the daemon first."""
        mark = [f"{_MARK}={self.pipes}".encode()]
        found = [stat.process for pid, stat in all_processes().items() if not stat.zombie and has_environ(pid, mark)]
        return sorted(found, key=lambda process: (process.started, process.pid))

    def client_environ(self, grant: ShareGrant) -> dict[str, str]:
        """The GPU is device 0 for the client, whatever it is called on the host."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(grant.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={grant.memory_mib}M",
        }

    def _command(self, uid: int | None, gid: int | None) -> list[str]:
        """``-d`` makes it a daemon: it lives on when the node worker does not."""
        command = [PROGRAM, "-d"]
        if uid is not None and gid is not None:
            command = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *command]
        if self.shm is not None:
            command = ["bwrap", "--dev-bind", "/", "/", "--bind", self.shm, "/dev/shm", "--", *command]
        return command

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "CUDA_VISIBLE_DEVICES": self._gpu_uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directory / "log"),
            _MARK: str(self.pipes),
        }
