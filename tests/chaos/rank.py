"""A rank of the chaos tests: it holds its GPUs as a CUDA program would, and writes down that it lives.

Run as ``python rank.py DIRECTORY SECONDS EXIT_CODE [stubborn] [forks] [relaxed]``; only the standard library, to start
fast. Nothing here asks the platform anything: see ``truth`` for what is made of the marks.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from typing import Any

_kept: list[Any] = []
"""Open files and sockets, inherited by children: the kernel frees them when the last process that has them is gone."""


def main(directory: str, seconds: str, exit_code: str, *manners: str) -> None:
    env = os.environ
    gpus = [gpu for gpu in env["GPU_PLATFORM_GPUS"].split(",") if gpu]
    if int(env["LOCAL_WORLD_SIZE"]) > 1:
        gpus = [gpus[int(env["LOCAL_RANK"])]]
    who = {"job": env["GPU_PLATFORM_JOB_ID"], "attempt": int(env["GPU_PLATFORM_ATTEMPT"]), "rank": int(env["RANK"])}
    host, fencing = env["GPU_PLATFORM_HOST"], "relaxed" if "relaxed" in manners else "strict"
    begin = {**who, "mark": "begin", "pid": os.getpid(), "host": host, "gpus": gpus, "fencing": fencing}
    mark(directory, {**begin, "watched": be_watched(directory, who)})
    take_gpus(directory, who, gpus)
    look_for_other_attempts(directory, who)
    if "stubborn" in manners:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "forks" in manners and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    time.sleep(float(seconds))
    mark(directory, {**who, "mark": "exit", "code": int(exit_code)})
    sys.exit(int(exit_code))


def be_watched(directory: str, who: dict[str, Any]) -> bool:
    """The observer sees this connection end when the last process of the rank is gone, however it ends."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"{directory}/observer")
        connection.send(json.dumps(who).encode())
    except OSError:
        return False
    _kept.append(connection)
    return True


def take_gpus(directory: str, who: dict[str, Any], gpus: list[str]) -> None:
    for gpu in gpus:
        file = open(f"{directory}/gpu-{gpu}", "a")  # noqa: SIM115 - kept open
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            mark(directory, {**who, "mark": "gpu_taken", "gpu": gpu})
        _kept.append(file)


def look_for_other_attempts(directory: str, who: dict[str, Any]) -> None:
    """Each rank holds a lock and only then looks for those of other attempts: of two, the later one sees the other."""
    home = f"{directory}/job-{who['job']}"
    os.makedirs(home, exist_ok=True)
    ours = open(f"{home}/{who['attempt']}.{who['rank']}", "a")  # noqa: SIM115 - kept open
    fcntl.flock(ours, fcntl.LOCK_EX)
    _kept.append(ours)
    for name in os.listdir(home):
        attempt = int(name.split(".")[0])
        if attempt == who["attempt"]:
            continue
        with open(f"{home}/{name}") as theirs:
            try:
                fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                mark(directory, {**who, "mark": "together", "other": attempt})


def mark(directory: str, fields: dict[str, Any]) -> None:
    """One line, appended by one write: ranks share the file."""
    line = json.dumps({**fields, "t": time.clock_gettime(time.CLOCK_BOOTTIME)}) + "\n"
    file = os.open(f"{directory}/truth", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, line.encode())
    os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
