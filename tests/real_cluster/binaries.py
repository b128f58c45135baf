"""The programs of a real Temporal server: built once into the user's cache by ``make cluster-setup``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.30.8"
"""1.31 and later need modules that not every Go proxy serves."""
MODULE = "go.temporal.io/server"
PACKAGES = {"server": f"{MODULE}/cmd/server", "sql": f"{MODULE}/cmd/tools/sql"}
"""Program -> the Go package that it is built from."""
LEAST_GO = (1, 25, 14)
"""What ``go.mod`` of this version asks for."""


def directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-platform" / f"temporal-{VERSION}"


def program(name: str) -> Path:
    """The server or the tool that makes its tables."""
    return directory() / name


def why_not() -> str | None:
    """Why there is no real cluster on this machine. None: there can be one."""
    if all(program(name).is_file() for name in PACKAGES):
        return None
    return f"no Temporal server {VERSION} in {directory()}: run `make cluster-setup` once"


def build() -> str | None:
    """Build what is missing. Returns what prevented it."""
    if why_not() is None and all(_built_version(program(name)) == VERSION for name in PACKAGES):
        print(f"Temporal {VERSION} is in {directory()}")
        return None
    go = shutil.which("go")
    if go is None:
        return (
            f"Go is not installed: Temporal {VERSION} is built with Go {_text(LEAST_GO)} or later (https://go.dev/dl)"
        )
    found = _go_version(go)
    if found is None or found < LEAST_GO:
        had = _text(found) if found else "of an unknown version"
        return (
            f"Go {had} is too old: Temporal {VERSION} is built with Go {_text(LEAST_GO)} or later (https://go.dev/dl)"
        )
    print(f"building Temporal {VERSION} into {directory()}: some minutes, and 1.5 GiB in the caches of Go", flush=True)
    directory().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory().parent) as fresh:
        packages = [f"{package}@v{VERSION}" for package in PACKAGES.values()]
        done = subprocess.run([go, "install", *packages], env={**os.environ, "GOBIN": fresh}, check=False)
        if done.returncode:
            return f"`go install {' '.join(packages)}` failed; its messages are above"
        directory().mkdir(exist_ok=True)
        for name in PACKAGES:
            if (version := _built_version(Path(fresh) / name)) != VERSION:
                return f"{name} was built from version {version}, not from {VERSION}"
            os.replace(Path(fresh) / name, program(name))
    print(f"built {', '.join(str(program(name)) for name in PACKAGES)}")
    return None


def _go_version(go: str) -> tuple[int, ...] | None:
    text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else None


def _built_version(path: Path) -> str | None:
    """What Go wrote into the program about the module that it was built from. None: this is no such program."""
    go = shutil.which("go")
    if go is None:
        return VERSION  # nobody can read it; the folder's name says it
    text = subprocess.run([go, "version", "-m", path], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"^\tmod\t{re.escape(MODULE)}\tv(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    if reason := build():
        sys.exit(f"cluster-setup: {reason}")
