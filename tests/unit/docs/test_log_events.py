"""Names and keys of log lines: one name for a thing, one key for what a line is about."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.unit.docs.test_reference import ROOT, script

CALLS = script("log_events").log_calls()
NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
OTHER_KEYS = {
    "job_id": "job",
    "array_id": "array",
    "pipeline_id": "pipeline",
    "schedule_id": "schedule",
    "workflow_id": "workflow",
    "host_name": "host",
    "node": "host",
    "gpu_uuid": "gpu",
    "uuid": "gpu",
    "device": "gpu",
    "advice": "hint",
    "note": "hint",
}
"""Keys that are not used, and what the same is called."""


def test_every_event_has_a_name_of_one_style() -> None:
    assert CALLS
    wrong = [f"{call.module}:{call.line}: {call.event}" for call in CALLS if not NAME.fullmatch(call.event or "")]
    assert not wrong, "the first argument is a literal `thing.what_happened`"


def test_an_event_has_one_meaning() -> None:
    """One level; and if it is written at several places, they are files of one folder."""
    levels: dict[str, set[str]] = defaultdict(set)
    folders: dict[str, set[Path]] = defaultdict(set)
    for call in CALLS:
        levels[call.event].add(call.level)
        folders[call.event].add(Path(call.module).parent)
    assert {event: found for event, found in levels.items() if len(found) > 1} == {}
    assert {event: found for event, found in folders.items() if len(found) > 1} == {}


def test_what_a_line_is_about_has_one_key() -> None:
    wrong = [
        f"{call.module}:{call.line}: {key} is called {OTHER_KEYS[key]}"
        for call in CALLS
        for key in call.keys
        if key in OTHER_KEYS
    ]
    assert not wrong


def test_a_line_of_a_host_about_a_job_names_the_attempt() -> None:
    """A host knows jobs only by their attempts."""
    on_hosts = [call for call in CALLS if call.module.startswith(("gpu_platform/node/", "workers/node/"))]
    assert [call for call in on_hosts if "job" in call.keys]
    assert [
        f"{call.module}:{call.line}" for call in on_hosts if "job" in call.keys and "attempt" not in call.keys
    ] == []


def test_every_line_says_what_it_means() -> None:
    """By the comment above it, or by the docstring of the code that it is in."""
    assert [f"{call.module}:{call.line}" for call in CALLS if not call.meaning] == []


def test_bound_keys_are_the_same() -> None:
    found = set[str]()
    for package in ("activities", "service", "workers"):
        for path in (ROOT / package).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "bound":
                    found |= {keyword.arg for keyword in call.keywords if keyword.arg}
    assert found
    assert not found & OTHER_KEYS.keys()
