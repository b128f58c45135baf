"""The page that answers a newcomer's questions names files and names that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "where-is-what.md").read_text()


def defined(path: Path) -> set[str]:
    """Classes, functions, ``Class.method`` and variables of a module."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                functions = [one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                found |= {name, *(f"{name}.{function}" for function in functions)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case _:
                pass
    return found


def test_every_answer_exists() -> None:
    answers = re.findall(r"`([\w/]+\.(?:py|yaml))(?::([\w.]+))?`", PAGE)
    assert len(answers) > 25
    missing = [
        f"{path}:{name}"
        for path, name in answers
        if not (ROOT / path).exists() or (name and name not in defined(ROOT / path))
    ]
    assert missing == []


def test_there_are_few_questions_and_each_begins_at_one_place() -> None:
    for part in PAGE.split("\n## "):
        rows = [line for line in part.splitlines() if line.startswith("| ") and "?" in line]
        assert 12 <= len(rows) <= 16
        assert all("`" in row.split("|")[2] for row in rows)
