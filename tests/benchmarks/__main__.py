"""Runs every benchmark but the longest, one process after the other.

Names choose some: ``python -m tests.benchmarks store hosts``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONG = ("fleet",)
"""Not run unless named: ``make bench-fleet``."""


def main(chosen: list[str]) -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := set(chosen) - set(names):
        print(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    failed = False
    for name in chosen or [name for name in names if name not in LONG]:
        print(f"\n== {name}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"tests.benchmarks.bench_{name}"], check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
