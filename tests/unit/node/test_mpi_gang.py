"""Who may take part in a gang of mpirun: attacks on the meeting of its ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.processes import mpi_gang
from gpu_platform.node.processes.launchers import MPI_VARIABLES
from gpu_platform.node.system.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.processes

KEY = "the key of the gang"
START = "import sys; source = sys.argv.pop(1); exec(compile(source, 'mpi_gang.py', 'exec'))"


class Gang:
    """Ranks of one gang, as processes of this machine."""

    def __init__(self, tmp_path: Path, size: int) -> None:
        self.port, self._size, self._tmp = free_port(), size, tmp_path
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, rank: int, *command: str, key: str = KEY) -> subprocess.Popen[str]:
        environ = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self._tmp),
            "MASTER_ADDR": "127.0.0.1",
            "RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "GPU_PLATFORM_HOST": f"host-{rank}",
            mpi_gang.KEY: key,
            mpi_gang.PORT: str(self.port),
            mpi_gang.SLOTS: str(rank + 1),
            mpi_gang.TEMPLATES: json.dumps(MPI_VARIABLES),
        }
        argv = [sys.executable, "-c", START, Path(mpi_gang.__file__).read_text(), "rank", *command]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.processes.append(subprocess.Popen(argv, env=environ, start_new_session=True, **pipes))
        return self.processes[-1]

    def connect(self) -> mpi_gang.Link:
        """A connection of somebody to rank 0, as soon as that listens."""
        deadline = time.monotonic() + 20
        while True:
            try:
                return mpi_gang.Link(socket.create_connection(("127.0.0.1", self.port), 20))
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.02)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    gang = Gang(tmp_path, 3)
    yield gang
    for process in gang.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


RSH = """
cat $GPU_PLATFORM_HOSTFILE
for n in 0 1 2; do $OMPI_MCA_plm_rsh_agent -x -l me gang-$n "{}"; echo code $?; done
"""


async def test_commands_run_on_the_rank_that_was_named_with_output_and_exit_code(gang: Gang, tmp_path: Path) -> None:
    script = RSH.format(r"echo on \$GPU_PLATFORM_HOST; echo bad >&2; exit 4")
    lead = gang.start(0, "sh", "-c", script)
    others = [gang.start(1), gang.start(2)]
    out, err = lead.communicate(timeout=30)
    assert out.splitlines() == [
        *["gang-0 slots=1", "gang-1 slots=2", "gang-2 slots=3"],
        *["on host-0", "code 4", "on host-1", "code 4", "on host-2", "code 4"],
    ], err
    assert err == "bad\n" * 3
    assert [other.wait(10) for other in others] == [0, 0]
    await eventually(lambda: not list(tmp_path.iterdir()), "files are removed")


def test_a_host_that_is_not_of_the_gang_and_a_daemon_that_is_not_there_are_named(gang: Gang) -> None:
    rsh = "$OMPI_MCA_plm_rsh_agent"
    lead = gang.start(0, "sh", "-c", f"{rsh} gang-7 true; echo $?; {rsh} evil.example true; {rsh} gang-2 no-orted -x")
    gang.start(1), gang.start(2)
    out, err = lead.communicate(timeout=30)
    assert out == "255\n"
    assert "gang-7 is no host of this gang, which has gang-0 to gang-2" in err
    assert "evil.example is no host of this gang" in err
    assert "no-orted was not found on host-2: install the same MPI on every host of the gang" in err


def test_a_stranger_without_the_key_becomes_no_rank(gang: Gang) -> None:
    lead = gang.start(0, "echo", "began")
    gang.start(1, key="guessed")
    for hello in (
        {"rank": 2, "slots": 1, "nonce": "x", "proof": mpi_gang.proof("", "rank", "", 2, 1, "x")},
        {"rank": "2", "slots": None, "proof": None},
        {"rank": 99, "slots": 1, "nonce": "x", "proof": "0" * 64},
        {"rank": 1, "slots": 1, "nonce": "x", "proof": "é"},
        {"rank": 1, "slots": 1, "nonce": "\ud800", "proof": "\ud800"},
        ["no", "object"],
    ):
        stranger = gang.connect()
        assert stranger.receive() is not None
        stranger.connection.sendall(json.dumps(hello).encode() + b"\n")
        assert stranger.receive() is None
        stranger.close()
    silent = gang.connect()  # says nothing, and keeps nobody waiting
    replayed = gang.connect()
    asked = replayed.receive()
    assert asked is not None
    # A proof for another connection is worth nothing.
    replayed.send(rank=1, slots=1, nonce="n", proof=mpi_gang.proof(KEY, "rank", "another nonce", 1, 1, "n"))
    assert replayed.receive() is None
    assert lead.poll() is None
    gang.start(1), gang.start(2)
    assert lead.communicate(timeout=30)[0] == "began\n"
    silent.close()
    replayed.close()


def test_a_rank_takes_no_orders_from_somebody_who_only_listens_where_rank_0_would(gang: Gang, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", gang.port)) as server:
        rank = gang.start(1)
        for wrong in ("0" * 64, "é", "\ud800", 7, None):
            link = mpi_gang.Link(server.accept()[0])
            link.send(nonce="n")
            hello = link.receive()
            assert hello is not None
            for answer in ({"proof": wrong}, {"run": 0, "command": f"touch {tmp_path}/done"}):
                link.send(**answer)
            assert link.receive() is None
            link.close()
        nested = server.accept()[0]
        nested.sendall(b"[" * 100_000 + b"\n")
        nested.close()
        mpi_gang.Link(server.accept()[0]).close()  # it asks again
        assert rank.poll() is None
    assert not (tmp_path / "done").exists()


def test_the_command_gets_signals_as_without_a_launcher_and_the_others_end_with_it(gang: Gang) -> None:
    lead = gang.start(0, "sh", "-c", "trap 'echo asked; exit 3' USR1; echo up; while :; do sleep 0.02; done")
    others = [gang.start(1), gang.start(2)]
    assert lead.stdout is not None
    assert lead.stdout.readline() == "up\n"
    os.killpg(others[0].pid, signal.SIGTERM)
    lead.send_signal(signal.SIGUSR1)
    assert lead.wait(20) == 3
    assert [other.wait(10) for other in others] == [0, 0]


async def test_a_command_ends_when_what_asked_for_it_is_killed(gang: Gang, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = f"echo \\$\\$ > {file}; exec sleep 300"
    script = f'$OMPI_MCA_plm_rsh_agent gang-1 "{command}" & while [ ! -s {file} ]; do sleep 0.02; done; kill -9 $!'
    gang.start(0, "sh", "-c", f"{script}; sleep 300")
    gang.start(1), gang.start(2)
    await eventually(lambda: file.exists() and file.read_text().strip(), "the command runs")
    pid = file.read_text().strip()
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the command is ended")
