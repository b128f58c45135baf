"""``srun`` inside a script: it asks the manager for a step, prints what the tasks write, and ends with their code."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_platform.slurm.amounts import read_gpu_bind, read_gpus, read_gres
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.patterns import filled, has_field
from gpu_platform.steps.environ import STEP_KEY
from gpu_platform.steps.output import names_of, open_output
from gpu_platform.steps.protocol import Channel, Message, NotTrusted, connect

PORT = "GPU_PLATFORM_STEP_PORT"
ADDRESS = "GPU_PLATFORM_STEP_ADDRESS"

OPTIONS = table(
    "ntasks|n= nodes|N= ntasks-per-node= cpus-per-task|c= gpus-per-task= nodelist|w= exclude|x= relative|r= label|l "
    "gpus|G= gres= gpus-per-node= "
    "output|o= error|e= chdir|D= export= kill-on-bad-exit|K? open-mode= "
    # Without a meaning here, see _NO_MEANING:
    "mpi= cpu-bind= gpu-bind= mem-bind= mem= mem-per-cpu= mem-per-gpu= exclusive? exact "
    "overlap overcommit|O job-name|J= time|t= unbuffered|u quiet|Q verbose|v wait|W= threads-per-core= hint= "
    "distribution|m= input|i= jobid= partition|p= account|A= qos|q= cpus-per-gpu= immediate|I? no-kill|k? propagate? "
    "accel-bind= ntasks-per-gpu= network= comment= container-image= container-mounts= container-workdir= "
    "container-name= container-save= container-env= container-mount-home no-container-mount-home container-writable "
    "container-readonly container-remap-root no-container-remap-root container-entrypoint no-container-entrypoint "
    "container= container-id= multi-prog pty? pack-group= het-group= task-prolog= task-epilog= "
    "prolog= epilog= slurmd-debug= preserve-env|E version|V "
    "acctg-freq= bb= bbf= bcast? cluster= cluster-constraint= clusters|M= compress? constraint|C= contiguous "
    "core-spec|S= cores-per-socket= cpu-freq= deadline= delay-boot= dependency|d= disable-status|X export-file= "
    "extra= extra-node-info|B= gid= gpu-freq= gpus-per-socket= gres-flags= hold|H licenses|L= mail-type= "
    "mail-user= mcs-label= mincpus= msg-timeout= nice? nodefile|F= ntasks-per-core= ntasks-per-socket= "
    "ntasks-per-tres= oversubscribe|s? power= prefer= priority= profile= reboot reservation= resv-ports? send-libs? "
    "signal= sockets-per-node= spread-job stepmgr switches= thread-spec= threads|T= time-min= tmp= treewidth= "
    "tres-bind= tres-per-task= uid= use-min-nodes wait-for-children wckey= x11?"
)
_CONTAINER = "containers are not started: run the container's program, e.g. apptainer exec"
_REFUSED = {
    "pty": "a step has no terminal: use gpu-platform jobs exec",
    "multi-prog": "several programs in one step: start one srun for each, with & and wait",
    "container-image": _CONTAINER,
    "container-name": _CONTAINER,
    "container": _CONTAINER,
    "container-id": _CONTAINER,
    "gpus-per-socket": "GPUs are given by host: write --gpus-per-node",
    "nodefile": "the file with names is not read: write --nodelist=n1,n2",
    "tres-per-task": "write --cpus-per-task and --gpus-per-task",
    "het-group": "there are no heterogeneous jobs: use groups (gpu-platform submit --file)",
    "pack-group": "there are no heterogeneous jobs: use groups (gpu-platform submit --file)",
}
_SAID = {
    "mpi": "no PMI server is started, so MPI programs see one rank each",
    "input": "tasks have no stdin",
    "time": "the time limit of the job counts",
    "signal": "the job is warned, with --signal of sbatch",
    "bcast": "the program must be on the hosts",
    "export-file": "the file is not read",
    "x11": "displays are not forwarded",
}
"""What makes a difference that somebody should know. The other options without a meaning change nothing."""


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a step. Returns the exit code: the largest of the tasks, as srun does."""
    try:
        given, command = OPTIONS.read(words)
        asked = {one.name: one.value for one in given}
        if "version" in asked:
            sys.stdout.write("slurm 24.05 (gpu-platform)\n")
            return 0
        for name, why in _REFUSED.items():
            if name in asked:
                raise WrongOption(f"--{name}: {why}")
        if not command:
            raise WrongOption("there is no program to run")
        request = _request(asked, command, environ)
        output = _Output(asked, environ)
    except (WrongOption, ValueError, OSError) as error:
        _say(str(error))
        return 1
    for name in asked:
        if name in _SAID:
            _say(f"--{name} has no effect: {_SAID[name]}")
    try:
        channel = connect(environ[ADDRESS], int(environ[PORT]), environ[STEP_KEY], {"role": "srun"})
        channel.send(request)
    except (OSError, NotTrusted, ValueError) as error:
        _say(f"the manager of this job's steps does not answer: {error}")
        return 1
    _forward_signals(channel)
    return _follow(channel, output, kill=_kills(asked))


def _request(asked: Mapping[str, str], command: list[str], environ: Mapping[str, str]) -> Message:
    found: dict[str, Any] = {"type": "run", "command": command, "directory": asked.get("chdir") or os.getcwd()}
    for name in ("ntasks", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "relative"):
        if name in asked:
            found[name.replace("-", "_")] = _number(name, asked[name])
    for name, field in (("gpus", "gpus"), ("gpus-per-node", "gpus_per_node")):
        if name in asked:
            found[field] = read_gpus(asked[name]).number
    if "gres" in asked and "gpus_per_node" not in found and (gpus := read_gres(asked["gres"])[0]) is not None:
        found["gpus_per_node"] = gpus.number
    _share_gpus(found, asked, environ)
    for name in ("nodelist", "exclude"):
        if name in asked:
            found[name] = asked[name]
    found["environ"] = _exported(asked.get("export", "ALL"), environ)
    return found


def _share_gpus(found: Message, asked: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Tasks for each GPU, and GPUs for each task."""
    if "ntasks-per-gpu" in asked and not {"ntasks", "ntasks_per_node"} & set(found):
        each, of_host = _number("ntasks-per-gpu", asked["ntasks-per-gpu"]), int(environ.get("SLURM_GPUS_ON_NODE", "0"))
        if (total := found.get("gpus")) is not None:
            found["ntasks"] = each * total
        elif count := found.get("gpus_per_node", of_host):
            found["ntasks_per_node"] = each * count
        if each == 1:
            found["gpus_per_task"] = 1
    if (own := read_gpu_bind(asked.get("gpu-bind", ""))) is not None:
        found["gpus_per_task"] = own or None


def _number(name: str, text: str) -> int:
    text = text.partition("-")[0] if name == "nodes" else text.rpartition(":")[2]  # 2-4 nodes; a100:1
    if not (text.isascii() and text.isdecimal()):
        raise WrongOption(f"--{name} {text[:40]!r} is not a number")
    return int(text[:9])


def _exported(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """``ALL``, ``NONE``, or names and ``NAME=VALUE`` with commas between them. The platform's own always go."""
    words = [word for word in text.split(",") if word]
    every = not words or "ALL" in words
    kept = {
        name: value
        for name, value in environ.items()
        if every or name.startswith(("SLURM_", "GPU_PLATFORM_")) or name in ("PATH", "HOME", "USER")
    }
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            kept[name] = value
        elif name in environ and name not in ("ALL", "NONE", "NIL"):
            kept[name] = environ[name]
    return kept


def _kills(asked: Mapping[str, str]) -> bool:
    return "kill-on-bad-exit" in asked and asked["kill-on-bad-exit"] != "0"


class _Output:
    """Where the tasks' output goes: this process's own, or files by pattern, one for each task where the name says
    so."""

    def __init__(self, asked: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self._patterns = {1: asked.get("output"), 2: asked.get("error") or asked.get("output")}
        self._values = names_of(environ, environ.get("SLURM_JOB_NAME", "job"))
        self._append = asked.get("open-mode") == "append"
        self._label = "label" in asked
        self._files: dict[str, int] = {}
        self._begins_line: dict[tuple[int, int], bool] = {}
        for pattern in self._patterns.values():
            if pattern is not None:
                filled(pattern, self._values)  # a wrong pattern starts nothing

    def write(self, message: Message) -> None:
        block, task, stream = base64.b64decode(message["data"]), int(message["task"]), int(message["stream"])
        if self._label:
            block = self._labelled(block, task, stream)
        descriptor = self._descriptor(stream, task, str(message["host"]))
        view = memoryview(block)
        while view:
            view = view[os.write(descriptor, view) :]

    def _descriptor(self, stream: int, task: int, host: str) -> int:
        pattern = self._patterns[stream]
        if pattern is None:
            return stream
        values = {**self._values, "t": str(task), "N": host.split(".")[0]}
        name = filled(pattern, values) if has_field(pattern, "tNn") else filled(pattern, self._values)
        if name not in self._files:
            self._files[name] = open_output(name.replace("%", "%%"), {}, append=self._append)
        return self._files[name]

    def _labelled(self, block: bytes, task: int, stream: int) -> bytes:
        label, lines = f"{task}: ".encode(), block.split(b"\n")
        begins = self._begins_line.get((task, stream), True)
        self._begins_line[(task, stream)] = block.endswith(b"\n")
        last = lines.pop() if block.endswith(b"\n") else None
        marked = [(label if begins or place else b"") + line for place, line in enumerate(lines)]
        return b"\n".join(marked) + (b"\n" if last is not None else b"")


def _forward_signals(channel: Channel) -> None:
    """What this process is sent goes to all tasks."""

    def forward(number: int) -> None:
        with contextlib.suppress(OSError):
            channel.send({"type": "signal", "number": number})

    def handle(number: int, _frame: object) -> None:
        # A handler must not wait for the channel's lock, which the main thread may hold.
        threading.Thread(target=forward, args=(number,), daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, handle)


def _follow(channel: Channel, output: _Output, *, kill: bool) -> int:
    while (message := channel.receive()) is not None:
        match message["type"]:
            case "out":
                try:
                    output.write(message)
                except OSError as error:
                    _say(f"the output cannot be written: {error.strerror}: {error.filename or ''}")
                    channel.send({"type": "stop"})
                    return 1
            case "exit":
                code, why = int(message["code"]), message.get("why")
                if code:
                    ended = f"Exited with exit code {code}" if code <= 128 else f"Killed by signal {code - 128}"
                    _say(f"{message['host']}: task {message['task']}: {why or ended}")
                    if kill:
                        channel.send({"type": "stop"})
            case "end":
                return min(255, int(message["code"]))
            case "refused":
                _say(str(message["why"]))
                return 1
            case _:
                continue
    _say("the manager of this job's steps is gone")
    return 1


def _say(text: str) -> None:
    sys.stderr.write(f"srun: error: {text}\n" if not text.startswith("--") else f"srun: {text}\n")
    sys.stderr.flush()
