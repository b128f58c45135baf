"""Every call that writes a log line, found in the code: for docs/reference/logs.md and the test of the names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("activities", "gpu_platform", "service", "workers", "workflows")
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
LOGGERS = ("log", "workflow.logger", "activity.logger")

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True)
class LogCall:
    """One call of a logger."""

    event: str | None
    """None: it is not a literal."""
    level: str
    keys: tuple[str, ...]
    """Without those of the line that every line has, and without what ``**`` adds."""
    module: str
    """Path from the root of the repository."""
    line: int
    where: str
    """The class and the function that it is in."""
    meaning: str
    """The comment above the call, else the first sentence of the docstring of what it is in."""


def log_calls(root: Path = ROOT) -> list[LogCall]:
    """All calls, by event."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    calls = [call for path in files for call in _calls_of(path, str(path.relative_to(root)))]
    return sorted(calls, key=lambda call: (call.event or "", call.module, call.line))


def _calls_of(path: Path, module: str) -> Iterator[LogCall]:
    source = path.read_text()
    lines = source.splitlines()
    for call, scopes in _with_scopes(ast.parse(source), ()):
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
            continue
        if ast.unparse(function.value) not in LOGGERS:
            continue
        first = call.args[0] if call.args else None
        yield LogCall(
            event=_text(first),
            level=LEVELS[function.attr],
            keys=tuple(_keys(call)),
            module=module,
            line=call.lineno,
            where=".".join(scope.name for scope in scopes if not isinstance(scope, ast.Module)),
            meaning=_comment_above(lines, call.lineno) or _sentence_of(scopes),
        )


def _with_scopes(node: ast.AST, scopes: tuple[_Scope, ...]) -> Iterator[tuple[ast.Call, tuple[_Scope, ...]]]:
    if isinstance(node, _Scope):
        scopes = (*scopes, node)
    if isinstance(node, ast.Call):
        yield node, scopes
    for child in ast.iter_child_nodes(node):
        yield from _with_scopes(child, scopes)


def _keys(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            yield from (name for key in keyword.value.keys if (name := _text(key)) is not None)
        elif keyword.arg not in (None, "exc_info"):
            yield keyword.arg


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _comment_above(lines: Sequence[str], number: int) -> str:
    """The comment lines right above a line, which is counted from 1."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("# "):
            break
        found.append(line.strip().removeprefix("# "))
    return " ".join(reversed(found))


def _sentence_of(scopes: Sequence[_Scope]) -> str:
    """What the innermost function or class with a docstring says first."""
    for scope in reversed(scopes):
        if text := ast.get_docstring(scope):
            paragraph = " ".join(text.split("\n\n")[0].split())
            return paragraph.split(". ")[0].rstrip(".") + "."
    return ""
