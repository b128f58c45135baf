"""Every file that says with which Python the project runs says the same: pyproject.toml decides."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLUSTER: dict[str, Any] = tomllib.loads((ROOT / "deploy" / "cluster" / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def allowed() -> list[str]:
    """Each minor version that ``requires-python`` allows: ``3.11``, …"""
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["project"]["requires-python"])
    assert bounds
    return [f"3.{minor}" for minor in range(int(bounds[1]), int(bounds[2]))]


def test_each_version_is_classified_and_the_checks_are_for_the_oldest() -> None:
    label = "Programming Language :: Python :: "
    classifiers = PROJECT["project"]["classifiers"]
    assert [one.removeprefix(label) for one in classifiers if one.startswith(label)] == allowed()
    assert PROJECT["tool"]["basedpyright"]["pythonVersion"] == allowed()[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{allowed()[0].replace('.', '')}"
    assert CLUSTER["project"]["requires-python"] == PROJECT["project"]["requires-python"]


def test_conda_gets_the_same_python_and_the_lock_file() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(one["pip"] for one in environment["dependencies"] if isinstance(one, dict))
    conda = [one for one in environment["dependencies"] if isinstance(one, str)]
    assert conda == [f"python{PROJECT['project']['requires-python']}", "pip"]
    assert pip == ["--require-hashes", "-r requirements/runtime.lock"]


def test_the_workflow_calls_the_make_targets_with_each_version() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == allowed()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make check", "make dashboard-types", "make test", "make test-long"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.split()[1] for command in commands} <= set(targets)
    assert job["env"]["PYTHON"] == "python${{ matrix.python }}"


def test_the_images_python_is_one_of_them() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    images = re.findall(r"^ARG PYTHON_IMAGE=python:(\d+\.\d+)", text, re.MULTILINE)
    assert images
    assert set(images) <= set(allowed())


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_a_newcomer_reads_every_version(page: str) -> None:
    found = re.search(r"make and Python ([\d.]+(?:, [\d.]+)* or [\d.]+)", (ROOT / page).read_text())
    assert found
    assert re.findall(r"3\.\d+", found[1]) == allowed()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_is_for_every_version_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert re.search(r"^(-i|--\w*index\w*|--find-links)|https?://", text, re.MULTILINE) is None
    entries = re.findall(r"^([a-z0-9._-]+(?:\[[^]]*\])?)==\S+((?: ;[^\\\n]*)?) \\\n    --hash=", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)), "each has a version and hashes"
    unmarked = {name for name, marker in entries if "python" not in marker}
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *extras["cluster"], *extras["grpc"]]
    wanted = {re.match(r"[\w-]+", one)[0] for one in asked} - {"gpu-platform"}  # type: ignore[index]
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} <= {name.partition("[")[0] for name in unmarked}


class Pythons:
    """Commands on PATH that say that they are a certain Python, and do nothing else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    def add(self, name: str, version: str) -> Path:
        path = self._directory / name
        path.write_text(f"#!/bin/sh\necho {version}\n")
        path.chmod(0o755)
        return path

    def chosen(self, python: str = "") -> str | None:
        """What scripts/setup would make its environment with."""
        text = (ROOT / "scripts" / "setup").read_text()
        functions = re.findall(r"^(?:version_of\(\) \{.*\}|find_python\(\) \{\n(?:.*\n)*?\})$", text, re.MULTILINE)
        assert len(functions) == 2
        script = "\n".join(["set -euo pipefail", *functions, "find_python"]).replace("/usr/bin/", "/nonexistent/")
        environ = {"PATH": f"{self._directory}:/bin", "PYTHON": python}
        done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None


def test_setup_prefers_the_oldest_python_and_takes_what_it_is_told(tmp_path: Path) -> None:
    pythons = Pythons(tmp_path / "bin")
    for version in allowed():
        pythons.add(f"python{version}", version)
    pythons.add("python3", "3.12")
    old, new = pythons.add("old", "3.10"), pythons.add("a new one", allowed()[-1])
    assert pythons.chosen() == f"python{allowed()[0]}"
    assert pythons.chosen(str(new)) == str(new)
    assert pythons.chosen(str(old)) is None, "it does not silently take another one"
    assert pythons.chosen("missing") is None


@pytest.mark.parametrize(("version", "usable"), [("3.10", False), ("3.11", True), ("3.13", True), ("3.14", False)])
def test_setup_takes_a_python3_that_is_allowed(tmp_path: Path, version: str, usable: bool) -> None:
    pythons = Pythons(tmp_path / "bin")
    for name in ("python3", "python3.11", "python3.12", "python3.13"):  # hides those of this machine
        pythons.add(name, version)
    assert (pythons.chosen() is not None) is usable
    assert (version in allowed()) is usable


def test_make_hands_the_chosen_python_to_setup() -> None:
    """A variable of the Makefile with the same name would replace the user's."""
    assert re.search(r"^PYTHON\s*[:?+]?=", (ROOT / "Makefile").read_text(), re.MULTILINE) is None


def test_this_python_is_allowed() -> None:
    assert f"3.{sys.version_info.minor}" in allowed()
