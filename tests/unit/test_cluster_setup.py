"""``make cluster-setup`` says what is missing, and takes no program of another version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_cluster import binaries

GO = """#!/bin/sh
case "$1" in
env) echo go{go} ;;
install) for program in server sql; do echo built > "$GOBIN/$program"; done ;;
version) printf '%s: go{go}\\n\\tmod\\tgo.temporal.io/server\\tv{temporal}\\th1:x=\\n' "$3" ;;
esac
"""
"""As much of Go as is asked."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path / "cache" / "gpu-platform"


@pytest.fixture
def go(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "go"


def write(go: Path, version: str, temporal: str = binaries.VERSION) -> None:
    go.write_text(GO.format(go=version, temporal=temporal))
    go.chmod(0o755)


def test_what_is_built_is_there_for_the_tests(go: Path, cache: Path) -> None:
    write(go, "1.26.8")
    assert "make cluster-setup" in str(binaries.why_not())
    assert binaries.build() is None
    assert binaries.why_not() is None
    assert sorted(path.name for path in cache.iterdir()) == [f"temporal-{binaries.VERSION}"], "something is left behind"


def test_go_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "Go is not installed" in str(binaries.build())


@pytest.mark.parametrize("version", ["1.19", "1.25.13"])
def test_go_that_is_too_old_is_said(go: Path, version: str) -> None:
    write(go, version)
    assert f"Go {version} is too old" in str(binaries.build())


def test_a_program_of_another_version_is_not_taken(go: Path) -> None:
    write(go, "1.26.8", temporal="1.29.0")
    assert str(binaries.build()) == f"server was built from version 1.29.0, not from {binaries.VERSION}"
    assert binaries.why_not() is not None
