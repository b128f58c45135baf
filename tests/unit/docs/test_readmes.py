"""The pages that open a package: what they name exists, they name every module, and something holds each invariant."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "activities",
    "service",
    "workers",
    "workers/scheduler",
    "workflows",
    *(f"gpu_platform/{name}" for name in ["cli", "node", "scheduling", "store", "temporal"]),
)
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
SOURCES = "\n".join(
    path.read_text()
    for folder in ("activities", "gpu_platform", "service", "workers", "workflows")
    for path in (ROOT / folder).rglob("*.py")
)
PATH = re.compile(r"(?<![\w/.:<-])(?:[\w-]+/)*(?:[\w-]+\.(?:py|yaml)|[\w-]+/)(?![\w-])")
"""A file of code, or a folder with a slash behind its name."""
TEST = re.compile(r"(?<![\w/])test_\w+(?!\w|\.py)")


CODE_NAME = re.compile(r"`(_?[a-z]+_[a-z_]+|[A-Z][a-z]+[A-Z]\w+)`")
PAGES = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("explanation/*.md"))
FOREIGN = {"NotReady", "PreemptExemptTime"}
"""Words of Kubernetes and Slurm."""


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Path:
    return ROOT / request.param


@pytest.fixture
def page(package: Path) -> str:
    return (package / "README.md").read_text()


def test_files_and_folders_that_a_page_names_exist(package: Path, page: str) -> None:
    paths = PATH.findall(re.sub(r"\]\([^)]*\)|<\w+>/\S*", "", page))
    assert len(paths) > 10
    below = {str(path.relative_to(folder)) for folder in (package, ROOT / "tests") for path in folder.rglob("*")}
    ends = {path.rsplit("/", 1)[-1] for path in below}
    assert [path for path in paths if not (ROOT / path).exists() and path.rstrip("/") not in below | ends] == []


def test_tests_that_a_page_names_exist(page: str) -> None:
    assert [name for name in TEST.findall(page) if f"def {name}(" not in TESTS] == []


def test_names_of_code_that_a_page_names_exist(page: str) -> None:
    assert [name for name in CODE_NAME.findall(page) if not is_in_code(name)] == []


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_names_and_files_in_explanations_exist(path: Path) -> None:
    page = (ROOT / path).read_text()
    assert [name for name in CODE_NAME.findall(page) if name not in FOREIGN and not is_in_code(name)] == []
    files = re.findall(r"`([\w./-]+\.(?:py|yaml))(?::[\w.]+)?`", page)
    assert [file for file in files if not (ROOT / file).exists() and not (ROOT / "gpu_platform" / file).exists()] == []


@cache
def words_of_code() -> set[str]:
    return set(re.findall(r"\w+", SOURCES)) | set(re.findall(r"\w+", TESTS))


def is_in_code(name: str) -> bool:
    return name in words_of_code()


def test_every_module_and_folder_of_the_package_is_named(package: Path, page: str) -> None:
    modules = [path.stem for path in package.glob("*.py") if path.stem != "__init__"]
    folders = [path.parent.name for path in package.glob("*/__init__.py")]
    assert [name for name in modules if not re.search(rf"\b{name}\b", page)] == []
    assert [name for name in folders if f"{name}/" not in page] == []


def test_something_holds_each_invariant(page: str) -> None:
    """A test, or a tool. An invariant that nothing holds is a hope."""
    after = re.split(r"invariants|what always holds", page, maxsplit=1, flags=re.IGNORECASE)[1]
    section = re.split(r"\n## |\nBegin with", after)[0]
    rows = re.findall(r"^(?:- .*(?:\n  .*)*|\| (?!Always true|Invariant|---).*)$", section, re.MULTILINE)
    rows = [row for row in rows if not row.startswith("|--")]
    assert len(rows) >= 4
    assert [row for row in rows if not re.search(r"test_|tests/|import-linter", row)] == []


def test_a_page_is_one_screen(page: str) -> None:
    assert len(page.splitlines()) <= 70
