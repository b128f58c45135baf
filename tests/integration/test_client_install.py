"""What ``pip install gpu-platform`` does to an environment, with each Python of this machine: very little.

It needs a package index, the one that pip is configured for. ``tests/unit/cli/test_imports.py`` checks without an index
that the client runs without other packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel({to!r}))"
MOST_BYTES = 30_000_000
"""Of all files that pip installs, without the compiled modules that it writes beside them."""
NOT_OURS = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack")
"""What some Pythons put into each new environment."""
HEAVY = ("numpy", "google.protobuf", "grpc", "temporalio", "sqlalchemy", "ortools", "fastapi", "prometheus_client")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def python_of(minor: int) -> str | None:
    """A Python 3.MINOR that can make environments, on PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [sys.executable, shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"3.{minor}.*/bin/python"))]
    code = f"import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    for candidate in candidates:
        if candidate and subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


class Environment:
    """A new virtual environment."""

    def __init__(self, python: str, directory: Path) -> None:
        self.directory = directory
        subprocess.run([python, "-m", "venv", directory], check=True)

    def run(self, program: str, *arguments: str | Path) -> str:
        """The output of one of its programs. Fails with what it said, if it fails."""
        command = [self.directory / "bin" / program, *arguments]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPU_PLATFORM"))}
        done = subprocess.run(command, cwd=self.directory, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{program} {arguments}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, *what: str | Path) -> None:
        self.run("pip", "--disable-pip-version-check", "--quiet", "install", *what)

    def size(self) -> int:
        """The bytes of its packages, without pip's own and without compiled modules."""
        (site,) = self.directory.glob("lib/python3.*/site-packages")
        packages = [one for one in site.iterdir() if not one.name.startswith(NOT_OURS)]
        files = [file for one in packages for file in ([one] if one.is_file() else one.rglob("*"))]
        return sum(file.stat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel. Skips if no index gives the others."""
    directory = tmp_path_factory.mktemp("wheel")
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory / "probe", "mdurl"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("pip reaches no package index here")
    tree = directory / "tree"
    shutil.copytree(ROOT / "gpu_platform", tree / "gpu_platform", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "man", tree / "docs" / "man")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-W", "ignore", "-c", BUILD.format(to=str(directory))]
    built = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return directory / built.stdout.splitlines()[-1]


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_a_client_is_small_and_alone(wheel: Path, minor: int, tmp_path: Path) -> None:
    python = python_of(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} here")
    env = Environment(python, tmp_path / "env")
    env.install(wheel)
    assert env.size() < MOST_BYTES
    ask = "import importlib.metadata as m, json; print(json.dumps([str(f) for f in m.files('gpu-platform')]))"
    files: list[str] = json.loads(env.run("python", "-c", ask))
    assert {file.split("/")[0].partition("-")[0] for file in files} == {"..", "gpu_platform"}, "one package"
    missing = f"from importlib.util import find_spec as f; print([n for n in {HEAVY} if f(n.split('.')[0])])"
    assert env.run("python", "-c", missing).strip() == "[]"
    assert env.run("gpu-platform", "--version") == "gpu-platform 0.1.0\n"
    assert "submit" in env.run("gpu-platform", "--help")
    env.run("python", "-c", "from gpu_platform import job; from gpu_platform.client import AsyncClient, Client")
    env.run("pip", "check")


def test_it_lives_beside_the_pins_of_tensorflow_2_15(wheel: Path, tmp_path: Path) -> None:
    """That release needs Python 3.11 at most, and old versions of two packages that the cluster needs in new ones."""
    python = python_of(11)
    if python is None:
        pytest.skip("there is no Python 3.11 here")
    env = Environment(python, tmp_path / "env")
    env.install("protobuf<5", "numpy<2")
    before = env.run("pip", "freeze")
    env.install(f"{wheel}[executor]")
    kept = set(env.run("pip", "freeze").splitlines())
    assert set(before.splitlines()) <= kept
    env.run("pip", "check")
    env.run("python", "-c", "import numpy, google.protobuf; from gpu_platform import Executor, job")
