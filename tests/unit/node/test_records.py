"""Records on disk: who writes first, and what a power cut leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_platform.node.system import records


def test_the_first_record_counts_and_every_writer_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "prepared.json"
    assert records.write_first_record(str(path), {"port": 1}) == {"port": 1}
    again = records.write_first_record(str(path), {"port": 2})
    stored = records.read_record(str(path))
    assert stored is not None
    assert again["port"] == stored["port"] == 1
    assert list(tmp_path.iterdir()) == [path], "no partial file is left"


def test_a_record_that_a_power_cut_destroyed_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "prepared.json"
    path.write_bytes(b"\0" * 40)
    assert records.write_first_record(str(path), {"port": 2}) == {"port": 2}
    stored = records.read_record(str(path))
    assert stored is not None
    assert stored["port"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_records_of_a_later_release_are_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    records.write_record(str(path), {"a": 1}, durable=False)
    assert records.read_record(str(path)) == {"a": 1}
    path.write_text(json.dumps({"format": records.FORMAT + 1, "a": 1}))
    with pytest.raises(RuntimeError, match="was written by a newer release"):
        records.read_record(str(path))
