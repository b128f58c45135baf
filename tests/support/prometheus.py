"""The programs of Prometheus and Alertmanager, where this machine has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def tool(name: str) -> str | None:
    """The path of one of the programs: beside Python, where scripts/setup puts them in CI, or on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which(name, path=path)


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where the program is missing, but not in CI."""
    is_missing = tool(name) is None and not os.environ.get("CI")
    return pytest.mark.skipif(is_missing, reason=f"there is no {name} here: apt-get install {PACKAGES[name]}")


def run(name: str, *arguments: str, text: str | None = None) -> str:
    """Run one of the programs, and return what it prints. It must succeed."""
    found = tool(name)
    assert found is not None, f"CI needs {name}"
    done = subprocess.run([found, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
