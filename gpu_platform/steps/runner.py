"""The program of a job that was submitted as a script: ``python -I runner.py [ARGUMENTS OF THE SCRIPT]``.

A script with #SBATCH lines runs once, on rank 0. The other ranks carry out its steps until it has ended. A script with
#GPU lines only runs on every rank, as any program of a job.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":  # it runs isolated (-I), so it finds its own package by the place of this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_platform.slurm.patterns import filled
from gpu_platform.steps.environ import (
    OPTIONS,
    PYTHON,
    SCRIPT,
    STDERR,
    STDIN,
    STDOUT,
    STEP_KEY,
    Layout,
    Options,
    script_environ,
    spread,
)
from gpu_platform.steps.manager import StepManager
from gpu_platform.steps.node import Node
from gpu_platform.steps.output import Tee, names_of, open_output, say
from gpu_platform.steps.protocol import Channel, NotTrusted, connect
from gpu_platform.steps.tasks import handles

MEMBERS_PATIENCE_S = 600.0
"""How long rank 0 waits for the other ranks before it gives up, and they for it."""
_LOOK_S = 0.2
COMMANDS = Path(__file__).resolve().parent / "bin"
"""srun, scontrol and their like, as scripts find them in PATH."""
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
PORT = "GPU_PLATFORM_STEP_PORT"
ADDRESS = "GPU_PLATFORM_STEP_ADDRESS"

_stopping = threading.Event()


class CannotRun(Exception):
    """The script cannot be run. ``code``: the exit code of the job."""

    def __init__(self, message: str, code: int = 126) -> None:
        super().__init__(message)
        self.code = code


def main() -> NoReturn:
    """Run the script, and end with its exit code."""
    # The tasks and the script get these signals, too. This process stays until they have ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _stopping.set())
    try:
        code = _run(dict(os.environ), sys.argv[1:])
    except CannotRun as error:
        say(str(error))
        code = error.code
    except OSError as error:
        say(f"the script cannot be run: {error.strerror}: {error.filename or ''}")
        code = 126
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(platform: dict[str, str], arguments: list[str]) -> int:
    try:
        text = json.loads(platform[SCRIPT])
        options = Options.read(json.loads(platform.get(OPTIONS) or "{}"))
    except (KeyError, ValueError, TypeError) as error:
        raise CannotRun(f"the job has no script, or its options cannot be read: {error}") from None
    host = platform.get("GPU_PLATFORM_HOST", "localhost")
    if not options.slurm:
        return _run_script(
            text, arguments, options, script_environ(platform, options, Layout((host,), (1,)), 0), platform
        )
    rank, size = int(platform.get("RANK", "0")), int(platform.get("WORLD_SIZE", "1"))
    own = Node(host, platform)
    port = int(platform.get("GPU_PLATFORM_PORTS", "0-0").rpartition("-")[2])
    key = platform.get(STEP_KEY) or ""
    if not key:
        raise CannotRun("this host gave the job no key for its steps: its release is older than the script needs")
    if rank:
        return _serve(own, platform, options, rank, port, key)
    try:
        manager = StepManager(key, port, size, own, everywhere=size > 1)
    except OSError as error:
        raise CannotRun(f"port {port} of this job cannot be used for srun: {error.strerror}", 1) from None
    signal.signal(signal.SIGTERM, lambda *_: _stop_waiting(manager))
    hosts = manager.wait_for_members(MEMBERS_PATIENCE_S, _stopping)
    if hosts is None:
        if _stopping.is_set():
            return 128 + signal.SIGTERM
        raise CannotRun(f"ranks {manager.missing()} did not come within {MEMBERS_PATIENCE_S:.0f} s", 1)
    if "GPU_PLATFORM_HOSTFILE" in platform or len(set(hosts)) < len(hosts):
        manager.close()
        raise CannotRun("a script with #SBATCH lines needs one rank for each host, so no --launcher: leave it out", 2)
    layout = layout_of(hosts, options, platform)
    environ = own.environ = _environ(platform, options, layout, 0, port)
    defaults = {
        "gpus_per_task": options.gpus_per_task,
        "cpus_per_task": options.cpus_per_task,
        "ntasks_per_node": options.ntasks_per_node,
    }
    manager.open_for_steps(layout, defaults, environ)
    try:
        return _run_script(text, arguments, options, environ, platform)
    finally:
        own.stop()
        manager.close()


def layout_of(hosts: tuple[str, ...], options: Options, platform: Mapping[str, str]) -> Layout:
    """The tasks of the job. With GPUs for each task and no number of tasks, as many as there are GPUs for."""
    ntasks, per_node = options.ntasks, options.ntasks_per_node
    if ntasks is None and per_node is None and options.gpus_per_task:
        gpus = len([one for one in platform.get("GPU_PLATFORM_GPUS", "").split(",") if one])
        per_node = max(1, gpus // options.gpus_per_task)
    found = spread(hosts, ntasks, per_node)
    # Hosts without a task are of the job all the same.
    return Layout(hosts, (*found.tasks, *(0,) * (len(hosts) - len(found.tasks))))


def _environ(platform: dict[str, str], options: Options, layout: Layout, rank: int, port: int) -> dict[str, str]:
    """The script's environment on one host: with ``srun`` and where it finds the manager."""
    environ = script_environ(platform, options, layout, rank) | {PYTHON: sys.executable}
    address = "127.0.0.1" if len(layout.hosts) == 1 else platform["MASTER_ADDR"]
    return environ | {PORT: str(port), ADDRESS: address, "PATH": f"{COMMANDS}:{environ.get('PATH', os.defpath)}"}


def _stop_waiting(manager: StepManager) -> None:
    _stopping.set()
    threading.Thread(target=manager.wake, daemon=True).start()  # a handler must not wait for the manager's lock


def _serve(own: Node, platform: dict[str, str], options: Options, rank: int, port: int, key: str) -> int:
    """Carry out orders of rank 0 until it lets this rank go. Without it, end all tasks and fail."""
    channel = _find_manager(
        platform["MASTER_ADDR"], port, key, {"role": "member", "rank": rank, "host": own.host, "gpus": own.gpus}
    )
    own.report = channel.send
    while (message := channel.receive()) is not None:
        if message["type"] == "bye":
            own.stop()
            return 0
        if message["type"] == "refused":
            raise CannotRun(f"rank 0 does not take this rank: {message['why']}", 1)
        if message["type"] == "layout":
            layout = Layout(tuple(message["hosts"]), tuple(message["tasks"]))
            own.environ = _environ(platform, options, layout, rank, port)
            continue
        own.send(message)
    own.stop()
    say("rank 0 is gone: the steps on this host end")
    return 1


def _find_manager(address: str, port: int, key: str, hello: dict[str, Any]) -> Channel:
    deadline = time.monotonic() + MEMBERS_PATIENCE_S
    while True:
        try:
            return connect(address, port, key, hello)
        except (OSError, NotTrusted) as error:
            if _stopping.is_set() or time.monotonic() > deadline:
                raise CannotRun(f"rank 0 does not answer at {address}:{port}: {error}", 1) from None
        time.sleep(_LOOK_S)


def _run_script(
    text: str, arguments: list[str], options: Options, environ: dict[str, str], platform: Mapping[str, str]
) -> int:
    values = names_of({**platform, **environ}, options.name)
    if options.slurm:
        environ = environ | _paths(options, values)
    append = options.open_mode == "append" or (
        options.open_mode is None and platform.get("GPU_PLATFORM_ATTEMPT") != "1"
    )
    tees = _outputs(options, values, append=append)
    out, err = tees if tees is not None else (None, None)
    with tempfile.TemporaryDirectory(prefix="gpu-platform-script-") as directory:
        path = os.path.join(directory, "slurm_script")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
            file.write(text)
        started: list[int] = []
        if options.passes_on is not None:
            _pass_on(options.passes_on, started)
        with open(_input(options, values), "rb") as stdin:
            try:
                process = subprocess.Popen(
                    started_as(interpreter(text), path, arguments),
                    stdin=stdin,
                    stdout=out.write_end if out is not None else None,
                    stderr=err.write_end if err is not None else None,
                    env=environ,
                )
            except OSError as error:
                raise CannotRun(f"{interpreter(text)[0]}, of the script's first line: {error.strerror}", 127) from None
        started.append(process.pid)
        code = process.wait()
        for tee in {id(one): one for one in (out, err) if one is not None}.values():
            tee.finish()
    return code if code >= 0 else 128 - code


def _paths(options: Options, values: Mapping[str, str]) -> dict[str, str]:
    """The files of ``--output``, ``--error`` and ``--input``, as the script finds them."""
    patterns = ((STDOUT, options.output), (STDERR, options.error or options.output), (STDIN, options.input))
    return {name: os.path.abspath(filled(pattern, values)) for name, pattern in patterns if pattern is not None}


def _pass_on(name: str, started: list[int]) -> None:
    """Give the script the warning that this process gets. One without a handler would die of it.

    ``started``: the script, once it runs. This process must survive a warning that comes before.
    """
    number = signal.Signals[f"SIG{name}"]

    def handle(*_: object) -> None:
        for script in started:
            if handles(script, number):
                os.kill(script, number)

    signal.signal(number, handle)


def interpreter(text: str) -> list[str]:
    """The program of a script's first line and its one argument, as the kernel reads it (execve(2)). Raises
    :class:`CannotRun`.

    The script is given to it by name, so that a script also runs from a file system that executes nothing.
    """
    first = text.partition("\n")[0]
    words = first.removeprefix("#!").strip().split(None, 1) if first.startswith("#!") else []
    if not words:
        raise CannotRun(f"the script begins with {first[:40]!r}: its first line names the program, e.g. #!/bin/bash")
    return words


def started_as(words: list[str], path: str, arguments: list[str]) -> list[str]:
    """The command line of a script. ``words``: its interpreter.

    A login shell (``#!/bin/bash -l``) reads the profile of the host, which sets PATH anew. So ``srun`` is put back
    after it. The script is read into that shell, because functions of the profile (``module``, ``conda``) are only
    there.
    """
    flags = words[1].split() if len(words) > 1 else []
    is_login = any(flag == "--login" or re.fullmatch("-[a-zA-Z]*l[a-zA-Z]*", flag) for flag in flags)
    if not is_login or os.path.basename(words[0]) not in _SHELLS:
        return [*words, path, *arguments]
    read = f'PATH={shlex.quote(str(COMMANDS))}:"$PATH"; . "$0"'
    return [*words, "-c", read, path, *arguments]


def _outputs(options: Options, values: Mapping[str, str], *, append: bool) -> tuple[Tee, Tee] | None:
    """Where the script writes stdout and stderr, if its options name files."""
    if options.output is None and options.error is None:
        return None
    null = os.open(os.devnull, os.O_WRONLY)
    out = _opened(options.output, values, append=append)
    tee = Tee(1, null if out is None else out)
    if options.error is None:
        return tee, tee
    err = _opened(options.error, values, append=append)
    return tee, Tee(2, null if err is None else err)


def _opened(pattern: str | None, values: Mapping[str, str], *, append: bool) -> int | None:
    if pattern is None:
        return None
    try:
        return open_output(pattern, values, append=append)
    except (OSError, ValueError) as error:
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        say(f"the file {shlex.quote(pattern)} is not written ({reason}); this log has everything")
        return None


def _input(options: Options, values: Mapping[str, str]) -> str:
    return os.devnull if options.input is None else filled(options.input, values)


if __name__ == "__main__":
    main()
