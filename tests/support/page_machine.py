"""A machine on which a reader follows a page as root: with a root file system (overlayfs over this one), processes, a
name and a network (``tests/support/lan.py``) of its own. What is done there goes with it, and so does what runs there.

There is no systemd. ``tests/support/small_systemd.py`` reads the units and starts what they say.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

from tests.support.lan import Machine
from tests.support.pages import ROOT

START_TIMEOUT_S = 20
CHECKOUT = Path("/usr/local/src/gpu-platform")
"""Where a reader has the repository."""
_SET_UP = r"""
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=0755 machine "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" machine "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs -o mode=1777 machine tmp
mount -t tmpfs -o mode=0755 machine run
mkdir -p run/lock
touch run/internet
mount --bind "/proc/self/fd/$4" run/internet
mkdir -p root/.cache/pip
mount --bind "$5" root/.cache/pip
[ -e ".$6" ] || { mkdir -p ".$6"; mount --bind "$6" ".$6"; }  # a clone below /tmp
hostname "$2"
printf '%s\n' "$3" > etc/hosts
rm -rf etc/gpu-platform var/lib/gpu-platform opt/gpu-platform
mkdir oldroot
pivot_root . oldroot  # not only chroot: who enters the mount namespace comes to its root
exec chroot . bash -c '
umount -l /oldroot
rmdir /oldroot
echo up
exec </dev/null >/dev/null 2>&1
trap : CHLD
while :; do sleep 3600 & wait $!; done'
"""
_NOT_A_READERS = ("PYTHONPATH", "VIRTUAL_ENV", "COLUMNS", "PYTHONDONTWRITEBYTECODE")


def why_not() -> str | None:
    """Why there can be no such machine here. None: there can be one."""
    if os.geteuid() != 0:
        return "only root makes a machine of its own"
    missing = [name for name in ("unshare", "nsenter", "ip", "chroot") if shutil.which(name) is None]
    if missing:
        return f"there is no {', '.join(missing)} here: apt-get install util-linux iproute2"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlayfs"
    return None


class PageMachine:
    """One shell, as a reader has it, from the first command to the last. Use :func:`page_machine`."""

    def __init__(self, init: int, network: Machine, log: Path) -> None:
        self.network = network
        self._init = init
        self._log = log
        self._lines: Queue[str | None] = Queue()
        self._programs: list[subprocess.Popen[str]] = []
        self._shell = self._popen("bash", "--norc")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def path(self, inside: str | Path) -> Path:
        """A file of the machine, as this process sees it."""
        return Path(f"/proc/{self._init}/root") / str(inside).lstrip("/")

    def run(self, script: str, within_s: float = 60) -> str:
        """Type a piece of shell. Returns what it printed. Each simple command must succeed, as with ``set -e``."""
        # In the shell itself and not in a subshell: later pieces see its variables and functions. A trap and not
        # `set -e`, which would end the shell and take what it printed last.
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"set -Eu -o pipefail; trap 'FAILED=\"$BASH_COMMAND\"' ERR; FAILED=\n{script}\n"
                                "printf '\\n%s %s\\n' END-OF-PIECE \"$FAILED\"\n")  # fmt: skip
        self._shell.stdin.flush()
        printed: list[str] = []
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"{script}\ndid not end within {within_s} s:\n{''.join(printed)}") from None
            assert line is not None, f"{script}\nended the shell:\n{''.join(printed)}"
            if line.startswith("END-OF-PIECE"):
                break
            printed.append(line)
        said = "".join(printed).removesuffix("\n")
        with self._log.open("a") as log:
            log.write(f"$ {script.strip()}\n{said}\n")
        failed = line.removeprefix("END-OF-PIECE").strip()
        assert not failed, f"{failed}\nfailed in\n{script}\n{said}"
        return said

    def _popen(self, *command: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        enter = ["nsenter", "--target", str(self._init), *("--mount", "--pid", "--uts", "--ipc", "--net", "--root")]
        keep = {name: value for name, value in os.environ.items()
                if name not in _NOT_A_READERS and not name.startswith("GPU_PLATFORM_")}  # fmt: skip
        env = {**keep, "HOME": "/root", "TERM": "dumb", "DEBIAN_FRONTEND": "noninteractive", **(more or {})}
        started = subprocess.Popen(
            [*enter, "sh", "-c", 'cd /root; exec "$0" "$@"', *command],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._programs.append(started)
        return started

    def reap(self) -> None:
        """Forget the programs of a machine whose first process was killed, and so they were."""
        for program in self._programs:
            program.wait()
        self._reader.join()
        for program in self._programs:
            for stream in (program.stdin, program.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def page_machine(directory: Path, network: Machine, name: str, hosts: Mapping[str, str]) -> Iterator[PageMachine]:
    """A machine that is called ``name``. ``hosts``: name -> address, what it knows besides itself."""
    directory.mkdir()
    known = {"localhost": "127.0.0.1", name: "127.0.1.1", **hosts}
    lines = "\n".join(f"{address} {host}" for host, address in known.items())
    internet = os.open("/proc/self/ns/net", os.O_RDONLY)
    unshare = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"]
    downloads = Path.home() / ".cache" / "pip"  # what pip fetched for one machine it has for the next one
    downloads.mkdir(parents=True, exist_ok=True)
    arguments = [str(directory), name, lines, str(internet), str(downloads), str(ROOT)]
    try:
        with network.here():
            process = subprocess.Popen(
                [*unshare, "sh", "-c", _SET_UP, "sh", *arguments],
                pass_fds=[internet],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
    finally:
        os.close(internet)
    assert process.stdout is not None
    assert process.stderr is not None
    machine = None
    try:
        said = process.stdout.readline()
        assert said == "up\n", said + process.stderr.read()
        [init] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert Path(f"/proc/{init}/root/run/internet").exists(), "it has a root of its own"
        machine = PageMachine(init, network, directory.with_suffix(".typed"))
        _install_tools(machine)
        yield machine
    finally:
        process.send_signal(signal.SIGKILL)  # the kernel kills all of the machine with its first process
        process.wait()
        process.stdout.close()
        process.stderr.close()
        if machine is not None:
            machine.reap()


def _install_tools(machine: PageMachine) -> None:
    """What stands in for systemd, and what reaches the internet, which the machine's own network does not."""
    systemd = Path(__file__).with_name("small_systemd.py").read_text()
    for name in ("systemctl", "systemd-run", "journalctl"):
        _write(machine.path(f"/usr/local/sbin/{name}"), f"#!{sys.executable} -IS\n{systemd}")
    _write(machine.path("/usr/local/sbin/online"), '#!/bin/sh\nexec nsenter --net=/run/internet -- "$@"\n')
    _write(machine.path("/usr/local/sbin/apt-get"), '#!/bin/sh\nexec online /usr/bin/apt-get --yes "$@"\n')
    machine.run("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def with_checkout(machine: PageMachine) -> None:
    """Give the machine a checkout of the repository that every account may read, and go there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    target = machine.path(CHECKOUT)
    target.mkdir(parents=True)
    packed = subprocess.Popen(
        ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert packed.stdin is not None
    assert packed.stdout is not None
    unpack = subprocess.Popen(["tar", "--extract", "--directory", str(target), "--no-same-owner"], stdin=packed.stdout)
    packed.stdout.close()
    packed.stdin.write(listed)
    packed.stdin.close()
    assert (unpack.wait(), packed.wait()) == (0, 0)
    machine.run(f"cd {CHECKOUT}")


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
