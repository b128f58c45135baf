"""A program that the tests fork is as one that is started anew: its own process, environment, files and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform.domain.errors import CannotStart
from tests.support.forking import SERVER
from tests.support.lan import Machine
from workers.local.forked.client import COMMAND, ForkServer, Process, program_of

pytestmark = pytest.mark.processes

SERVICE = [sys.executable, "-P", "-m", "workers.service"]


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--version"], ["no-such-command"], ["jobs", "list"]])
def test_a_command_does_the_same_forked_and_in_a_new_interpreter(arguments: list[str], tmp_path: Path) -> None:
    env = {**os.environ, "GPU_PLATFORM_API_URL": "http://127.0.0.1:1", "COLUMNS": "100", "TERM": "dumb"}
    forked = SERVER.run([COMMAND, *arguments], env, cwd=tmp_path, timeout_s=60)
    new = subprocess.run([COMMAND, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_worker_gets_its_settings_writes_its_log_and_ends_as_a_new_one_does(tmp_path: Path) -> None:
    """This one cannot start: its address is not the loopback and it has no TLS."""
    env = {**os.environ, "GPU_PLATFORM_STATE_DIR": str(tmp_path), "GPU_PLATFORM_SERVICE__HOST": "0.0.0.0"}
    forked = SERVER.run(SERVICE, env, timeout_s=60)
    new = subprocess.run(SERVICE, env=env, capture_output=True, text=True, check=False)
    assert (forked.returncode, new.returncode) == (1, 1)
    told = [json.loads((ran.stdout + ran.stderr).splitlines()[-1]) for ran in (forked, new)]
    assert told[0].pop("timestamp") != told[1].pop("timestamp")
    assert told[0] == told[1]
    assert told[0]["event"] == "process.cannot_start"


async def test_a_process_has_a_session_of_its_own_and_reports_the_signal_that_ends_it(tmp_path: Path) -> None:
    process = await SERVER.piped([COMMAND, "watch", "--json"], dict(os.environ), cwd=tmp_path)
    assert os.getsid(process.pid) == process.pid
    assert Path(f"/proc/{process.pid}/cwd").resolve() == tmp_path
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < 10, "it has descriptors of the server"
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    assert process.returncode == -signal.SIGKILL
    process.terminate()  # does nothing to whoever has this number next


async def test_children_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    server = ForkServer()
    env = {**os.environ, "GPU_PLATFORM_STATE_DIR": str(tmp_path), "GPU_PLATFORM_TEMPORAL__ADDRESS": "127.0.0.1:1"}
    with (tmp_path / "log").open("wb") as log:
        argv = [sys.executable, "-P", "-m", "workers.control"]
        child = server.start(argv, env, stdout=log.fileno(), stderr=log.fileno(), dies_with_parent=True)
    pidfd = os.pidfd_open(child.pid)
    server.close()
    ended = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(pidfd, lambda: ended.done() or ended.set_result(None))
    await asyncio.wait_for(ended, 20)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


async def test_a_server_that_was_killed_is_replaced_and_the_ends_of_its_children_are_known(tmp_path: Path) -> None:
    server = ForkServer(("workers.scheduler",))
    env = {**os.environ, "GPU_PLATFORM_STATE_DIR": str(tmp_path), "GPU_PLATFORM_TEMPORAL__ADDRESS": "127.0.0.1:1"}
    argv = [sys.executable, "-P", "-m", "workers.scheduler"]
    with (tmp_path / "log").open("wb") as log:

        def start() -> Process:
            return server.start(argv, env, stdout=log.fileno(), stderr=log.fileno(), dies_with_parent=True)

        child = start()
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert await asyncio.wait_for(child.wait(), 30) == -signal.SIGTERM
        assert server.pid is None
        second = start()
        assert server.pid not in (None, killed)
        shown = Path(f"/proc/{second.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert shown == [b"python", b"-m", b"workers.scheduler"]
        second.kill()
        assert await second.wait() == -signal.SIGKILL
    server.close()


def test_what_would_not_be_the_same_is_not_forked(can_jail: None) -> None:
    env = dict(os.environ)
    assert SERVER.can_fork(SERVICE, env)
    assert not SERVER.can_fork(["/usr/bin/keeper", *SERVICE], env)
    assert program_of([sys.executable, "-c", "pass"]) is None
    assert not SERVER.can_fork(SERVICE, {**env, "LD_PRELOAD": "/lib/other.so"})
    machine = Machine("forked")
    with machine.here():
        assert not SERVER.can_fork(SERVICE, env)
    machine.close()
    assert SERVER.can_fork(SERVICE, env)


def test_a_server_that_lacks_a_package_says_which(tmp_path: Path) -> None:
    """And the next start begins another one."""
    server = ForkServer(("a_package_that_is_not_there",))
    for _ in range(2):
        with pytest.raises(
            CannotStart, match=r"ended with code 1: ModuleNotFoundError: No module named 'a_package_.*`make"
        ):
            server.can_fork(SERVICE, dict(os.environ))
        assert server.pid is None
