"""An activity that nobody registers fails only when a workflow asks for it: each one is registered in a process."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROCESSES = "\n".join(path.read_text() for path in (ROOT / "workers").rglob("*.py"))


def test_every_activity_is_registered_in_a_process() -> None:
    activities = {
        function.name: str(path.relative_to(ROOT))
        for path in (ROOT / "activities").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(decorator).startswith("activity.defn") for decorator in function.decorator_list)
    }
    assert len(activities) > 20
    assert {name: file for name, file in activities.items() if not re.search(rf"\.{name}\b", PROCESSES)} == {}
