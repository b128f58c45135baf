"""Writes ``service/dashboard/vendor``: the libraries of the dashboard, as their npm packages have them.

``make dashboard-vendor`` runs it; it needs npm, and nothing else does. To renew a library, change its version here.
A test compares each file with the manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "service" / "dashboard" / "vendor"
PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "preact": ("11.2.0", {"dist/preact.mjs": "preact/preact.mjs", "hooks/dist/hooks.mjs": "preact/hooks.mjs"}),
    "htm": ("3.1.1", {"dist/htm.mjs": "htm/htm.mjs", "preact/index.mjs": "htm/preact.mjs"}),
    "@preact/signals-core": ("1.14.5", {"dist/signals-core.mjs": "signals-core/signals-core.mjs"}),
    "@preact/signals": ("2.11.4", {"dist/signals.mjs": "signals/signals.mjs"}),
    "uplot": (
        "1.6.32",
        {"dist/uPlot.iife.min.js": "uplot/uPlot.iife.min.js", "dist/uPlot.min.css": "uplot/uPlot.min.css"},
    ),
}
"""Package -> its version, and its files -> where they are kept. Each keeps its licence as ``LICENSE``."""


def main() -> None:
    """Fetch every package, and write its files and the manifest."""
    shutil.rmtree(VENDOR, ignore_errors=True)
    manifest = [_copied(package, version, files) for package, (version, files) in PACKAGES.items()]
    (VENDOR / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _copied(package: str, version: str, files: dict[str, str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory)
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{package}@{version}"], cwd=there, check=True, capture_output=True, text=True
        )
        with tarfile.open(there / packed.stdout.split()[-1]) as archive:
            archive.extractall(there, filter="data")
        licence = json.loads((there / "package" / "package.json").read_text())["license"]
        folder = next(iter(files.values())).split("/")[0]
        hashes: dict[str, str] = {}
        for source, target in {**files, "LICENSE": f"{folder}/LICENSE"}.items():
            content = (there / "package" / source).read_bytes()
            (VENDOR / target).parent.mkdir(parents=True, exist_ok=True)
            (VENDOR / target).write_bytes(content)
            hashes[target] = hashlib.sha256(content).hexdigest()
    return {"package": package, "version": version, "licence": licence, "sha256": hashes}


if __name__ == "__main__":
    main()
