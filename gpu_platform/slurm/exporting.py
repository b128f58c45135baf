"""What a job gets of its submitter's environment (sbatch(1), ``--export``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_THE_SESSION = frozenset(
    {
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "MAIL",
        "TMPDIR",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "HOSTNAME",
        "DISPLAY",
        "XAUTHORITY",
        "TERM",
        "TERM_PROGRAM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "WINDOWID",
        "TTY",
        "LS_COLORS",
        "PS1",
        "PS2",
        "PROMPT_COMMAND",
        "HISTFILE",
        "HISTSIZE",
        "HISTCONTROL",
        "HISTFILESIZE",
        "DBUS_SESSION_BUS_ADDRESS",
        "BASHOPTS",
        "SHELLOPTS",
        "ENV",
        "BASH_ENV",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "TRACEPARENT",
        "TRACESTATE",
    }
)
"""They are about the submitter's terminal and account, or the platform sets them."""
_PREFIXES = (
    "GPU_PLATFORM_",
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SSH_",
    "XDG_",
    "BASH_FUNC_",
    "VSCODE_",
    "TMUX",
    "STY",
)
"""GPU_PLATFORM_TOKEN must never be in a job: whoever reads its environment could act as its user."""


def exported(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for ``ALL``, ``NONE``, and ``NAME`` or ``NAME=VALUE`` with commas between them.

    ``ALL`` leaves out what belongs to the session and the account of the submitter. Raises ``ValueError``.
    """
    words = _words(text)
    found: dict[str, str] = {}
    if "ALL" in words:
        found = {name: value for name, value in environ.items() if _goes_with_all(name, value)}
    for word in words:
        name, equals, value = word.partition("=")
        if word in ("ALL", "NONE", "NIL"):
            continue
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is not the name of a variable: write ALL, NONE, NAME or NAME=VALUE")
        if name.startswith("GPU_PLATFORM_"):
            raise ValueError(f"{name}: the platform sets its own variables")
        if equals:
            found[name] = value
        elif name in environ:  # as sbatch, which says nothing of one that is not set
            found[name] = environ[name]
    return found


def _words(text: str) -> list[str]:
    """Split at commas. A value may be in quotation marks, with commas in it. Raises ``ValueError`` if it is not
    closed."""
    if re.search(r"['\"]", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)):
        raise ValueError(f"{text[:60]!r}: a quotation mark is not closed")
    found = re.findall(r"(?:[^,'\"]|'[^']*'|\"[^\"]*\")+", text)
    return [
        re.sub(r"'([^']*)'|\"([^\"]*)\"", lambda one: one[1] or one[2] or "", word.strip()) for word in found if word
    ]


def _goes_with_all(name: str, value: str) -> bool:
    if name in _OF_THE_SESSION or name.startswith(_PREFIXES) or not _NAME.fullmatch(name):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
