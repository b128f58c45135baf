"""Completion as a shell asks for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from gpu_platform.cli import completion
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from tests.support.api_server import application, served
from tests.support.command_line import NOBODY, run
from tests.support.store_cluster import NOW, Cluster, spec
from tests.support.waiting import eventually
from workers.local.forked.client import COMMAND

pytestmark = pytest.mark.processes

_ASK = """
source <(gpu-platform completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_gpu_platform_completion gpu-platform
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(url: str, *words: str) -> list[str]:
    """What bash offers when Tab is pressed after the last of these words."""
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "GPU_PLATFORM_API_URL": url}
    argv = ["bash", "-c", _ASK, "bash", "gpu-platform", *words]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


async def offers(url: str, words: tuple[str, ...], offered: list[str]) -> bool:
    return await asyncio.to_thread(completed, url, *words) == offered


def test_bash_completes_commands_and_options() -> None:
    assert completed(NOBODY, "jo") == ["jobs"]
    assert {"list", "logs"} <= set(completed(NOBODY, "jobs", "l"))
    assert completed(NOBODY, "submit", "--gpu-mem") == ["--gpu-memory"]
    assert completed(NOBODY, "jobs", "list", "--output", "y") == ["yaml"]


@pytest.mark.long
async def test_bash_completes_names_and_is_silent_without_a_service(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Cluster(sqlite_store).host("alpha").host("beta")
    jobs.submit_job(sqlite_store, "j-17", spec(name="train-7"), actor="ada", now=NOW, idempotency_key=None)
    async with served(application(sqlite_store, "127.0.0.1:1")) as url:
        for words, offered in (
            (("jobs", "describe", "j-"), ["j-17"]),
            (("hosts", "describe", "al"), ["alpha"]),
            (("jobs", "list", "--name", "tr"), ["train-7"]),
            (("jobs", "list", "--namespace", "d"), ["default"]),
        ):
            # An answer that takes longer than 0.7 s is not waited for.
            await eventually(partial(offers, url, words, offered), f"{words} to be completed")
    kept = [file for file in (tmp_path / "cache" / "gpu-platform").iterdir() if file.name.startswith("jobs-")]
    assert [file.stat().st_mode & 0o077 for file in kept] == [0]
    for file in kept:
        os.utime(file)
    assert await asyncio.to_thread(completed, url, "jobs", "describe", "j-") == ["j-17"], "from the last seconds"
    for file in kept:
        os.utime(file, (0, 0))
    assert await asyncio.to_thread(completed, url, "jobs", "describe", "j-") == []
    assert await asyncio.to_thread(completed, NOBODY, "hosts", "describe", "al") == [], "another service's names"


def test_a_service_that_never_answers_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("GPU_PLATFORM_API_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert completion.host_names("a") == []
        assert time.monotonic() - began < 10 * completion._LIMIT_S
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_a_hostile_service_offers_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ["good-1", "$(touch x)", '";touch x;"', "`x`", "a b", "a\nb", "-rf"]
    monkeypatch.setattr(completion, "_asked", lambda _: names)
    assert completion.host_names("") == ["good-1"]
    assert completion.host_names("") == ["good-1"], "what is kept, too"


_FISH = "source (gpu-platform completion fish | psub); complete --do-complete '{}'"
_ZSH = """
zmodload zsh/zpty
zpty -b z zsh -f -i
zpty -w z 'PS1=; autoload -Uz compinit; compinit -u -d "$XDG_CACHE_HOME/dump"; LISTMAX=10000'
zpty -w z 'source <(gpu-platform completion zsh); zstyle ":completion:*" menu no; print -r READY''Y'
zpty -m z '*READYY*' 2>/dev/null
found=; for _ in {1..200}; do
  while zpty -rt z line; do found+=$line; done
  [[ $found == *READYY* ]] && break; sleep 0.1
done
zpty -w -n z "$TYPED"$'\\t'
found=; for _ in {1..200}; do
  while zpty -rt z line; do found+=$line; done
  [[ $found == *$WANTED* ]] && break; sleep 0.1
done
zpty -d z
print -r -- "$found"
"""


def _environment(folder: Path, **more: str) -> dict[str, str]:
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "TERM": "xterm"}
    return {**os.environ, "PATH": path, "GPU_PLATFORM_API_URL": NOBODY, **home, **more}


@pytest.mark.parametrize(("typed", "wanted"), [("gpu-platform schedu", "schedules"), ("gpu-platform jobs li", "list")])
def test_fish_completes(typed: str, wanted: str, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    argv = ["fish", "--no-config", "-c", _FISH.format(typed)]
    ran = subprocess.run(argv, env=_environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [wanted], ran.stderr


def test_zsh_completes_what_is_typed_in_a_terminal(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    env = _environment(tmp_path, TYPED="gpu-platform schedu", WANTED="schedules")
    ran = subprocess.run(["zsh", "-f", "-c", _ZSH], env=env, capture_output=True, text=True, timeout=90)
    assert "schedules" in ran.stdout, ran.stderr
    assert "Error" not in ran.stdout


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
async def test_the_script_is_one_of_its_shell(shell: str, check: str, tmp_path: Path) -> None:
    ran = await run("completion", shell)
    assert ran.code == 0
    assert "_GPU_PLATFORM_COMPLETE" in ran.out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(ran.out)
    await asyncio.to_thread(subprocess.run, [shell, check, str(file)], check=True, timeout=30)
