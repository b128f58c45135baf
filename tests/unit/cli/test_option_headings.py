"""Commands with many options show them under headings, in ``--help``, in the reference and in man pages alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpu_platform.cli.app import app
from gpu_platform.cli.option_groups import headed_options

ROOT = Path(__file__).parents[3]
OF_A_JOB = [
    *("Resources", "Placement", "Job", "Environment", "Ranks", "Time", "Notification"),
    *("Dependencies", "Retries and preemption", "Checkpoints"),
]
LONGEST = 20
"""Options under one heading: as many as one sees at once."""


@pytest.mark.parametrize("name", ["submit", "run"])
def test_headings_are_the_same_everywhere(name: str) -> None:
    root = typer.main.get_command(app)
    command = root.commands[name]  # type: ignore[attr-defined]
    found = headed_options(command, typer.Context(command, info_name=name))
    assert [heading for heading in found if heading in OF_A_JOB] == OF_A_JOB
    assert max(map(len, found.values())) <= LONGEST

    helped = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "100"}).stdout
    assert re.findall(r"^╭─ (.+?) ─+╮$", helped, re.MULTILINE) == [*found]

    man = (ROOT / "docs" / "man" / f"gpu-platform-{name}.1").read_text()
    assert re.findall(r"^\.PP\n\.I (.*)$", man, re.MULTILINE) == [*found]
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    section = page.split(f"## `gpu-platform {name}`\n")[1].split("\n## ")[0]
    assert re.findall(r"^\*\*(.*)\*\*$", section, re.MULTILINE) == [*found]


def test_a_command_with_few_options_has_no_headings() -> None:
    root = typer.main.get_command(app)
    command = root.commands["whoami"]  # type: ignore[attr-defined]
    assert [*headed_options(command, typer.Context(command, info_name="whoami"))] == [""]
