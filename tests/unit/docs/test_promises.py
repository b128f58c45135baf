"""The register of promises: its places exist, and none of them calls in an event loop what may never return."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "promises.md"
PLACE = re.compile(r"`((?:gpu_platform|workers|service|activities)/[\w/]+\.py):(\w+)(?:\.(\w+))?`")
METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "stat", "lstat", "unlink",
    "mkdir", "rmdir", "glob", "rglob", "iterdir", "touch", "rename", "samefile",
}  # fmt: skip
OF_MODULES = {
    "os": {"open", "read", "write", "fsync", "fdatasync", "stat", "listdir", "scandir", "rename", "replace", "unlink",
           "remove", "mkdir", "makedirs", "link", "truncate", "system", "popen", "wait", "waitpid"},
    "time": {"sleep"},
    "socket": {"getaddrinfo", "gethostbyname", "create_connection"},
    "fcntl": {"flock", "lockf"},
    "records": {"read_record", "write_record", "write_first_record", "write_new", "is_locked", "take_lock"},
    "limits": {"note_overdue", "overdue", "change_limit", "in_force"},
}  # fmt: skip
WHOLE_MODULES = {"subprocess", "shutil", "requests"}
ALLOWED = {
    ("gpu_platform/node/node_worker.py", "_watch"): "it runs in the loop of the records",
    ("gpu_platform/node/node_worker.py", "_stop"): "it runs in the loop of the records",
    ("workers/node/main.py", "main"): "before the process keeps a promise",
}


def places() -> list[tuple[str, str, str | None]]:
    return [(file, name, member or None) for file, name, member in PLACE.findall(PAGE.read_text())]


def test_each_place_exists() -> None:
    assert len(places()) > 20
    for file, name, member in places():
        found = [node for node in ast.parse((ROOT / file).read_text()).body if getattr(node, "name", None) == name]
        assert found, f"{file} has no {name}"
        if member is not None:
            assert member in {getattr(node, "name", None) for node in ast.walk(found[0])}, f"{file}: {name}.{member}"


@pytest.mark.parametrize("file", sorted({file for file, _, _ in places()}))
def test_no_event_loop_of_a_promise_calls_what_may_never_return(file: str) -> None:
    found = [
        f"{file}:{line} {function} calls {call}"
        for function, line, call in blocking_calls(ast.parse((ROOT / file).read_text()))
        if (file, function) not in ALLOWED
    ]
    assert not found, "give it to a Lane, or to the loop of the records: see docs/explanation/promises.md"


def test_the_check_finds_what_it_looks_for() -> None:
    code = """
class A:
    async def run(self):
        self.step()
        await lane.run(lambda: path.read_text())
        await to_thread(self.other)
    def step(self):
        time.sleep(1)
        helper()
    def other(self):
        open("x")
def helper():
    return Path("x").exists()
async def more():
    subprocess.run(["x"])
    records.read_record("x")
    def in_a_thread():
        path.unlink()
    await lane.run(in_a_thread)
"""
    calls = {(function, call) for function, _, call in blocking_calls(ast.parse(code))}
    assert calls == {
        ("step", "time.sleep"),
        ("helper", "exists"),
        ("more", "subprocess.run"),
        ("more", "records.read_record"),
    }


def blocking_calls(module: ast.Module) -> Iterator[tuple[str, int, str]]:
    """(function, line, call) for what async functions call, and the functions of this file that these call."""
    functions = {
        node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    waiting = [name for name, node in functions.items() if isinstance(node, ast.AsyncFunctionDef)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for call in _calls(functions[name]):
            callee = _named(call)
            if (blocking := _blocks(call)) is not None:
                yield name, call.lineno, blocking
            elif callee in functions and isinstance(functions[callee], ast.FunctionDef):
                waiting.append(callee)


def _calls(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Its calls, without those in functions that it only defines: these run elsewhere."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _named(call: ast.Call) -> str | None:
    """The function of this file that is called: ``f()`` or ``self.f()``."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            return name
    return None


def _blocks(call: ast.Call) -> str | None:
    match call.func:
        case ast.Name(id="open"):
            return "open"
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in OF_MODULES.get(module, ()):
            return f"{module}.{name}"
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in WHOLE_MODULES:
            return f"{module}.{name}"
        case ast.Attribute(attr=name) if name in METHODS:
            return name
    return None


def test_no_worker_lets_the_sdk_read_all_modules_in_the_event_loop() -> None:
    """``load_default_build_id`` does, unless a worker says which build it is."""
    for path in (ROOT / "workers").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Worker":
                assert "build_id" in {keyword.arg for keyword in call.keywords}, f"{path}:{call.lineno}"
