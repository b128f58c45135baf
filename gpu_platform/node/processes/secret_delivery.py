"""Gets the secrets of an attempt when its ranks start, and puts them where the ranks find them.

Jailed ranks find them in the jail's own ``/run``. Plain ranks find them in a directory below ``/dev/shm``, which is in
memory, too: it is removed when the attempt ends, and gone after a boot.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.secret_uses import LaunchSecrets
from gpu_platform.node.isolation.secret_files import IN_JAIL, SecretDirs, SecretFiles, write_secrets

NO_SECRETS = "no_secrets"
"""Key in the details of a :class:`HostUnavailable`: the host did not get the secrets. The value: one of those below."""
AWAY, MISSING, REFUSED = "away", "missing", "refused"
"""No service answered; a secret is not there; the service refused."""

SecretSource = Callable[[HostPlan], LaunchSecrets]
"""Asks the service. Raises :class:`HostUnavailable` with ``NO_SECRETS`` in its details."""

_MEMORY = "/dev/shm"
_API_URL = "GPU_PLATFORM_API_URL"


class SecretDelivery:
    """Thread-safe: one attempt is launched by one thread at a time."""

    def __init__(self, source: SecretSource | None, api_url: str, *, jailed: bool) -> None:
        """``source``: None on hosts that have no service to ask, as in tests. ``api_url``: where ranks find it."""
        self._source, self._api_url, self._jailed = source, api_url, jailed

    def fetch(self, plan: HostPlan) -> SecretFiles | None:
        """What the ranks of the plan get. None: nothing. Raises :class:`HostUnavailable`."""
        if not plan.has_secrets:
            return None
        if self._source is None:
            raise HostUnavailable(f"{plan.host} has no service to ask for secrets", **{NO_SECRETS: AWAY})
        found = self._source(plan)
        files = {name: base64.b64decode(content) for name, content in found.files.items()}
        return SecretFiles(found.environ, files, found.token)

    def place(self, secrets: SecretFiles | None, attempt_dir: Path) -> None:
        """Write the secrets of plain ranks. Those of a jail are written when it is made. Raises
        :class:`HostUnavailable`."""
        if secrets is None or self._jailed:
            return
        try:
            _make_private(_own_directory())
            write_secrets(secrets, _dirs(attempt_dir), os.geteuid(), os.getegid())
        except OSError as error:
            raise HostUnavailable(
                f"secrets cannot be written to {error.filename or _MEMORY}: {error.strerror}; it must be a tmpfs in "
                "which this account may make directories"
            ) from error

    def dirs(self, plan: HostPlan, attempt_dir: Path) -> SecretDirs | None:
        """Where the ranks find their secrets. None: they have none."""
        if not plan.has_secrets:
            return None
        return IN_JAIL if self._jailed else _dirs(attempt_dir)

    def environ(self, plan: HostPlan, attempt_dir: Path) -> dict[str, str]:
        """Variables that say where the files are. They have no secrets in them."""
        dirs = self.dirs(plan, attempt_dir)
        if dirs is None:
            return {}
        found = {"GPU_PLATFORM_SECRETS_DIR": dirs.files}
        if plan.job_token:
            found["GPU_PLATFORM_TOKEN_FILE"] = dirs.token
            # The ranks may reach the service by another address than the host.
            if not any(_API_URL in program.env for program in plan.programs):
                found[_API_URL] = self._api_url
        return found

    def remove(self, attempt_dir: Path) -> None:
        """Remove what :meth:`place` wrote. Nothing of the attempt lives."""
        shutil.rmtree(_dirs(attempt_dir).own, ignore_errors=True)


def _dirs(attempt_dir: Path) -> SecretDirs:
    """It follows from the attempt alone: any later node worker finds and removes it."""
    own = os.path.join(_own_directory(), hashlib.sha256(os.fsencode(attempt_dir)).hexdigest()[:32])
    return SecretDirs(os.path.join(own, "secrets"), own)


def _own_directory() -> str:
    return os.path.join(_MEMORY, f"gpu-platform-{os.geteuid()}")


def _make_private(directory: str) -> None:
    """Make a directory for this account alone. Others may make one of this name: it is not used then."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(13, "it is there and not this account's alone", directory) from None
