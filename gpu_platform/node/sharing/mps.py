"""CUDA's Multi-Process Service: one control daemon per GPU, run as its tenant, while it has clients.

The daemon is outside the jails of its clients. It is found by its environment, also after a crash. The client's own
environment says what the client may use, as NVIDIA designed it: the daemon enforces it from the first context on.
nvidia-cuda-mps-control(1); NVIDIA Multi-Process Service, "Volta MPS Execution Resource Provisioning" and "Client Memory
Limit".
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
from gpu_platform.domain.hosts.share import ShareGrant
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.system.environs import started_with
from gpu_platform.node.system.process_tree import FoundProcess, all_processes, send_signal
from gpu_platform.node.system.tools import GivenUp, never, run_tool

PROGRAM = "nvidia-cuda-mps-control"
_MARK = "GPU_PLATFORM_MPS_DAEMON"
_MAX_PATH = 80
"""The sockets below it have names of up to 27 bytes, and the whole path may have 108 (unix(7))."""
_PIPES, _LOGS = "nvidia-mps", "nvidia-log"
_QUIT_S, _KILL_S = 5.0, 5.0


class MpsDaemon:
    """The MPS control daemon of one GPU, with ``directory`` to itself.

    ``jailed``: its clients are in a jail. Then daemon and clients see one private directory as ``/dev/shm``: CUDA
    exchanges shared memory there, and the sockets are in it too.
    """

    def __init__(self, directory: Path, gpu_uuid: str, *, jailed: bool = False) -> None:
        self._name = os.fsencode(directory)
        self._gpu_uuid = gpu_uuid
        digest = hashlib.sha256(self._name).hexdigest()[:12]
        self.shm = f"/dev/shm/gpu-platform-mps-{digest}" if jailed else None
        self._root = Path(self.shm or directory)
        self._seen = Path("/dev/shm") if jailed else directory
        """The root directory, as daemon and clients see it."""

    @property
    def is_started(self) -> bool:
        """True if the daemon was started and has not been stopped."""
        return self._root.exists()

    @property
    def writable(self) -> list[str]:
        """Paths that clients must be able to write, besides :attr:`shm`."""
        return [] if self.shm else [str(self._root)]

    def start(self, uid: int | None = None, gid: int | None = None, given_up: GivenUp = never) -> None:
        """Start the daemon unless it runs. Raises :class:`HostUnavailable`, also once ``given_up`` is true.

        Raises :class:`PreflightFailed` if it runs for another account: an MPS server serves one user at a time, so the
        second user would wait for the first.
        """
        owner = os.geteuid() if uid is None else uid
        if running := self.processes():
            serves = os.stat(f"/proc/{running[0].pid}").st_uid
            if serves != owner:
                raise PreflightFailed(
                    f"GPU {self._gpu_uuid} is shared by MPS for the account {serves}, not for {owner}",
                    kind=blame(FailureCause.GPU_UNFIT),
                    gpu_uuid=self._gpu_uuid,
                )
            return
        if len(os.fsencode(self._seen)) > _MAX_PATH:
            raise HostUnavailable(
                f"MPS needs a path of at most {_MAX_PATH} bytes for its sockets: state_dir is too long ({self._seen})"
            )
        shutil.rmtree(self._root, ignore_errors=True)  # files that a killed daemon left
        for directory in (self._root, self._root / _PIPES, self._root / _LOGS):
            directory.mkdir(parents=True, mode=0o700)
            if uid is not None and gid is not None:
                os.chown(directory, uid, gid)
        self._control("-d", uid=uid, gid=gid, given_up=given_up)  # it becomes a daemon, which survives the node worker
        if not self.processes():
            raise HostUnavailable(f"the MPS daemon of GPU {self._gpu_uuid} ended at once: {self._log_tail()}")

    def stop(self) -> None:
        """Ask the daemon to quit, and kill it and its servers if they do not. Does nothing if it does not run."""
        running = self.processes()
        if running:
            owner = os.stat(f"/proc/{running[0].pid}")
            with contextlib.suppress(HostUnavailable):
                self._control(say="quit -t 2\n", uid=owner.st_uid, gid=owner.st_gid)
        began = time.monotonic()
        while living := self.processes():
            if time.monotonic() - began > _QUIT_S:
                for process in living:
                    send_signal(process, signal.SIGKILL)
            if time.monotonic() - began > _QUIT_S + _KILL_S:
                raise HostUnavailable(f"the MPS daemon of GPU {self._gpu_uuid} does not end: {living}")
            time.sleep(0.01)
        shutil.rmtree(self._root, ignore_errors=True)

    def processes(self) -> list[FoundProcess]:
        """The control daemon and its servers, the daemon first."""
        mark = [_MARK.encode() + b"=" + self._name]
        table = all_processes()
        found = [table[pid].process for pid in started_with(table.values(), mark)]
        return sorted(found, key=lambda process: (process.started, process.pid))

    def client_environ(self, grant: ShareGrant) -> dict[str, str]:
        """The variables of a client. For the client the GPU is device 0, whatever its index on the host is."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._seen / _PIPES),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(grant.percent),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={grant.memory_mib}M",
        }

    def _control(
        self, *arguments: str, say: str = "", uid: int | None = None, gid: int | None = None, given_up: GivenUp = never
    ) -> None:
        command = [PROGRAM, *arguments]
        if uid is not None and gid is not None and uid != os.geteuid():
            command = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *command]
        if self.shm is not None:
            command = ["bwrap", "--dev-bind", "/", "/", "--bind", self.shm, "/dev/shm", "--", *command]
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "CUDA_VISIBLE_DEVICES": self._gpu_uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_MPS_PIPE_DIRECTORY": str(self._seen / _PIPES),
            "CUDA_MPS_LOG_DIRECTORY": str(self._seen / _LOGS),
        }
        if arguments:
            environ[_MARK] = os.fsdecode(self._name)
        run_tool(command, environ=environ, say=say, given_up=given_up)

    def _log_tail(self) -> str:
        texts = [path.read_text(errors="replace") for path in sorted((self._root / _LOGS).glob("*.log"))]
        return "\n".join(texts).strip()[-300:] or "it left no log"
