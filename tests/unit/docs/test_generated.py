"""Generated files say so, for readers and for reviews, and one command writes them.

That they are what would be written now is tested beside what they describe: the man pages, the reference, the client
without asyncio, the stubs of gRPC, Grafana's dashboards and Prometheus' rules.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATTERNS = re.findall(r"^(\S+) linguist-generated$", (ROOT / ".gitattributes").read_text(), re.MULTILINE)
GENERATED = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
WITHOUT_A_WORD = {".json", ".binpb", ".lock"}
"""Formats that know no comments, and lock files, which begin with what their tool writes."""


def says_so(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return any("do not edit" in line.lower() for line in islice(file, 5))


def test_generated_files_say_so_in_their_first_lines() -> None:
    assert [path for path in GENERATED if path.suffix not in WITHOUT_A_WORD and not says_so(path)] == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_names_files(pattern: str) -> None:
    assert list(ROOT.glob(pattern))


def test_files_that_say_so_are_marked_for_reviews() -> None:
    found = [path for folder in ("deploy", "docs", "gpu_platform", "proto") for path in (ROOT / folder).rglob("*.*")]
    assert {path for path in found if path.is_file() and "__pycache__" not in path.parts and says_so(path)} <= GENERATED


def test_one_command_runs_every_generator() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.findall(r"^([a-z]+):([^#\n]*)##[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE)
    recipes = {name: recipe for name, _, recipe in found}
    (needed,) = (needs.split() for name, needs, _ in found if name == "generated")
    runs = "".join(recipes[name] for name in ["generated", *needed])
    for script in (ROOT / "scripts").glob("gen_*.py"):
        assert re.search(rf"\b{script.stem}\b", runs), script.name
