"""What is built from the tree: an sdist with everything that git holds, and from it two wheels.

The wheel of ``gpu-platform`` is what users install: one package. ``gpu-platform-cluster`` adds the four others.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
OF_THE_CLUSTER = {"activities", "service", "workers", "workflows"}
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


class Wheel:
    """What is in a wheel."""

    def __init__(self, file: Path) -> None:
        with zipfile.ZipFile(file) as archive:
            self.names = set(archive.namelist())
            self.size = sum(one.file_size for one in archive.infolist())
            self.metadata = archive.read(next(name for name in self.names if name.endswith("/METADATA"))).decode()
        tops = {name.split("/")[0] for name in self.names}
        self.packages = {top for top in tops if not top.endswith((".dist-info", ".data"))}
        self.modules = {name for name in self.names if name.endswith(".py")}
        self.licenses = {name.partition(".dist-info/licenses/")[2] for name in self.names} - {""}


class Built:
    """All files, built as pip builds them: the wheels from the unpacked sdist."""

    def __init__(self, directory: Path) -> None:
        tree = directory / "tree"
        for name in tracked():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        with tarfile.open(build("sdist", tree, directory / "dist")) as archive:
            archive.extractall(directory / "unpacked", filter="data")
        (self.unpacked,) = (directory / "unpacked").iterdir()
        self.in_sdist = {str(path.relative_to(self.unpacked)) for path in self.unpacked.rglob("*") if path.is_file()}
        self.client = Wheel(build("wheel", self.unpacked, directory / "dist"))
        self.cluster = Wheel(build("wheel", self.unpacked / "deploy" / "cluster", directory / "dist"))


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


def of(packages: set[str], *ends: str) -> set[str]:
    """The files of the tree in these packages whose names end so."""
    return {name for name in tracked() if name.split("/")[0] in packages and name.endswith(ends)}


def test_what_users_install_holds_one_package_and_no_tests(built: Built) -> None:
    assert built.client.packages == {"gpu_platform"}
    assert built.client.modules == of({"gpu_platform"}, ".py")
    data = of({"gpu_platform"}, ".yaml", ".mako", ".pyi")
    assert data <= built.client.names, "machine types, policies, what makes migrations, and types of messages"
    assert built.client.size < 8e6


def test_the_wheel_of_the_cluster_holds_the_four_other_packages(built: Built) -> None:
    assert built.cluster.packages == OF_THE_CLUSTER
    assert built.cluster.modules == of(OF_THE_CLUSTER, ".py")
    assert of(OF_THE_CLUSTER, ".yaml", ".mako", ".pyi") <= built.cluster.names
    assert {name for name in tracked() if name.startswith("service/dashboard/")} <= built.cluster.names


def test_the_wheel_brings_the_man_pages(built: Built) -> None:
    pages = {name.split(".data/data/")[1] for name in built.client.names if ".data/data/" in name}
    assert pages == {f"share/man/man1/{Path(name).name}" for name in tracked() if name.startswith("docs/man/")}
    assert {"share/man/man1/gpu-platform.1", "share/man/man1/gpu-platform-submit.1"} <= pages


def test_what_is_built_says_its_license_and_its_pythons(built: Built) -> None:
    assert "\nLicense-Expression: MIT\n" in built.client.metadata
    both = "\nLicense-Expression: MIT AND Apache-2.0\n"
    assert both in built.cluster.metadata, "htm, in the dashboard, is under the latter"
    for wheel in (built.client, built.cluster):
        assert "\nRequires-Python: <3.14,>=3.11\n" in wheel.metadata
        assert wheel.licenses == {"LICENSE"}
    for place in (built.unpacked, built.unpacked / "deploy" / "cluster"):
        assert (place / "LICENSE").read_text().startswith("MIT License\n")
        assert (place / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    vendored = {name for name in tracked() if name.startswith("service/dashboard/vendor/") and "LICENSE" in name}
    assert "service/dashboard/vendor/htm/LICENSE" in vendored
    assert vendored <= built.cluster.names, "each lies beside its library"
    for page in ("README.md", "deploy/Dockerfile"):
        assert "Apache-2.0" not in (ROOT / page).read_text()


def test_both_have_one_version_and_the_cluster_needs_its_own_client() -> None:
    client, cluster = (project(path) for path in (ROOT, ROOT / "deploy" / "cluster"))
    assert cluster["version"] == client["version"]
    assert cluster["dependencies"] == [f"gpu-platform[cluster]=={client['version']}"]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]
