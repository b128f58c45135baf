"""The page that installs a cluster: its files, services, units and accounts exist.

The commands themselves were run word for word on three fresh machines; this keeps the page true when the code changes.
That ours parse is checked by ``test_typed_commands.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.support import pages
from tests.support.pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "install.md"
BLOCKS = [block.commands for block in pages.blocks(PAGE) if block.language in pages.SHELL]


def lines() -> Iterator[str]:
    """Each command line of the page, with what ``\\`` joins and what braces mean."""
    for block in BLOCKS:
        yield from pages.command_lines(block)


def commands() -> Iterator[list[str]]:
    """Each simple command of the page."""
    for block in BLOCKS:
        yield from pages.commands(block)


def our_commands() -> list[list[str]]:
    """The arguments of each ``gpu-platform`` of the page."""
    return [arguments for command in commands() if (arguments := pages.of_ours(command)) is not None]


def test_the_page_has_the_commands_that_this_file_looks_for() -> None:
    verbs = {tuple(command[:2]) for command in our_commands()}
    assert {("ca", "init"), ("keys", "create"), ("keys", "export"), ("hosts", "enroll"), ("tokens", "create")} <= verbs


def test_files_of_the_repository_exist() -> None:
    words = {word for command in commands() for word in command}
    paths = {word for word in words if re.match(r"(deploy|requirements|scripts|examples)/", word)}
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_units_that_are_enabled_were_installed_from_the_repository() -> None:
    installed: set[str] = set()
    for command in commands():
        if command[:1] == ["install"]:
            installed |= {Path(word).stem for word in command if word.endswith(".service")}
        elif command[:1] == ["systemctl"] and "enable" in command:
            names = [word for word in command[1:] if word not in ("enable", "--now")]
            assert names
            assert set(names) <= installed, "a unit is installed before it is enabled"
    assert len(installed) == 6


def test_services_of_compose_exist() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    asked: set[str] = set()
    for command in commands():
        if command[:2] == ["docker", "compose"] and command[2:3] in (["exec"], ["run"]):
            words = iter(command[3:])
            for word in words:
                if word == "-e":
                    next(words)
                elif not word.startswith("-"):
                    asked.add(word)
                    break
    assert {"service", "keys"} <= asked <= set(services)


def test_what_holds_a_secret_is_never_readable_by_others() -> None:
    directories = {
        command[3].rstrip("/") for command in commands() if command[:1] == ["mkdir"] and command[1:3] == ["-m", "0700"]
    }
    for line in lines():
        target = re.search(r"> (\S+)", line)
        if target and re.search(r"hosts enroll|keys export|orders\.pub", line):
            assert str(Path(target[1]).parent) in directories, line
    for command in commands():
        words = " ".join(command)
        if command[:1] == ["install"] and re.search(r"join-token|/environment|\.json", words):
            assert command[1:3] == ["-m", "0600"], words


def test_accounts_of_the_units_are_made_before_they_start() -> None:
    made = {command[-1] for command in commands() if command[:1] == ["useradd"]}
    users: set[str] = set()
    for unit in [*(ROOT / "deploy" / "systemd").glob("*.service"), ROOT / "deploy" / "temporal" / "temporal.service"]:
        users |= set(re.findall(r"^User=(\S+)$", unit.read_text(), re.MULTILINE))
    assert users - {"root"} == made
