"""Writes the package ``gpu_platform/client/sync`` from ``aio`` there: run ``make client`` after a change.

The asyncio client is the only source. Its words ``async`` and ``await`` are dropped, and a few names are replaced by
their counterparts without asyncio. A test fails when a written file is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "gpu_platform" / "client"
TARGETS = {source: CLIENT / "sync" / source.name for source in sorted((CLIENT / "aio").glob("*.py"))}
"""Source -> the file that is written from it."""

HEADER = '''# Generated from aio/{source} (make client): do not edit, change that one.
"""{subject}"""
'''

REPLACED = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait asyncio\.to_thread\(([\w.]+)(?:, )?", r"\1("),
    (r"\bawait ", ""),
    (r"^import (asyncio|grpc\.aio)\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\bclient\.aio", "client.sync"),
    (r"\b(\w+)_async\b", r"\1_sync"),
    (r"\bgrpc\.aio\b", "grpc"),
    (r"\baclos(e|ing)\b", r"clos\1"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
]


def sync_source(source: Path) -> str:
    """The text that the file made from ``source`` must have."""
    text = source.read_text()
    described = re.match(r'"""(.*?[.])\s.*?"""\n', text, flags=re.DOTALL)
    if described is None:
        raise ValueError(f"{source} begins with no sentence in a docstring that says what it is")
    subject = described[1].replace("for asyncio", "for code without asyncio")
    text = HEADER.format(subject=subject, source=source.name) + text[described.end() :]
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    target = TARGETS[source]
    fixed = _ruff(target, ["check", "--fix", "--unsafe-fixes", "--exit-zero", "--quiet", "-"], text)
    return _ruff(target, ["format", "-"], fixed)


def _ruff(target: Path, arguments: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(target)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    (CLIENT / "sync").mkdir(exist_ok=True)
    for one, target in TARGETS.items():
        target.write_text(sync_source(one))
        print(f"wrote {target.relative_to(CLIENT.parents[1])}")
