"""A rank of the chaos tests: it holds its GPUs as a CUDA program would, and tells when somebody else does.

Run as ``python rank.py DIRECTORY SECONDS EXIT_CODE [stubborn] [forks]``; only the standard library, to start fast.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time


def main(directory: str, seconds: str, exit_code: str, *manners: str) -> None:
    env = os.environ
    name = f"{env['GPU_PLATFORM_JOB_ID']} {env['GPU_PLATFORM_ATTEMPT']} {env['RANK']}"
    gpus = env["GPU_PLATFORM_GPUS"].split(",")
    if int(env["LOCAL_WORLD_SIZE"]) > 1:
        gpus = [gpus[int(env["LOCAL_RANK"])]]
    # Kept open, and inherited by children: the kernel frees a lock when the last process that has it is gone.
    files = [open(f"{directory}/{gpu}", "a") for gpu in gpus]  # noqa: SIM115
    for gpu, file in zip(gpus, files, strict=True):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"{directory}/overlaps", f"{name} found {gpu} in use")
    note(f"{directory}/ledger", name)
    if "stubborn" in manners:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "forks" in manners and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    time.sleep(float(seconds))
    sys.exit(int(exit_code))


def note(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
