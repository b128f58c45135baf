"""``gpu-platform keys``: what an operator does with the keys, on files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpu_platform.cli.app import app
from gpu_platform.domain.errors import CannotStart, InvalidRequest, Unavailable
from gpu_platform.identity import key_ring
from gpu_platform.identity.key_ring import KeyRing


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_PLATFORM_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(*arguments: str) -> str:
    ran = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def first_key() -> str:
    """The id in the first row below the head."""
    head, row, *_ = keys("list").splitlines()
    assert head.split()[0] == "KEY"
    return row.split()[0]


def test_keys_are_created_exported_rotated_and_removed(state_dir: Path) -> None:
    ring = state_dir / "keys" / "ring.json"
    assert f"key_ring: {ring}" in keys("create")
    assert ring.with_name("orders.pub").exists()
    first = first_key()
    keys("export", "node-a", str(ring.with_name("node-a.json")))
    sealed = KeyRing.load(ring).scoped("node-a").seal(b"x")
    assert KeyRing.load(ring.with_name("node-a.json")).open(sealed) == b"x"
    assert keys("export", "node-a", "-") == ring.with_name("node-a.json").read_text() + "\n"
    with pytest.raises(InvalidRequest, match="node-HOST"):
        keys("export", "dgx-a", str(state_dir / "dgx-a.json"))
    keys("rotate", "--after", "1h")
    assert first_key() == first
    with pytest.raises(CannotStart, match="rotate first"):
        keys("remove", first)
    keys("create")
    assert len(keys("list").splitlines()) == 3, "the head and two keys"


def test_a_key_is_removed_only_if_temporal_says_that_nothing_needs_it(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_TEMPORAL__ADDRESS", "127.0.0.1:1")
    keys("create")
    first = first_key()
    key_ring.rotate(state_dir / "keys" / "ring.json", after_s=0)
    with pytest.raises(Unavailable, match="does not say what needs the key"):
        keys("remove", first)
    assert first_key() == first
    keys("remove", first, "--force")
    assert first not in keys("list")
