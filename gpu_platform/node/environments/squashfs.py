"""Unpacks an image file (SquashFS, or a SIF that holds one) for one attempt. Standard library only: it is a step.

It runs as a process of its own, which becomes the account of the job before it opens the image: it reads what its user
may read. The image is opened once, must be a regular file, and is read by its descriptor from then on. What it would
become is counted before anything is written (squashfs-tools lists it), and looked at while it is written. Who made the
image chose every number in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
import subprocess
import time
from typing import Any

from gpu_platform.node.environments.unpacking import become

MAGIC = b"hsqs"
_BLOCK = 4096
_SEARCHED = 64 << 20
"""How far into a SIF its SquashFS is searched: before it are headers and small partitions."""
_LOOK_S = 0.25
_LINE = re.compile(rb"([-bcdlps])\S{9}\s+\S+\s+(\d+)")
"""A line of ``unsquashfs -lln``: mode, owner, size. Devices have numbers instead of a size."""
_LONGEST_LINE = 1 << 16
_CACHE_MIB = "64"


def unpack(
    image: str, place: str, most_bytes: int, most_files: int, account: tuple[int, int, list[int]] | None
) -> dict[str, Any]:
    """Unpack ``image`` into ``place``/rootfs. Returns ``{}``, or ``{"wrong": why it cannot be used}``."""
    os.chdir(place)  # only root gets there by its name
    if account is not None:
        become(*account)
    try:
        fd = _opened(image)
    except OSError as error:
        return {"wrong": f"the account of the job cannot read it ({error.strerror})"}
    size = os.fstat(fd).st_size
    offset = _offset(fd, size)
    if offset is None:
        return {"wrong": "there is no SquashFS in it"}
    os.set_inheritable(fd, True)
    source = ["-processors", "1", "-offset", str(offset)]
    wrong = _counted(fd, source, most_bytes, most_files)
    if wrong is not None:
        return {"wrong": wrong}
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    return _written(fd, source, most_bytes, most_files)


def _opened(path: str) -> int:
    """A descriptor of a regular file. Neither a pipe nor a device is waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "it is no regular file")
    return fd


def _offset(fd: int, size: int) -> int | None:
    """Where the SquashFS begins in the file: at 0, or, in a SIF, behind its headers."""
    for at in range(0, min(size, _SEARCHED), _BLOCK):
        if os.pread(fd, len(MAGIC), at) == MAGIC:
            return at
    return None


def _counted(fd: int, source: list[str], most_bytes: int, most_files: int) -> str | None:
    """Why the image becomes too large, or None. Each name counts with the whole size of its file."""
    command = ["unsquashfs", *source, "-no-progress", "-lln", _name_of(fd)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, pass_fds=[fd]
    )
    assert process.stdout is not None
    size = files = 0
    with process.stdout as lines:
        while line := lines.readline(_LONGEST_LINE):
            if (found := _LINE.match(line)) is None:
                continue
            files += 1
            size += int(found[2]) if found[1] == b"-" else 0
            if size > most_bytes or files > most_files:
                process.kill()
                break
    said = b"" if process.stderr is None else process.stderr.read(4096)
    process.wait()
    if size > most_bytes:
        asked, allowed = size / (1 << 30), most_bytes / (1 << 30)
        return f"unpacked it has {asked:.3g} GiB or more, and {allowed:.3g} GiB are the most (node.image_max_gib)"
    if files > most_files:
        return f"it has more than {most_files} files and directories, which are the most (node.image_max_files)"
    if not files:
        return said.decode(errors="replace").strip()[-300:] or "it is no SquashFS"
    return None


def _written(fd: int, source: list[str], most_bytes: int, most_files: int) -> dict[str, Any]:
    command = ["unsquashfs", "-no-xattrs", "-quiet", "-no-progress", "-da", _CACHE_MIB, "-fr", _CACHE_MIB]
    command += [*source, "-dest", "rootfs", _name_of(fd)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[fd]
    )
    took_s, said = 0.0, b""
    while True:
        try:
            # A look at a large tree takes long: then it is done less often.
            _, said = process.communicate(timeout=max(_LOOK_S, 10 * took_s))
            break
        except subprocess.TimeoutExpired:
            began = time.monotonic()
            size, files = measured(".")
            took_s = time.monotonic() - began
            if size > most_bytes or files > most_files:
                process.kill()
                process.communicate()
                return {"wrong": f"unpacked it has more than {most_bytes >> 20} MiB or {most_files} files"}
    # Device nodes cannot be made by this account, and are not needed: then unsquashfs answers 2, and goes on.
    if process.returncode in (0, 2) and os.path.isdir("rootfs"):
        return {}
    return {"wrong": said.decode(errors="replace").strip()[-300:] or f"unsquashfs ended with {process.returncode}"}


def measured(directory: str) -> tuple[int, int]:
    """(bytes on the disk, names) of what is below the directory. Links count once, and none is followed."""
    size = files = 0
    waiting = [directory]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512 // max(status.st_nlink, 1)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
    return size, files


def _name_of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
