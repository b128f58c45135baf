"""Each page of the documentation is followed: what it tells to type is typed, on a platform with simulated hosts.

A page is one shell in a directory of its own, with the files that it names (``tests/support/page_scenes.py``).
Where a page shows what a command prints, the words of that are compared with what it prints today.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.states import GpuState, JobState
from tests.support import pages
from tests.support.page_scenes import LONG, NOT_HERE, PROGRAM, PROGRAMS, SCENES, SCRIPTS, SHORT, Scene
from tests.support.pages import DOCS, FOLLOWED, ROOT, RUN, Block
from tests.support.typed_shell import TypedCommands
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster

PAGE_TIMEOUT_S = 100
"""A page takes some seconds; more on a busy machine."""
INSTALLED_SEPARATELY = ("curl", "sqlite3")
SAME_WORDS = 0.7
"""How many of the words of a line that a page shows must stand in the output."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory, shell: TypedCommands) -> AsyncIterator[LocalCluster]:
    """The platform of ``gpu-platform up`` on a machine without GPUs, with the programs of the pages on its hosts."""
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("platform"), ui=False, schedulers=1, settings={"PATH": shell.path}
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedCommands]:
    with TypedCommands(tmp_path_factory.mktemp("bin")) as typed:
        for name in NOT_HERE:
            (typed.directory / name).write_text("#!/bin/sh\n")
            (typed.directory / name).chmod(0o755)
        yield typed


@pytest_asyncio.fixture(loop_scope="module")
async def quiet(platform: LocalCluster) -> AsyncIterator[LocalCluster]:
    """The platform; what a page leaves there is ended after it."""
    yield platform
    async with AsyncClient(platform.api_url) as client:
        for schedule in [one async for one in client.schedules.list()]:
            await client.schedules.delete(schedule.id)
        for window in [one async for one in client.reservations.list()]:
            await client.reservations.delete(window.name)
        for host in [one async for one in client.hosts()]:
            await client.online(host.name)
        for array in [one async for one in client.arrays() if not one.state.is_terminal]:
            with suppress(PlatformError):  # it has ended meanwhile
                await client.kill_array(array.id)

        open_states = [state for state in JobState if not state.is_terminal]

        async def free() -> bool:
            open_jobs = [one async for one in client.list(states=open_states)]
            for job in open_jobs:
                with suppress(PlatformError):
                    await client.kill(job.id)
            return not open_jobs and all([gpu.state is GpuState.AVAILABLE async for gpu in client.gpus()])

        await eventually(free, "the GPUs to be free", within_s=60)


def followed() -> list[Any]:
    """The pages with something to run."""
    return [pytest.param(page, id=page.name, marks=marks_of(page)) for page in FOLLOWED if runnable(page)]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    if page.name in LONG:
        return [pytest.mark.scale]
    return [] if page.name in SHORT else [pytest.mark.long]


def runnable(page: Path) -> list[Block]:
    found = [block for block in pages.blocks(page) if block.language in RUN and not block.is_file]
    return [block for block in found if block.not_run is None and block.machine is None]


@pytest.mark.some(2)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", followed())
async def test_a_page_is_followed(page: Path, quiet: LocalCluster, shell: TypedCommands, tmp_path: Path) -> None:
    scene = SCENES.get(page.name, Scene())
    for command in (command for block in runnable(page) for command in pages.commands(block.commands)):
        if command and command[0] in INSTALLED_SEPARATELY and shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed (Debian: apt-get install {command[0]})")
    furnish(tmp_path, quiet, scene)
    said = tmp_path / "said"
    said.mkdir()
    script = script_of(page, scene, quiet.api_url, said)
    env = {"GPU_PLATFORM_API_URL": quiet.api_url, "COLUMNS": "200", "TERM": "dumb", **scene.env}
    env["GPU_PLATFORM_TEMPORAL__ADDRESS"] = quiet.temporal_address
    done = await asyncio.to_thread(shell.run, script, env, tmp_path, PAGE_TIMEOUT_S)
    outputs = "\n".join(file.read_text()[-3000:] for file in sorted(said.iterdir())[-1:])
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{outputs}"
    for block, shown in shown_outputs(page):
        missing = missing_lines(shown.text, (said / f"{block.line:04}").read_text())
        assert not missing, f"{shown} shows what is not printed any more:\n" + "\n".join(missing)


def furnish(directory: Path, platform: LocalCluster, scene: Scene) -> None:
    """Lay out what a reader has: a checkout, and the files that the pages name."""
    (directory / ".gpu-platform").symlink_to(platform.config.state_dir)
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / ".venv" / "bin" / "activate").write_text("")
    (directory / "experiment").mkdir()
    texts = {**dict.fromkeys(PROGRAMS, PROGRAM), **dict.fromkeys(SCRIPTS, "#!/bin/sh\n"), **scene.files}
    for name, text in texts.items():
        (directory / name).write_text(text)
    for name in SCRIPTS:
        (directory / name).chmod(0o755)


def script_of(page: Path, scene: Scene, api_url: str, said: Path) -> str:
    """All that a reader types, as one script. It says which command failed."""
    parts = [
        "set -eEuo pipefail",
        "trap 'echo \"$AT: $BASH_COMMAND\" >&3' ERR",
        f"exec 3>&1; AT=before; exec >{said}/0000 2>&1",
        scene.before,
    ]
    for block in runnable(page):
        text = block.commands
        if block.language == "python":
            text = f"python - <<'END OF BLOCK'\n{text}\nEND OF BLOCK"
        text = text.replace("http://127.0.0.1:8700", api_url)
        for written, meant in scene.stands_for.items():
            text = re.sub(rf"(?<![\w$]){re.escape(written)}(?!\w)", lambda _, meant=meant: meant, text)
        parts += [f"AT={shlex.quote(str(block))}; exec >{said}/{block.line:04} 2>&1"]
        if block.exit_code:
            parts += [f"code=0; {text.strip()} || code=$?", f"[ $code = {block.exit_code} ]"]
        elif block.language == "python":
            parts += [text]
        else:
            parts += [ended(line, scene) for line in text.replace("\\\n", " ").splitlines()]
    return "\n".join(parts)


def ended(line: str, scene: Scene) -> str:
    """A line of shell, with the exit code that it may have."""
    for beginning, code in scene.ends_with.items():
        if line.startswith(beginning):
            return re.sub(r"\s+#.*", "", line) + f" || [ $? = {code} ]"
    return line


def shown_outputs(page: Path) -> Iterator[tuple[Block, Block]]:
    """Each block that is run and what the page shows below it as its output."""
    found = pages.blocks(page)
    for block, after in pairwise(found):
        end = block.line + block.text.count("\n") + 2
        if block in runnable(page) and after.language == "text" and after.line <= end + 1:
            yield block, after


def missing_lines(shown: str, printed: str) -> list[str]:
    """The lines of which too few words stand in the output, in one line or two that follow each other."""
    lines = [set(words(line)) for line in printed.splitlines()]
    there = [one | after for one, after in zip(lines, [*lines[1:], set()], strict=True)]
    missing = []
    for line in shown.splitlines():
        wanted = words(line)
        if wanted and not any(sum(word in one for word in wanted) >= SAME_WORDS * len(wanted) for one in there):
            missing.append(line)
    return missing


def words(line: str) -> list[str]:
    """Words, without numbers, ids and units, which differ each time."""
    return re.findall(r"(?<![\w-])[A-Za-z]{3,}(?![\w-]*\d)", line)


def test_words_that_are_gone_are_found() -> None:
    printed = "hosts  4 READY\njobs   none\nHOST    STATE  MACHINE\n"
    assert missing_lines("hosts  9 READY\n\nHOST  STATE  MACHINE  LEAF\n…", printed) == []
    assert missing_lines("hosts  4 DRAINED\n", printed) == ["hosts  4 DRAINED"]


def test_scenes_are_of_pages_that_are_followed() -> None:
    assert set(SCENES) <= {page.name for page in FOLLOWED if runnable(page)}


@pytest.mark.scale
@pytest.mark.timeout(180)
def test_the_demonstration_prints_what_the_tutorial_shows(tmp_path: Path) -> None:
    """`make run`: a job, a GPU fault in the middle of it, and its end. It leaves nothing running."""
    command = [sys.executable, "-m", "workers.local.up", "--demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = next(block for block in pages.blocks(DOCS / "tutorial.md") if block.language == "text")
    missing = missing_lines(shown.text, done.stdout)
    assert not missing, f"{shown} shows what is not printed any more:\n" + "\n".join(missing)
