"""What is built from the tree: an sdist with everything that git holds, and from it a wheel with the five packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
PACKAGES = {"activities", "gpu_platform", "service", "workers", "workflows"}
BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}({to!r}))"
MADE_BY_SETUPTOOLS = re.compile(r"^(PKG-INFO|setup\.cfg|gpu_platform\.egg-info(/.*)?)$")


def tracked() -> list[str]:
    """The files of the tree: those that git knows. In an unpacked sdist there is no git, and all count."""
    asked = ["git", "ls-files"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode == 0 and (ROOT / ".git").exists():
        return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]
    ignored = re.compile(r"(^|/)(__pycache__|\.venv|\.\w+_cache|\.hypothesis|[\w.]+\.egg-info|build|dist)(/|$)")
    names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return [name for name in names if not ignored.search(name) and not MADE_BY_SETUPTOOLS.match(name)]


def build(kind: str, tree: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-c", BUILD.format(kind=kind, to=str(to))]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return to / done.stdout.splitlines()[-1]


class Built:
    """Both files, built as pip builds them: the wheel from the unpacked sdist."""

    def __init__(self, directory: Path) -> None:
        tree = directory / "tree"
        for name in tracked():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        with tarfile.open(build("sdist", tree, directory / "dist")) as archive:
            archive.extractall(directory / "unpacked", filter="data")
        (self.unpacked,) = (directory / "unpacked").iterdir()
        self.in_sdist = {str(path.relative_to(self.unpacked)) for path in self.unpacked.rglob("*") if path.is_file()}
        with zipfile.ZipFile(build("wheel", self.unpacked, directory / "dist")) as archive:
            self.in_wheel = set(archive.namelist())
            self.metadata = archive.read(next(name for name in self.in_wheel if name.endswith("/METADATA"))).decode()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("distribution"))


@pytest.mark.long
def test_the_sdist_holds_what_git_holds(built: Built) -> None:
    assert {name for name in built.in_sdist if not MADE_BY_SETUPTOOLS.match(name)} == set(tracked())
    for needed in ("tests/conftest.py", "docs/tutorial.md", "requirements/dev.lock", "scripts/setup", "Makefile"):
        assert needed in built.in_sdist


def test_scripts_in_the_sdist_can_be_run(built: Built) -> None:
    for name in ("scripts/setup", ".ci/run"):
        assert (built.unpacked / name).stat().st_mode & 0o100, name


def test_the_wheel_holds_the_five_packages_and_no_tests(built: Built) -> None:
    tops = {name.split("/")[0] for name in built.in_wheel}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == PACKAGES
    packages = tuple(f"{package}/" for package in PACKAGES)
    modules = {name for name in tracked() if name.startswith(packages) and name.endswith(".py")}
    assert modules == {name for name in built.in_wheel if name.endswith(".py")}
    data = {name for name in tracked() if name.startswith(packages) and name.endswith((".yaml", ".mako", ".pyi"))}
    assert data <= built.in_wheel, "machine types, policies, what makes migrations, and types of messages"
    assert {name for name in tracked() if name.startswith("service/dashboard/")} <= built.in_wheel


def test_the_wheel_brings_the_man_pages(built: Built) -> None:
    pages = {name.split(".data/data/")[1] for name in built.in_wheel if ".data/data/" in name}
    assert pages == {f"share/man/man1/{Path(name).name}" for name in tracked() if name.startswith("docs/man/")}
    assert {"share/man/man1/gpu-platform.1", "share/man/man1/gpu-platform-submit.1"} <= pages


def test_what_is_built_says_its_license_and_its_pythons(built: Built) -> None:
    assert "\nLicense-Expression: MIT AND Apache-2.0\n" in built.metadata, "htm, in the dashboard, is under the latter"
    assert "\nRequires-Python: <3.14,>=3.11\n" in built.metadata
    assert (built.unpacked / "LICENSE").read_text().startswith("MIT License\n")
    told = {name.partition(".dist-info/licenses/")[2] for name in built.in_wheel} - {""}
    vendored = {name for name in tracked() if name.startswith("service/dashboard/vendor/") and "LICENSE" in name}
    assert {"LICENSE", "service/dashboard/vendor/htm/LICENSE"} <= told
    assert told == {"LICENSE"} | vendored
    for page in ("README.md", "deploy/Dockerfile"):
        assert "Apache-2.0" not in (ROOT / page).read_text()
