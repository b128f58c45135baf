"""CUDA installations of this host: which there are, which of them its driver can run, and what a rank gets to use one.

A driver runs every CUDA up to its own version, and later ones of the same major version (NVIDIA, *CUDA
Compatibility*: minor version compatibility, since CUDA 11). A newer major version needs a newer driver, or the
package ``cuda-compat`` in the installation (forward compatibility, data centre GPUs).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.hosts.cuda import cuda_pair, newest_cuda
from gpu_platform.domain.jobs.attempt import HostPlan, Program
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system.tools import NotEnded, run

USUAL_PLACES = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda", "/opt/cuda-*", "/opt/nvidia/cuda*")
_VERSION = re.compile(r"(\d+)\.(\d+)")
_NVCC_TIMEOUT_S = 5.0


def find_cuda(more: Iterable[Path] = (), places: Iterable[str] = USUAL_PLACES) -> dict[str, str]:
    """Version (``major.minor``) -> directory. ``more``: the operator's directories, which win over the usual ones."""
    found: dict[str, str] = {}
    usual = [path for place in places for path in sorted(Path("/").glob(place.lstrip("/")))]
    for directory in [*more, *usual]:
        version = _version_of(directory)
        if version is not None:
            # The link /usr/local/cuda can change: the job gets what it points to now.
            found.setdefault(version, os.path.realpath(directory))
    return dict(sorted(found.items(), key=lambda item: cuda_pair(item[0])))


def runs_on(driver: str | None, version: str, directory: str) -> bool:
    """True if the driver runs this CUDA version. ``driver``: the newest CUDA of the driver. None: unknown, and any
    version passes."""
    return driver is None or cuda_pair(version)[0] <= cuda_pair(driver)[0] or _compat(directory) is not None


class CudaStage(Stage):
    """Gives each rank the CUDA installation that it asked for. Jailed ranks see it read-only, like all of the system.

    ``default``: ranks with GPUs that asked for no version get the newest, without its libraries.
    """

    def __init__(
        self,
        installations: dict[str, str],
        driver_cuda: str | None,
        unusable: Mapping[str, str] | None = None,
        *,
        default: bool = False,
    ) -> None:
        self._default = default
        self._installations = installations
        self._unusable = unusable or {}
        self._driver_cuda = driver_cuda

    def prepare(self, plan: HostPlan) -> None:
        """Raise :class:`PreflightFailed` if this host lacks the CUDA version that a program asked for."""
        for program in plan.programs:
            if program.cuda is not None:
                self._check(plan.host, program.cuda)

    def provides(self, plan: HostPlan) -> Provision:
        """The environment of each rank for its CUDA version, and the directories that it must see."""
        if plan.environment is not None and plan.environment.container is not None:
            return Provision()  # its image brings its own
        environs = {spec.rank: self._environ(plan.program(spec), has_gpus=bool(spec.gpu_uuids)) for spec in plan.ranks}
        # An installation below /tmp, or below what a jail hides, must be shown.
        shown = {environ["CUDA_HOME"] for environ in environs.values() if environ}
        return Provision(rank_environ=environs, readable=sorted(shown))

    def _check(self, host: str, wanted: str) -> None:
        version = newest_cuda(wanted, self._installations)
        unusable = newest_cuda(wanted, self._unusable)
        if version is None and unusable is not None:
            raise PreflightFailed(
                f"CUDA {wanted} was asked for; {host} has it, but {self._unusable[unusable]}: ask for that or an older "
                "one, or install a newer driver or cuda-compat there",
                kind=blame(FailureCause.REQUEST),
            )
        if version is None:
            there = ", ".join(self._installations) or "none"
            raise PreflightFailed(
                f"CUDA {wanted} was asked for; {host} has {there}: install it there, or name its place in "
                "node.cuda_roots",
                kind=blame(FailureCause.REQUEST),
            )
        directory = self._installations[version]
        if not os.path.isdir(directory):
            raise PreflightFailed(
                f"CUDA {wanted} was asked for; {host} had {version} in {directory}, which is not there any more: "
                "install it again, and restart the node worker",
                kind=blame(FailureCause.REQUEST),
            )
        if not runs_on(self._driver_cuda, version, directory):
            raise PreflightFailed(
                f"CUDA {wanted} was asked for, which the driver of {host} cannot run: it goes up to CUDA "
                f"{self._driver_cuda}; ask for that or an older one, or install a newer driver or cuda-compat there",
                kind=blame(FailureCause.REQUEST),
            )

    def _environ(self, program: Program, has_gpus: bool) -> dict[str, str]:
        version = newest_cuda(program.cuda, self._installations)
        if program.cuda is None:
            return self._default_environ(program, version) if has_gpus else {}
        assert version is not None, "prepare checked it"
        directory = self._installations[version]
        inherited = {name: program.env.get(name) or os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH")}
        libraries = [f"{directory}/lib64"]
        if self._driver_cuda is not None and cuda_pair(version) > cuda_pair(self._driver_cuda):
            compat = _compat(directory)
            libraries[:0] = [] if compat is None else [compat]
        return {
            "CUDA_HOME": directory,
            "CUDA_PATH": directory,
            "PATH": _joined(f"{directory}/bin", inherited["PATH"] or os.defpath),
            "LD_LIBRARY_PATH": _joined(*libraries, inherited["LD_LIBRARY_PATH"]),
        }

    def _default_environ(self, program: Program, version: str | None) -> dict[str, str]:
        """The variables for the default version. None if the job brings its own CUDA. Programs that the job finds
        without them, it still finds."""
        if not self._default or version is None or program.env.keys() & {"CUDA_HOME", "CUDA_PATH"}:
            return {}
        directory = self._installations[version]
        if not os.path.isdir(directory):
            return {}
        path = program.env.get("PATH") or os.environ.get("PATH", os.defpath)
        return {"CUDA_HOME": directory, "CUDA_PATH": directory, "PATH": _joined(path, f"{directory}/bin")}


def _version_of(directory: Path) -> str | None:
    """The CUDA version, from ``version.json`` (CUDA 11.1 and later), ``version.txt`` (before) or ``nvcc``. None: no
    CUDA."""
    try:
        text = json.loads((directory / "version.json").read_text())["cuda"]["version"]
    except (OSError, ValueError, KeyError, TypeError):
        text = None
    if text is None:
        try:
            text = (directory / "version.txt").read_text()
        except (OSError, UnicodeDecodeError):
            text = _ask_nvcc(directory / "bin" / "nvcc")
    match = _VERSION.search(str(text))
    return None if match is None else f"{int(match[1])}.{int(match[2])}"


def _ask_nvcc(nvcc: Path) -> str:
    """The line of ``nvcc --version``, e.g. ``Cuda compilation tools, release 12.4, V12.4.131``."""
    if not os.access(nvcc, os.X_OK):
        return ""
    try:
        done = run([str(nvcc), "--version"], timeout_s=_NVCC_TIMEOUT_S)
    except (OSError, NotEnded):
        return ""
    return done.output.partition("release ")[2]


def _compat(directory: str) -> str | None:
    path = os.path.join(directory, "compat")
    return path if os.path.exists(os.path.join(path, "libcuda.so.1")) else None


def _joined(*parts: str) -> str:
    return ":".join(part for part in parts if part)
