"""The page that opens a package names files and tests: each exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "gpu_platform" / "hosts" / "README.md"]
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_what_a_page_names_exists(page: Path) -> None:
    names = re.findall(r"`([\w/.]+)`", page.read_text())
    paths = [name for name in names if re.search(r"\.(py|yaml)$", name)]
    tests = [name for name in names if name.startswith("test_") and name not in paths]
    assert len(paths) > 10
    assert len(tests) > 5
    assert [path for path in paths if not (page.parent / path).exists() and not (ROOT / path).exists()] == []
    assert [test for test in tests if f"def {test}(" not in TESTS] == []
