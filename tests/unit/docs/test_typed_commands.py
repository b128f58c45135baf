"""What the pages tell a reader to type and to write: it is what the program of today takes.

What can be run is run by ``tests/integration/test_docs.py``. Here are also the commands that need other machines.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Never

import pytest
import typer
import typer.main
import yaml
from typer.core import TyperGroup

from gpu_platform.cli import session
from gpu_platform.cli.app import app
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.inputs.files import load_cluster, load_trace, load_windows
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.app import create_app
from tests.support import pages
from tests.support.pages import EXPLAINING, FOLLOWED, ROOT, SHELL, Block

OTHER_LANGUAGES = {"text", "yaml", "json", "python", "promql"}
ASKS_NO_SERVICE = {"up", "doctor", "simulate", "keys", "ca", "machines", "inject", "fleet", "completion", "alerts"}
"""Commands that are parsed here and not begun: they would do something on this machine."""
CURL_OPTIONS_WITH_VALUE = {"-H", "-d", "-X", "--cacert", "-o", "--header", "--data"}
FOREIGN_YAML = {"alerting": "Prometheus", "apiVersion": "Grafana"}
"""First keys of files of other programs."""
ALL_BLOCKS = [block for page in FOLLOWED for block in pages.blocks(page)]


class AskedTheService(Exception):
    """A command came so far that it would ask the service: its options are right."""


def test_each_block_says_its_language_and_each_block_of_shell_is_run_or_says_why_not() -> None:
    unnamed = [str(block) for block in ALL_BLOCKS if block.language not in SHELL | OTHER_LANGUAGES]
    assert unnamed == [], (
        "write ```sh (it is run), ```console (with `$ ` before commands), or one of "
        f"{', '.join(sorted(OTHER_LANGUAGES))}; no code by indentation alone"
    )
    for block in ALL_BLOCKS:
        if block.not_run is not None:
            assert len(block.not_run) > 8, f"{block}: say why it is not run"
            assert [path for path in re.findall(r"tests/[\w/.]+", block.not_run) if not (ROOT / path).exists()] == []


def typed() -> list[Any]:
    """Commands of blocks."""
    return [
        pytest.param(arguments, id=f"{block}: {' '.join(arguments)}")
        for block in pages.shell_blocks()
        for command in pages.commands(block.commands)
        if (arguments := pages.of_ours(command)) is not None
    ]


def named() -> list[Any]:
    """Commands in the text, perhaps without all of their arguments."""
    texts = {
        f"{page.relative_to(ROOT)}: {text}": text
        for page in [*FOLLOWED, *EXPLAINING]
        for text in pages.inline_code(page)
        if text.startswith("gpu-platform ") and "…" not in text.split(" -- ")[0]
    }
    return [
        pytest.param(pages.of_ours(next(pages.commands(text))), id=name)
        for name, text in texts.items()
        if not re.search(r" --[a-z-]+$", text)  # an option is named, and its value is not
    ]


@pytest.mark.parametrize("arguments", typed())
def test_a_command_of_ours_is_taken(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every option exists, and every value is one that it takes: the command comes so far that it asks the service."""
    parsed(arguments)
    if arguments[0] in ASKS_NO_SERVICE or arguments[:2] == ["tokens", "create"]:
        return
    monkeypatch.setattr(session, "service", asked)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a value\n")))
    with suppress(AskedTheService, typer.Exit):
        try:
            app([_filled(word) for word in arguments], standalone_mode=False)
        except typer.BadParameter as error:
            if "No such file" not in str(error):  # what a page reads from a file is checked where the page is run
                raise


def _filled(word: str) -> str:
    """The word with ids in place of variables."""
    word = re.sub(r"\$ARRAY\b", "a-1jrp3k2h0x4t7za", word)
    return re.sub(r"\$\w+", "j-1jrp3k2h0x4t7za", word)


@pytest.mark.parametrize("arguments", named())
def test_a_command_that_a_text_names_is_there(arguments: list[str]) -> None:
    with suppress(typer._click.exceptions.MissingParameter):
        parsed(arguments)


def asked(*_: object, **__: object) -> Never:
    raise AskedTheService


def parsed(arguments: list[str]) -> None:
    """Raises click's error if an option is not there or has a value that it does not take."""
    command: Any = typer.main.get_command(app)
    name, rest, parent = "gpu-platform", [*arguments], None
    while rest:
        context = command.make_context(name, rest, parent=parent)
        if not isinstance(command, TyperGroup):
            return
        rest = [*context._protected_args, *context.args]
        if rest:
            parent = context
            name, command, rest = command.resolve_command(context, rest)
            if not rest and not isinstance(command, TyperGroup):
                command.make_context(name, [], parent=parent)


@cache
def routes() -> dict[str, dict[str, Any]]:
    return create_app(Settings(), Store("sqlite:///unused.db")).openapi()["paths"]


def operation(method: str, path: str) -> dict[str, Any]:
    """What the service says about this request. Fails if there is no such route."""
    path = re.sub(r"[?#].*", "", path)
    for route, operations in routes().items():
        pattern = re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(route))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            return operations[method.lower()]
    raise AssertionError(f"there is no {method} {path}")


def requests_with_curl() -> list[Any]:
    return [
        pytest.param(command, id=f"{block}: {' '.join(command)}")
        for block in pages.shell_blocks()
        for command in pages.commands(block.commands)
        if command[:1] == ["curl"]
    ]


@pytest.mark.parametrize("command", requests_with_curl())
def test_a_request_with_curl_is_one_that_the_service_knows(command: list[str]) -> None:
    options: dict[str, str] = {}
    addresses: list[str] = []
    words = iter(command[1:])
    for word in words:
        if word in CURL_OPTIONS_WITH_VALUE:
            options[word] = next(words)
        elif not word.startswith("-"):
            addresses.append(word)
    assert len(addresses) == 1
    path = re.sub(r"^https?://[^/]+", "", addresses[0])
    if path in ("/readyz", "/healthz", "/metrics"):  # not part of the API
        return
    method = options.get("-X", "POST" if "-d" in options else "GET")
    found = operation(method, path)
    if "-d" in options:
        schema = found["requestBody"]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith("/JobSpec"), "teach this test the other model"
        JobSpec.model_validate(json.loads(options["-d"]))


@pytest.mark.parametrize("page", [*FOLLOWED, *EXPLAINING], ids=lambda page: str(page.relative_to(ROOT)))
def test_routes_that_a_page_names_exist(page: Path) -> None:
    for text in pages.inline_code(page):
        named = re.fullmatch(r"(GET|POST|PUT|PATCH|DELETE) (/v1/\S+)", text)
        if named and "…" not in re.sub(r"\?.*", "", named[2]):
            operation(named[1], re.sub(r"[<{](\w+)[>}]", r"\1", named[2]))


def of_language(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in ALL_BLOCKS if block.language == language]


@pytest.mark.parametrize("block", of_language("yaml"))
def test_a_file_in_yaml_is_one_that_its_reader_takes(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    first = next(iter(content))
    if first in FOREIGN_YAML:
        return
    if "steps" in content:
        read_pipeline(block.text, {})
    elif "hosts" in content:
        (tmp_path / "cluster.yaml").write_text(block.text)
        assert load_cluster(tmp_path / "cluster.yaml")
    elif "windows" in content:
        (tmp_path / "windows.yaml").write_text(block.text)
        eight = ClusterFile(hosts=[HostGroup(count=8, machine="dgx-h100")]).rows()
        assert load_windows(tmp_path / "windows.yaml", eight)
    elif set(content) <= set(Settings.model_fields):
        Settings(**content)
        read_policy(content.get("scheduler", {}).get("policy", {}))
    elif set(content) & {"command", "secrets", "groups"}:
        JobSpec.model_validate({"command": ["true"], **content})
    else:
        read_policy(content)


@pytest.mark.parametrize("block", of_language("json"))
def test_jobs_of_a_trace_are_read(block: Block, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(block.text)
    assert len(load_trace(tmp_path / "trace.jsonl").jobs) == len(block.text.splitlines())


@pytest.mark.parametrize("block", of_language("python"))
def test_python_compiles_and_what_it_imports_is_there(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("gpu_platform", "service"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_python_uses_no_name_that_it_does_not_define(tmp_path: Path) -> None:
    """A reader copies a block as it is. What stands for the reader's own program is named here."""
    for number, block in enumerate(block for block in ALL_BLOCKS if block.language == "python"):
        names = "".join(f"{name} = None\n" for name in ("torch", "state", "step") if "..." in block.text)
        (tmp_path / f"{block.page.stem.replace('-', '_')}_{number}.py").write_text(names + block.text)
    checked = ["ruff", "check", "--isolated", "--select", "F", "--output-format", "concise", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *checked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


PACKAGES = ("activities", "gpu_platform", "service", "workers", "workflows")
MESSAGE = re.compile(r"`(gpu-platform [a-z][^`\n]*)`")
"""A command in a message or docstring."""


def told() -> list[Any]:
    """Commands that the program itself tells people to type, and those of examples and of files of ``deploy``."""
    files = [
        *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")),
        *(ROOT / "deploy").rglob("*.y*ml"),
    ]
    found = {
        f"{path.relative_to(ROOT)}: {text}": text
        for path in sorted(files)
        for text in MESSAGE.findall(path.read_text())
    }
    for path in sorted([*(ROOT / "examples").rglob("*.*"), *(ROOT / "docs" / "contributing").glob("*.md")]):
        if path.suffix in (".md", ".py", ".yaml"):
            lines = re.findall(r"^[ #]*(gpu-platform [a-z].*)$", path.read_text(), re.MULTILINE)
            found |= {f"{path.relative_to(ROOT)}: {line}": re.sub(r"  +.*", "", line) for line in lines}
    return [pytest.param(text, id=name) for name, text in found.items() if "…" not in text]


@pytest.mark.parametrize("text", told())
def test_a_command_that_the_program_tells_people_to_type_is_there(text: str) -> None:
    arguments = pages.of_ours(
        next(pages.commands(re.sub(r"\{[^}]*\}", "NAME", text).replace("'", "").replace('"', "")))
    )
    with suppress(typer._click.exceptions.MissingParameter):
        parsed(arguments or [])


@pytest.mark.parametrize("block", [block for block in ALL_BLOCKS if block.language in SHELL], ids=str)
def test_shell_that_is_not_run_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.commands, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def commands_of_temporal() -> list[Any]:
    return [
        pytest.param(command[1:], id=f"{block}: {' '.join(command)}")
        for block in pages.shell_blocks()
        for command in pages.commands(block.commands)
        if command[:1] == ["temporal"]
    ]


@pytest.mark.parametrize("words", commands_of_temporal())
def test_a_command_of_temporal_has_these_options(words: list[str]) -> None:
    temporal = shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))
    command = [temporal, *words, "--address", "127.0.0.1:1"]  # nobody listens there, so nothing is done
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert re.search(r"127\.0\.0\.1:1\b", done.stderr), done.stderr
    assert "unknown" not in done.stderr
