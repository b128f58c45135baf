"""The shell that loads the modules of a job and then becomes its program. Standard library only: ``exec`` uses it."""

from __future__ import annotations

from collections.abc import Sequence

_SCRIPT = """
. "$1" >/dev/null || exit 126
type module >/dev/null 2>&1 || { echo "gpu-platform: $1 defines no command module" >&2; exit 126; }
count=$2; shift 2
while [ "$count" -gt 0 ]; do
    module load "$1" || { echo "gpu-platform: module load $1 failed on $GPU_PLATFORM_HOST" >&2; exit 126; }
    shift; count=$((count - 1))
done
[ -z "${VIRTUAL_ENV-}" ] || PATH="$VIRTUAL_ENV/bin:$PATH"
export PATH
exec "$@"
"""
_SHELL = ["/bin/bash", "--noprofile", "--norc", "-c", _SCRIPT, "gpu-platform"]


def with_modules(argv: Sequence[str], init: str, modules: Sequence[str]) -> list[str]:
    """The command that reads ``init``, loads the modules in their order, and becomes ``argv``."""
    return [*_SHELL, init, str(len(modules)), *modules, *argv]


def with_modules_of(rank_argv: Sequence[str], argv: Sequence[str]) -> list[str]:
    """The command that loads what a rank with ``rank_argv`` has loaded, and becomes ``argv``."""
    before = len(_SHELL)
    if list(rank_argv[:before]) != _SHELL:
        return [*argv]
    return [*rank_argv[: before + 2 + int(rank_argv[before + 1])], *argv]
