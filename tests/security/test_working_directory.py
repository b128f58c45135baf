"""What is started in a directory of somebody else takes nothing from there: no code, no token, no settings."""

from __future__ import annotations

import ast
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.client.credentials import find_token
from gpu_platform.domain.errors import CannotStart
from gpu_platform.settings.reading import read_settings

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("gpu-platform")
PLANTED = (
    *("workers", "service", "gpu_platform", "activities", "workflows"),
    *(
        "yaml",
        "json",
        "typing",
        "asyncio",
        "sqlalchemy",
        "pydantic",
        "structlog",
        "temporalio",
        "httpx",
        "rich",
        "typer",
    ),
)
HERE = "http://127.0.0.1:8700"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of other accounts need root")
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def hostile_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: each module that a program may import writes a file there."""
    for name in PLANTED:
        text = f"open({str(tmp_path / f'{name}.ran')!r}, 'w').close()\n"
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in ("GPU_PLATFORM_CONFIG", "GPU_PLATFORM_TOKEN", "GPU_PLATFORM_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "words",
    [["doctor"], ["up", "--help"], ["tokens", "create", "--admin", "--user", "ada"], ["keys", "remove", "00000000"]],
    ids=" ".join,
)
def test_no_command_runs_code_of_the_directory(hostile_directory: Path, words: list[str]) -> None:
    env = {**os.environ, "GPU_PLATFORM_API_URL": "http://127.0.0.1:9"}
    subprocess.run([COMMAND, *words], env=env, check=False, capture_output=True, timeout=60)
    assert not list(hostile_directory.glob("*.ran"))


def commands(tree: ast.AST) -> Iterator[list[ast.expr]]:
    """The lists, tuples and arguments in the code that may be a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield node.elts
        elif isinstance(node, ast.Call):
            yield node.args


def is_interpreter(word: ast.expr) -> bool:
    return isinstance(word, ast.Attribute) and word.attr == "executable"


def test_no_program_of_ours_starts_python_with_the_directory_on_its_path() -> None:
    """``-m`` and ``-c`` put it there, unless ``-P`` or ``-I`` stands before them."""
    found = 0
    for folder in ("gpu_platform", "activities", "workflows", "service", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for words in commands(ast.parse(path.read_text())):
                at = next((place for place, word in enumerate(words) if is_interpreter(word)), None)
                texts = [word.value for word in words[at or 0 :] if isinstance(word, ast.Constant)]
                if at is None or not {"-m", "-c"} & set(texts):
                    continue
                found += 1
                flags = texts[: min(texts.index(one) for one in ("-m", "-c") if one in texts)]
                assert {"-P", "-I"} & set(flags), f"{path}: {texts}"
    assert found > 10


def leave_token(directory: Path, owner: int, *, mode: int = 0o600) -> Path:
    place = directory / ".gpu-platform"
    place.mkdir(mode=0o700)
    (place / "token").write_text("gpt_left\n")
    (place / "token").chmod(mode)
    for path in (place, place / "token"):
        os.chown(path, owner, -1)
    return place


def test_a_token_of_ones_own_that_lies_there_is_taken(hostile_directory: Path) -> None:
    leave_token(hostile_directory, os.geteuid())
    assert find_token(HERE) == "gpt_left"
    assert find_token("https://elsewhere.example") is None


@as_root
def test_a_token_that_somebody_else_left_is_not_taken(hostile_directory: Path) -> None:
    place = leave_token(hostile_directory, NOBODY)
    assert find_token(HERE) is None, "they would see all that we do as them"
    os.chown(place, 0, -1)
    assert find_token(HERE) is None
    os.chown(place / "token", 0, -1)
    assert find_token(HERE) == "gpt_left"
    place.chmod(0o777)
    assert find_token(HERE) is None


@as_root
def test_a_link_of_somebody_else_to_a_file_of_ones_own_is_not_followed(hostile_directory: Path) -> None:
    own = hostile_directory / "home"
    own.mkdir()
    secret, link = leave_token(own, os.geteuid()), hostile_directory / ".gpu-platform"
    link.symlink_to(secret)
    assert find_token(HERE) == "gpt_left", "a link of one's own"
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    assert find_token(HERE) is None, "it would be sent to whoever listens on that port"


def test_a_token_is_a_file_and_no_link(hostile_directory: Path) -> None:
    (hostile_directory / "note").write_text("private")
    (hostile_directory / ".gpu-platform").mkdir(mode=0o700)
    (hostile_directory / ".gpu-platform" / "token").symlink_to(hostile_directory / "note")
    assert find_token(HERE) is None


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_token_holds_nobody_up(hostile_directory: Path) -> None:
    (hostile_directory / ".gpu-platform").mkdir(mode=0o700)
    os.mkfifo(hostile_directory / ".gpu-platform" / "token", 0o600)
    assert find_token(HERE) is None


def test_a_directory_that_is_gone_is_no_error(hostile_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = hostile_directory / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find_token(HERE) is None


@as_root
def test_settings_that_somebody_else_left_are_refused(hostile_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = hostile_directory / "gpu-platform.yaml"
    file.write_text("api_url: http://evil.example:80\n")
    assert read_settings().api_url == "http://evil.example:80"
    os.chown(file, NOBODY, -1)
    with pytest.raises(CannotStart, match=rf"belongs to another account \(uid {NOBODY}\): if it is meant"):
        read_settings()
    monkeypatch.setenv("GPU_PLATFORM_CONFIG", str(file))
    assert read_settings().api_url == "http://evil.example:80", "it was named"


@pytest.mark.parametrize("named", [True, False])
def test_settings_that_every_account_may_write_are_refused(
    hostile_directory: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    file = hostile_directory / "gpu-platform.yaml"
    file.write_text("cluster: {name: x}\n")
    file.chmod(0o666)
    if named:
        monkeypatch.setenv("GPU_PLATFORM_CONFIG", str(file))
    with pytest.raises(CannotStart, match=r"every account of this machine may write .*: chmod o-w"):
        read_settings()
