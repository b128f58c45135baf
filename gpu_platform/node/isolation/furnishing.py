"""What a jail gets after bubblewrap has made it and before any rank enters: directories of the job, a home, terminals.

Done by a process of our own inside the jail's mount namespace. So directories are mounted by descriptor, which
bubblewrap cannot do. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from gpu_platform.node.isolation import sandbox
from gpu_platform.node.isolation.cgroups.cgroup_view import show_only, trees_of_cgroups
from gpu_platform.node.isolation.passwd import Account
from gpu_platform.node.isolation.secret_files import IN_JAIL, SecretFiles, write_secrets
from gpu_platform.node.isolation.workdirs import (
    AS_ACCOUNT,
    Directory,
    Named,
    RefusedDirectory,
    Tree,
    attach,
    is_below,
    may_enter,
    open_tree,
    verify,
)

MAX_TERMINALS = 256
"""Terminals of one attempt. Without a limit one attempt takes all that the host has (kernel.pty.max)."""
_MS_NOSUID, _MS_NOEXEC, _MS_REMOUNT = 2, 8, 32
_libc = ctypes.CDLL(None, use_errno=True)


def open_trees(directories: Sequence[Directory], account: Account, private: Sequence[str]) -> list[Tree]:
    """Open the directories of a job, outer ones first. ``private``: directories of the platform.

    Raises :class:`RefusedDirectory`, also for a working directory that is, contains or is below a private one.
    """
    for directory in directories:
        for own in private if directory.access == AS_ACCOUNT else ():
            if is_below(directory.path, own) or is_below(own, directory.path):
                raise RefusedDirectory(f"{directory.path} contains or is a directory of the platform: name another")
    outer_first = sorted(directories, key=lambda directory: directory.path.count("/"))
    return [open_tree(directory, account) for directory in outer_first]


class Furniture(NamedTuple):
    """What the jail of one attempt gets."""

    account: Account
    """If it is a temporary one, its home is made."""
    cgroup: str
    """The name of the attempt's cgroup. Those of others are hidden."""
    trees: Sequence[Tree]
    """Directories to mount."""
    named: Sequence[Named] = ()
    """What bubblewrap has mounted by name, to be verified."""
    secrets: SecretFiles | None = None


def furnish(holder_fd: int, furniture: Furniture) -> None:
    """Put the furniture into the jail, and limit its terminals. ``holder_fd``: see ``sandbox``.

    Raises :class:`RefusedDirectory`, or ``OSError`` if the kernel refuses.
    """
    read_end, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _furnish(holder_fd, furniture, answer)
    os.close(answer)
    with open(read_end, "rb") as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    if not text and status == 0:
        return
    kind, message = json.loads(text) if text else ("error", "the process that furnishes the jail was killed")
    if kind == "refused":
        raise RefusedDirectory(message)
    raise OSError(5, message)


def _furnish(holder_fd: int, furniture: Furniture, answer: int) -> NoReturn:
    account, trees = furniture.account, furniture.trees
    code = 1
    try:
        cgroups = trees_of_cgroups()
        sandbox.enter(holder_fd)
        show_only(furniture.cgroup, cgroups)
        for named in furniture.named:
            verify(named)
        for tree in trees:
            attach(tree)
        for tree in trees:
            may_enter(tree.directory.path, account)
        _limit_terminals()
        if account.is_temporary:
            os.mkdir(account.home, 0o700)
            os.chown(account.home, account.uid, account.gid)
        if furniture.secrets is not None:
            write_secrets(furniture.secrets, IN_JAIL, account.uid, account.gid)
        code = 0
    except RefusedDirectory as error:
        os.write(answer, json.dumps(["refused", str(error)]).encode())
    except OSError as error:
        os.write(answer, json.dumps(["error", f"{error.filename or 'mount'}: {error.strerror}"]).encode())
    finally:
        os._exit(code)


def _limit_terminals() -> None:
    options = f"newinstance,ptmxmode=0666,mode=620,max={MAX_TERMINALS}".encode()
    if _libc.mount(b"devpts", b"/dev/pts", b"devpts", _MS_REMOUNT | _MS_NOSUID | _MS_NOEXEC, options) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "/dev/pts")
