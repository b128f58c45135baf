"""``srun`` and ``scontrol show hostnames`` inside a script; the other commands are those of the command line.

Started as ``python -I commands.py NAME WORDS…`` by the files in ``bin``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # it runs isolated (-I), so it finds its own package by the place of this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main(name: str, words: list[str]) -> int:
    """Run one of Slurm's commands. Returns its exit code."""
    if name == "srun":
        from gpu_platform.steps import srun

        return srun.main(words, os.environ)
    if name == "scontrol" and words[:2] in (["show", "hostnames"], ["show", "hostname"], ["show", "hostlist"]):
        return _hostnames(words)
    from importlib import import_module

    # The name is not written as an import: the library does not depend on the command line.
    return int(import_module("gpu_platform.cli.slurm.entry").run(name, words))


def _hostnames(words: list[str]) -> int:
    from gpu_platform.slurm.hostlists import compress, expand

    text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = expand(text)
    except ValueError as error:
        sys.stderr.write(f"scontrol: error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{name}\n" for name in names) if words[1] != "hostlist" else f"{compress(names)}\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1] != "srun":  # it has tasks to end
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `squeue | head` ends quietly
    sys.exit(main(sys.argv[1], sys.argv[2:]))
