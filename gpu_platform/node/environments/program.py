"""How the program of a rank starts in the environment that its job asks for: virtual environment and modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.node.environments.modules import with_modules
from gpu_platform.node.processes.step_process import look

MODULE_INITS = (
    "/etc/profile.d/z00_lmod.sh",
    "/etc/profile.d/lmod.sh",
    "/etc/profile.d/modules.sh",
    "/usr/share/lmod/lmod/init/bash",
    "/usr/share/modules/init/bash",
    "/usr/share/Modules/init/bash",
    "/opt/lmod/lmod/init/bash",
)
"""Where Lmod and Environment Modules define the command ``module`` for bash, as they and distributions install it."""


def checked_init(plan: HostPlan, configured: Path | None) -> Path | None:
    """The file that defines ``module`` here. None: the job loads no modules.

    ``configured``: ``node.module_init``. Raises :class:`PreflightFailed` if there is none.
    """
    environment = plan.environment
    if environment is None or not environment.modules:
        return None
    places = [Path(place) for place in MODULE_INITS] if configured is None else [configured]
    found = look("first_file", {"paths": list(map(str, places))}, map(str, places))
    init = None if found is None else Path(found)
    if init is None or not os.path.exists("/bin/bash"):
        raise PreflightFailed(
            f"the job loads modules ({', '.join(environment.modules)}), and {plan.host} has no command module "
            f"({', '.join(str(place) for place in places[:3])}… are not there, or there is no /bin/bash): install Lmod "
            "or Environment Modules there, or name its file for bash in node.module_init",
            kind=blame(FailureCause.REQUEST),
        )
    return init


def has_own_root(plan: HostPlan) -> bool:
    """True if the ranks see other files than the host's."""
    return plan.environment is not None and plan.environment.container is not None


def activated(environ: Mapping[str, str], environment: JobEnvironment | None) -> dict[str, str]:
    """The variables as ``bin/activate`` of the virtual environment sets them."""
    found = dict(environ)
    if environment is None or environment.venv is None:
        return found
    found["VIRTUAL_ENV"] = environment.venv
    found["PATH"] = os.pathsep.join([f"{environment.venv}/bin", *([found["PATH"]] if found.get("PATH") else [])])
    found.pop("PYTHONHOME", None)
    return found


def started(argv: list[str], environment: JobEnvironment | None, init: Path | None) -> list[str]:
    """The command that loads the job's modules and then becomes ``argv``. ``init``: see :func:`checked_init`."""
    if environment is None or init is None:
        return argv
    return with_modules(argv, str(init), environment.modules)
