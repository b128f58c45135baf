"""Writes ``gpu_platform/client/sync*.py`` from ``aio*.py`` there: run ``make client`` after a change.

The asyncio client is the only source. Its words ``async`` and ``await`` are dropped, and a few names are replaced by
their counterparts without asyncio. A test fails when a written file is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "gpu_platform" / "client"
TARGETS = {source: CLIENT / source.name.replace("aio", "sync") for source in sorted(CLIENT.glob("aio*.py"))}
"""Source -> the file that is written from it."""

HEADER = '''"""The client for code without asyncio: every method returns when the service has answered.

This file is generated from ``{source}`` by ``make client``: change that one.
"""
'''

REPLACED = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"^import asyncio\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsync(Client|Schedules|Pipelines|Metrics)\b", r"\1"),
    (r"\bclient\.aio", "client.sync"),
    (r"\baconnect_sse\b", "connect_sse"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\.a(close|read|iter_sse)\b", r".\1"),
]


def sync_source(source: Path) -> str:
    """The text that the file made from ``source`` must have."""
    header = HEADER.format(source=source.name)
    text = re.sub(r'\A""".*?"""\n', lambda _: header, source.read_text(), flags=re.DOTALL)
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    target = TARGETS[source]
    fixed = _ruff(target, ["check", "--fix", "--unsafe-fixes", "--exit-zero", "--quiet", "-"], text)
    return _ruff(target, ["format", "-"], fixed)


def _ruff(target: Path, arguments: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(target)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for one, target in TARGETS.items():
        target.write_text(sync_source(one))
        print(f"wrote {target.relative_to(CLIENT.parents[1])}")
