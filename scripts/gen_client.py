"""Writes ``gpu_platform/client/sync.py`` from ``gpu_platform/client/aio.py``: run ``make client`` after a change there.

The asyncio client is the only source. Its words ``async`` and ``await`` are dropped, and a few names are replaced by
their counterparts without asyncio. A test fails when the written file is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "gpu_platform" / "client"
SOURCE, TARGET = CLIENT / "aio.py", CLIENT / "sync.py"

HEADER = '''"""The client for code without asyncio: every method returns when the service has answered.

This file is generated from ``aio.py`` by ``make client``: change that one.
"""
'''

REPLACED = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"^import asyncio\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncClient\b", "Client"),
    (r"\baconnect_sse\b", "connect_sse"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\.a(close|read|iter_sse)\b", r".\1"),
]


def sync_source() -> str:
    """The text that ``sync.py`` must have."""
    text = re.sub(r'\A""".*?"""\n', lambda _: HEADER, SOURCE.read_text(), flags=re.DOTALL)
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return _ruff(["format", "-"], _ruff(["check", "--fix", "--unsafe-fixes", "--exit-zero", "--quiet", "-"], text))


def _ruff(arguments: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    TARGET.write_text(sync_source())
    print(f"wrote {TARGET.relative_to(CLIENT.parents[1])}")
