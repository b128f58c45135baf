"""The page of the architecture lists the shapes of a job, and why each of them exists."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SHAPES = PAGE.read_text().split("## One job, nine shapes")[1].split("\n## ")[0]


def documented_classes() -> dict[str, list[str]]:
    """Name -> the files of the library that define such a class, with a docstring."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "gpu_platform").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and ast.get_docstring(node):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_job_has_nine_shapes_and_every_other_has_a_reason() -> None:
    numbered = re.findall(r"^\| (\d) \| `(\w+)` \| \S", SHAPES, re.MULTILINE)
    assert [int(number) for number, _ in numbered] == list(range(1, 10))
    others = re.findall(r"^\| (`[A-Z][^|]*) \| \S", SHAPES, re.MULTILINE)
    names = [name for _, name in numbered] + re.findall(r"`([A-Z]\w+)`", " ".join(others))
    assert len(names) == len({*names}) > 20
    classes = documented_classes()
    assert {name: classes[name] for name in names if len(classes[name]) != 1} == {}, "each is one class"
