"""Slurm's amounts: memory, GPUs, numbers of hosts, signals."""

from __future__ import annotations

import math
import re
import signal
from typing import NamedTuple

_MEMORY = re.compile(r"([0-9]{1,15})\s*([KMGT])?B?", re.IGNORECASE | re.ASCII)
_TO_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_NODES = re.compile(r"([0-9]{1,9}[km]?)(?:-([0-9]{1,9}[km]?))?", re.ASCII)
_GPUS = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]*|[0-9]+g\.[0-9]+gb[A-Za-z0-9_.+]*):)?([0-9]{1,6})", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*|[0-9]+g\.[0-9]+gb[A-Za-z0-9_.+]*", re.ASCII)
_TRES = re.compile(r"(cpu|gres[/:]gpu)(?::([A-Za-z][A-Za-z0-9_.-]*))?[=:]([0-9]{1,6})", re.ASCII)
_MIG = re.compile(r"[0-9]+g\.[0-9]+gb", re.ASCII)
_WARNINGS = ("USR1", "USR2", "HUP", "INT", "TERM")


class Gpus(NamedTuple):
    """A number of GPUs, perhaps of a type."""

    number: int
    model: str | None = None
    """Part of the model's name."""
    mig: str | None = None
    """A MIG profile, in place of a model."""


class EndWarning(NamedTuple):
    """A signal before the end."""

    signal: str
    before_s: int
    batch_only: bool


def read_memory_mib(text: str) -> int:
    """Memory in MiB, rounded up: ``16G``, ``16000M``, ``16000``. Raises ``ValueError``."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is not an amount of memory: write 16G or 16000M")
    return math.ceil(int(found[1]) * _TO_MIB[(found[2] or "M").upper()])


def read_nodes(text: str) -> tuple[int, int | None]:
    """The least number of hosts, and the largest if another one was given: ``2``, ``2-4``. Raises ``ValueError``."""
    found = _NODES.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a number of hosts: write 2 or 2-4")
    least, most = (_thousands(part) if part else None for part in found.groups())
    assert least is not None
    if least == 0 or (most is not None and most < least):
        raise ValueError(f"{text[:40]!r} is not a number of hosts: write 2 or 2-4")
    return least, most if most != least else None


def _thousands(text: str) -> int:
    factor = {"k": 1024, "m": 1024 * 1024}.get(text[-1], 1)
    return int(text.rstrip("km")) * factor


def read_number(text: str, what: str) -> int:
    """A number above 0. Raises ``ValueError``."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) == 0:
        raise ValueError(f"{text[:40]!r} is not {what}: write a number above 0")
    return int(text)


def read_gpus(text: str) -> Gpus:
    """``4``, ``a100:4``, ``1g.10gb:2``. Raises ``ValueError``."""
    found = _GPUS.fullmatch(text.strip())
    if found is None:
        more = "; GPUs of several types are groups (gpu-platform submit --file)" if "," in text else ""
        raise ValueError(f"{text[:60]!r} is not a number of GPUs: write 4 or a100:4{more}")
    return _typed(int(found[2]), found[1])


def read_gres(text: str) -> tuple[Gpus | None, list[str]]:
    """The GPUs of ``gpu:a100:4,nvme:1``, and the resources that are no GPUs. Raises ``ValueError``."""
    gpus: Gpus | None = None
    others: list[str] = []
    if text.strip().upper() == "NONE":
        return None, []
    for part in text.split(","):
        # (S:0-1): which sockets.
        asked, bracket, sockets = part.strip().removeprefix("gres/").removeprefix("gres:").partition("(")
        if bracket and not sockets.endswith(")"):
            raise ValueError(f"{text[:60]!r} has a bracket that is not closed")
        words = asked.replace("=", ":").split(":")
        if words[0] in ("shard", "mps"):
            raise ValueError(f"{words[0]}: shares of GPUs are --share and --share-memory of gpu-platform submit")
        if words[0] != "gpu":
            others.append(words[0])
            continue
        if gpus is not None:
            raise ValueError(f"{text[:60]!r} has GPUs twice: of several types they are groups (submit --file)")
        if len(words) == 2 and _TYPE.fullmatch(words[1]):
            words.append("1")
        gpus = read_gpus(":".join(words[1:]) or "1")
    return gpus, others


def read_tres(text: str) -> dict[str, str]:
    """The options of ``cpu=4,gres/gpu:a100=1`` for each task. Raises ``ValueError``."""
    found: dict[str, str] = {}
    for part in text.split(","):
        match = _TRES.fullmatch(part.strip())
        if match is None or (match[1] == "cpu" and match[2]):
            raise ValueError(f"{part[:40]!r} cannot be asked for by task: write cpu=4 and gres/gpu=1")
        name = "cpus-per-task" if match[1] == "cpu" else "gpus-per-task"
        found[name] = f"{match[2]}:{match[3]}" if match[2] else match[3]
    return found


def read_gpu_bind(text: str) -> int | None:
    """How many GPUs of its own each task sees; 0: all of its host. None: it says something else (``closest``)."""
    kind, _, rest = text.strip().removeprefix("verbose,").partition(":")
    if kind == "none":
        return 0
    if kind == "per_task" and rest.isascii() and rest.isdecimal():
        return int(rest[:6]) or None
    in_order = kind == "map_gpu" and rest.split(",") == [str(place) for place in range(rest.count(",") + 1)]
    return 1 if in_order or (kind, rest) == ("single", "1") else None


def _typed(count: int, name: str | None) -> Gpus:
    if name is None:
        return Gpus(count)
    if _MIG.match(name):
        return Gpus(count, mig=name)
    # Slurm's types have _ where the models have spaces: nvidia_a100_80gb_pcie.
    return Gpus(count, model=name.replace("_", " "))


def read_signal(text: str) -> EndWarning:
    """``USR1@60``, ``B:USR1@60``, ``10``. 60 s before the end, unless it says when. Raises ``ValueError``."""
    flags, _, rest = text.strip().rpartition(":")
    if flags.upper().strip("BR"):
        raise ValueError(f"{text[:40]!r}: the letters before the colon are B and R")
    name, _, seconds = rest.partition("@")
    name = name.upper().removeprefix("SIG")
    if name.isascii() and name.isdecimal():
        try:
            name = signal.Signals(int(name[:3])).name.removeprefix("SIG")
        except ValueError:
            raise ValueError(f"{text[:40]!r}: there is no signal {name[:9]}") from None
    if name not in _WARNINGS:
        raise ValueError(f"{text[:40]!r}: the platform warns with one of {', '.join(_WARNINGS)}")
    if seconds and not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 7):
        raise ValueError(f"{text[:40]!r}: after @ stand the seconds before the end")
    return EndWarning(name, int(seconds) if seconds else 60, "B" in flags.upper())
