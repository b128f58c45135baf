"""The runner of scripts as hosts start it: two ranks as processes of this machine, and who tries to get in between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.node.system.ports import free_port
from gpu_platform.steps import environ, output, protocol, runner
from gpu_platform.steps.environ import Layout, spread
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.processes

KEY = "0123456789abcdef"


def eventually_sync(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Ranks:
    """The ranks of one attempt."""

    def __init__(self, directory: Path, script: str, size: int, **options: Any) -> None:
        self.directory, self.port = directory, free_port()
        self._log = directory / "log"
        self.processes = [self._start(rank, size, script, options) for rank in range(size)]

    def _start(self, rank: int, size: int, script: str, options: dict[str, Any]) -> subprocess.Popen[bytes]:
        gpus, directory_of_profile = f"GPU-{rank}a,GPU-{rank}b", self.directory
        variables = {
            "PATH": os.environ["PATH"],
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "GPU_PLATFORM_PORTS": f"1-{self.port}",
            "CUDA_VISIBLE_DEVICES": gpus,
            "GPU_PLATFORM_GPUS": gpus,
            "GPU_PLATFORM_JOB_ID": "j-1",
            "GPU_PLATFORM_ATTEMPT": "1",
            "GPU_PLATFORM_HOST": f"n{rank + 1:02}",
            "HOME": str(directory_of_profile),
            environ.SCRIPT: json.dumps(script if script.startswith("#!") else f"#!/bin/sh\n{script}"),
            environ.OPTIONS: json.dumps({"slurm": True, "name": "test", **options}),
            environ.STEP_KEY: KEY,
            environ.PYTHON: sys.executable,
        }
        with (self.directory / f"log-{rank}").open("wb") as log:
            command = [sys.executable, "-I", runner.__file__]
            return subprocess.Popen(command, env=variables, cwd=self.directory, stdout=log, stderr=log)

    def log(self, rank: int = 0) -> str:
        return (self.directory / f"log-{rank}").read_text(errors="replace")

    def codes(self) -> list[int]:
        return [process.wait(30) for process in self.processes]


@contextmanager
def ranks(directory: Path, script: str, size: int = 1, **options: Any) -> Iterator[Ranks]:
    found = Ranks(directory, script, size, **options)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.wait()


def test_srun_starts_tasks_on_all_hosts_with_what_the_script_exported(tmp_path: Path) -> None:
    script = """
    export MODE="two words"
    scontrol show hostnames
    srun sh -c 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $RANK/$WORLD_SIZE $MODE $CUDA_VISIBLE_DEVICES"' | sort
    srun -N1 -n1 --nodelist=n02 sh -c 'echo "only $SLURMD_NODENAME $SLURM_NTASKS"'
    exit 5
    """
    with ranks(tmp_path, script, 2, ntasks_per_node=2, gpus_per_task=1) as attempt:
        assert attempt.codes() == [5, 0]
    assert attempt.log().splitlines() == [
        "n01",
        "n02",
        "0 0 0 0/4 two words GPU-0a",
        "1 1 0 1/4 two words GPU-0b",
        "2 0 1 2/4 two words GPU-1a",
        "3 1 1 3/4 two words GPU-1b",
        "only n02 1",
    ]


def test_a_login_shell_finds_srun_behind_a_profile_that_sets_path_anew(tmp_path: Path) -> None:
    (tmp_path / ".bash_profile").write_text("PATH=/usr/bin:/bin\nmodule() { echo module $*; }\n")
    script = """#!/bin/bash -l
    module load cuda
    scontrol show hostnames
    srun sh -c 'echo task $SLURM_PROCID'
    [ "$0" = "${BASH_SOURCE[0]}" ] && echo "$# in $(basename "$0")"
    exit 3
    """
    with ranks(tmp_path, script) as attempt:
        assert attempt.codes() == [3]
    assert attempt.log().splitlines() == ["module load cuda", "n01", "task 0", "0 in slurm_script"]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/bin/bash", "-le"], ["/bin/bash", "-le", "-c"]),
        (["/bin/bash", "--login"], ["/bin/bash", "--login", "-c"]),
        (["/bin/bash", "-e"], ["/bin/bash", "-e", "/s", "a"]),
        (["/usr/bin/env", "bash -l"], ["/usr/bin/env", "bash -l", "/s", "a"]),
        (["/usr/bin/perl", "-l"], ["/usr/bin/perl", "-l", "/s", "a"]),
    ],
)
def test_other_scripts_are_given_to_their_interpreter(words: list[str], command: list[str]) -> None:
    started = runner.started_as(words, "/s", ["a"])
    assert started[: len(command)] == command
    assert started[-2:] == ["/s", "a"]


def test_tasks_are_counted_by_gpus_and_see_what_gpu_bind_says(tmp_path: Path) -> None:
    script = """
    echo "user $USER"
    srun --ntasks-per-gpu=1 sh -c 'echo "by gpu $SLURM_PROCID $CUDA_VISIBLE_DEVICES"' | sort
    srun --gpu-bind=none sh -c 'echo "none $SLURM_PROCID $CUDA_VISIBLE_DEVICES"' | sort
    srun --gpus-per-task=1 --gpu-bind=none -n1 sh -c 'echo "one $CUDA_VISIBLE_DEVICES"'
    """
    with ranks(tmp_path, script, ntasks_per_node=2, gpus_per_task=1, environ={"SLURM_JOB_USER": "ada"}) as attempt:
        assert attempt.codes() == [0]
    assert attempt.log().splitlines() == [
        "user ada",
        "by gpu 0 GPU-0a",
        "by gpu 1 GPU-0b",
        "none 0 GPU-0a,GPU-0b",
        "none 1 GPU-0a,GPU-0b",
        "one GPU-0a,GPU-0b",
    ]


def test_steps_that_ask_for_gpus_share_none_of_them(tmp_path: Path) -> None:
    """The usual way to fill a job with small runs: many srun at once, each with GPUs of its own.

    The first four wait for each other, so that all GPUs are used, however slowly the others start.
    """
    script = """
    for number in 1 2 3 4 5 6; do
        srun -N1 -n1 --gres=gpu:1 sh -c '
            mkdir "busy-$CUDA_VISIBLE_DEVICES" || { echo "two have $CUDA_VISIBLE_DEVICES"; exit 1; }
            touch "had-$CUDA_VISIBLE_DEVICES"
            for _ in $(seq 200); do [ "$(ls -d had-* | wc -l)" -lt 4 ] || break; sleep 0.05; done
            echo "$CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"; rmdir "busy-$CUDA_VISIBLE_DEVICES"' &
    done
    wait
    srun -N1 -n1 --gpus=3 true
    srun -n2 --gpus-per-task=1 sh -c 'echo "task $SLURM_PROCID $CUDA_VISIBLE_DEVICES"' | sort
    """
    with ranks(tmp_path, script, 2) as attempt:
        assert attempt.codes() == [0, 0]
    lines = attempt.log().splitlines()
    small = [line for line in lines if line.startswith("GPU-")]
    assert len(small) == 6
    assert set(small) == {f"GPU-{gpu} 1" for gpu in ("0a", "0b", "1a", "1b")}
    assert any("where this job has 2" in line for line in lines)
    assert lines[-2:] == ["task 0 GPU-0a", "task 1 GPU-1a"]
    assert not any("two have" in line for line in lines)


def test_a_step_that_waits_for_gpus_ends_with_its_srun(tmp_path: Path) -> None:
    script = """
    srun -n1 --gpus=2 sh -c 'touch has; while [ ! -e end ]; do sleep 0.05; done' & holder=$!
    while [ ! -e has ]; do sleep 0.05; done
    srun -n1 --gpus=1 touch never & waiter=$!
    sleep 0.5; kill -KILL $waiter; touch end; wait $holder
    srun -n1 --gpus=2 echo all free
    """
    with ranks(tmp_path, script) as attempt:
        assert attempt.codes() == [0]
    assert "all free" in attempt.log()
    assert not (tmp_path / "never").exists()


def test_the_exit_code_of_srun_is_the_largest_of_its_tasks(tmp_path: Path) -> None:
    script = (
        "srun -l sh -c 'echo hello; exit $SLURM_PROCID'; echo $?; srun nothing-of-this-name; echo $?; srun --nope x"
    )
    with ranks(tmp_path, script, ntasks=3) as attempt:
        assert attempt.codes() == [1]
    log = attempt.log()
    assert "n01: task 2: Exited with exit code 2" in log
    assert "1: hello" in log
    assert "\n2\n" in log
    assert "nothing-of-this-name: not found in PATH" in log
    assert "\n127\n" in log
    assert "the nearest is --nodes" in log


def test_a_killed_srun_and_an_ended_script_leave_no_task(tmp_path: Path) -> None:
    script = """
    srun sh -c 'echo $$ > first; exec sleep 600' &
    while [ ! -s first ]; do sleep 0.05; done
    kill -KILL $!
    while kill -0 "$(cat first)" 2> /dev/null; do sleep 0.05; done
    srun sh -c 'echo $$ > second; exec sleep 600' &
    while [ ! -s second ]; do sleep 0.05; done
    echo done
    """
    with ranks(tmp_path, script) as attempt:
        assert attempt.codes() == [0]
        second = int((tmp_path / "second").read_text())
        eventually_sync(lambda: not Path(f"/proc/{second}").exists())
    assert "done" in attempt.log()


def test_a_member_without_rank_0_ends_its_tasks_and_fails(tmp_path: Path) -> None:
    script = "srun sh -c 'echo $$ > task-$SLURM_PROCID; exec sleep 600'"
    with ranks(tmp_path, script, 2) as attempt:
        eventually_sync(lambda: (tmp_path / "task-1").exists() and (tmp_path / "task-1").read_text().strip())
        task = int((tmp_path / "task-1").read_text())
        attempt.processes[0].kill()
        assert attempt.processes[1].wait(30) == 1
        eventually_sync(lambda: not Path(f"/proc/{task}").exists())
    assert "rank 0 is gone" in attempt.log(1)


def test_a_stop_lets_the_script_end_by_itself(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 7' TERM\necho ready\nwhile :; do sleep 0.05; done"
    with ranks(tmp_path, script) as attempt:
        eventually_sync(lambda: "ready" in attempt.log())
        script_pid = int(subprocess.check_output(["pgrep", "-P", str(attempt.processes[0].pid)], text=True).split()[0])
        for pid in (attempt.processes[0].pid, script_pid):  # the platform signals every process
            os.kill(pid, signal.SIGTERM)
        assert attempt.codes() == [7]
    assert "saved" in attempt.log()


def test_nobody_without_the_key_runs_anything(tmp_path: Path) -> None:
    with ranks(tmp_path, "echo ready\nwhile [ ! -e end ]; do sleep 0.05; done") as attempt:
        eventually_sync(lambda: "ready" in attempt.log())
        with pytest.raises(protocol.NotTrusted):
            protocol.connect("127.0.0.1", attempt.port, "another key", {"role": "srun"})
        for noise in (
            b"",
            b"\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"[" * 100_000 + b"\n",
            b'{"mac": 5}\n',
            b"\xff" * 5000 + b"\n",
        ):
            with socket.create_connection(("127.0.0.1", attempt.port), timeout=5) as stranger:
                stranger.sendall(noise)
        # One that knows the key may be wrong, too, and is told so.
        for wrong in ({"role": "member", "rank": 7, "host": "x"}, {"role": "member", "rank": 0, "host": "x"}):
            channel = protocol.connect("127.0.0.1", attempt.port, KEY, wrong)
            answer = channel.receive()
            assert answer is not None
            assert answer["type"] == "refused"
            channel.close()
        (tmp_path / "end").touch()
        assert attempt.codes() == [0]


def test_a_server_that_does_not_know_the_key_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            try:
                connection, _ = listener.accept()
                connection.sendall(b'{"nonce":"x"}\n')
                connection.recv(4096)
                connection.sendall(b'{"mac":"0"}\n')
            finally:
                os._exit(0)
        with pytest.raises(protocol.NotTrusted):
            protocol.connect("127.0.0.1", listener.getsockname()[1], KEY, {"role": "srun"})
        os.waitpid(child, 0)


def test_output_and_error_go_into_files_and_into_the_log(tmp_path: Path) -> None:
    script = "echo one; echo two >&2; srun echo three"
    with ranks(tmp_path, script, output="%x-%j.out", error="%x.err") as attempt:
        assert attempt.codes() == [0]
    assert (tmp_path / "test-j-1.out").read_text() == "one\nthree\n"
    assert (tmp_path / "test.err").read_text() == "two\n"
    assert sorted(attempt.log().split()) == ["one", "three", "two"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "no directory"])
def test_a_hostile_name_of_an_output_writes_nowhere_else(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "job.out"
    match kind:
        case "link":
            target.symlink_to(victim)
        case "pipe":
            os.mkfifo(target)
        case "directory":
            target.mkdir()
    name = "nowhere/job.out" if kind == "no directory" else "job.out"
    with ranks(tmp_path, "echo hello", output=name) as attempt:
        assert attempt.codes() == [0], "the job goes on: its log has everything"
    assert "hello" in attempt.log()
    assert "is not written" in attempt.log()
    assert victim.read_text() == "precious"


def test_a_retry_goes_on_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old\n")
    for append, expected in ((True, "old\nnew\n"), (False, "new\n")):
        descriptor = output.open_output(str(tmp_path / "out"), {}, append=append)
        os.write(descriptor, b"new\n")
        os.close(descriptor)
        assert (tmp_path / "out").read_text() == expected
        (tmp_path / "out").write_text("old\n")


def test_a_warning_reaches_only_tasks_that_handle_it(tmp_path: Path) -> None:
    script = """
    srun sh -c 'if [ $SLURM_PROCID = 0 ]; then trap "echo warned; exit 3" USR1; fi
                touch ready-$SLURM_PROCID; while [ ! -e end ]; do sleep 0.05; done; echo unharmed' &
    while [ ! -e ready-0 ] || [ ! -e ready-1 ]; do sleep 0.05; done
    kill -USR1 $!
    while ! kill -0 $! 2> /dev/null; do sleep 0.05; done
    sleep 0.3; touch end; wait $!; echo "code $?"
    """
    with ranks(tmp_path, script, ntasks=2) as attempt:
        assert attempt.codes() == [0]
    assert "warned" in attempt.log()
    assert "unharmed" in attempt.log()
    assert "code 3" in attempt.log()


def test_a_warning_for_the_script_alone_is_passed_on(tmp_path: Path) -> None:
    script = "trap 'echo warned; exit 0' USR1\necho ready\nwhile :; do sleep 0.05; done"
    with ranks(tmp_path, script, passes_on="USR1") as attempt:
        eventually_sync(lambda: "ready" in attempt.log())
        attempt.processes[0].send_signal(signal.SIGUSR1)
        assert attempt.codes() == [0]
    assert "warned" in attempt.log()


@pytest.mark.parametrize(
    ("hosts", "ntasks", "per_node", "expected"),
    [
        (2, None, None, (1, 1)),
        (2, None, 4, (4, 4)),
        (3, 7, None, (3, 2, 2)),
        (3, 2, None, (1, 1)),
        (3, 5, 4, (4, 1)),
        (1, 8, None, (8,)),
        (2, 10, 4, (4, 6)),
    ],
)
def test_tasks_are_spread_in_blocks(
    hosts: int, ntasks: int | None, per_node: int | None, expected: tuple[int, ...]
) -> None:
    layout = spread([f"n{number}" for number in range(hosts)], ntasks, per_node)
    assert layout.tasks == expected
    assert [layout.first(node) for node in range(len(expected))] == [
        sum(expected[:node]) for node in range(len(expected))
    ]


def test_numbers_are_repeated_as_slurm_writes_them() -> None:
    assert environ.repeated([4, 4, 1]) == "4(x2),1"
    assert Layout(("a", "b"), (2, 3)).ntasks == 5
