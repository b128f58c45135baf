"""Man pages: each command has one, and man finds nothing wrong with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform.cli.commands import COMMANDS

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man1")
    subprocess.run([sys.executable, "scripts/gen_man.py", str(made)], cwd=ROOT, check=True, capture_output=True)
    return made


def test_each_command_has_a_page(folder: Path) -> None:
    names = {f"gpu-platform-{name}.1" for name in COMMANDS if name != "inject"} | {"gpu-platform.1"}
    assert {path.name for path in folder.iterdir()} == names
    jobs = (folder / "gpu-platform-jobs.1").read_text()
    assert '.SS "gpu\\-platform jobs list"' in jobs
    assert ".B \\-\\-columns A,B,…" in jobs


def test_the_pages_of_the_tree_are_those_of_the_code(folder: Path) -> None:
    kept = ROOT / "docs" / "man"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        path.name: path.read_text() for path in kept.iterdir()
    }, "make docs writes them"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff formats man pages")
def test_man_shows_every_page_without_a_warning(folder: Path) -> None:
    for page in folder.iterdir():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", str(page)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), page.name
        assert done.stdout.startswith(f"{page.stem.upper()}(1)")
