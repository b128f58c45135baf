"""A power cut: what processes wrote but did not sync is gone, or is there in parts.

::

    power = PowerCut(root=state_dir, disk=tmp_path / "disk")
    process = subprocess.Popen(power.argv(["python", "-m", "workers.service"]))   # any program, Go's too
    …
    power.freeze()                     # from now on no fsync returns, so nothing more is acknowledged
    process.kill()                     # and everything else that runs on the state
    power.cut(random.Random(seed))     # ``root`` is now what the disk would have after the cut
    process = subprocess.Popen(power.argv([…]))                                    # power is back

For a :class:`LocalCluster`: ``await power.start_cluster(cluster)``, and ``await power.cut_cluster(cluster, rng)``.
How it sees syncs: ``keep_synced.c``. Directories are taken as durable; SQLite's ``-shm`` files never are.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.proc import open_files
from workers.local.cluster import LocalCluster

_SOURCE = Path(__file__).with_name("keep_synced.c")
_SECTOR = 512


def why_not() -> str | None:
    """Why power cuts cannot be simulated here; None: they can."""
    if shutil.which("cc") is None:
        return "there is no C compiler"
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return "the kernel has no seccomp"
    return None if "user_notif" in actions else "the kernel's seccomp cannot ask a supervisor (user_notif)"


class PowerCut:
    """``root``: the directory on the disk that loses power. ``disk``: one of its own, for what is safe.

    What other processes than those of :meth:`argv` wrote counts as not synced: see :meth:`keep_everything`.
    """

    def __init__(self, root: Path, disk: Path) -> None:
        self.root = root.resolve()
        self.disk = disk.resolve()
        self._tool = self.disk / "keep_synced"
        self.disk.mkdir(parents=True)
        options = ["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
        subprocess.run(["cc", *options, "-o", self._tool, _SOURCE], check=True)
        self._begin()

    def argv(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs ``argv`` on the disk, with all its descendants."""
        return [str(self._tool), str(self.root), str(self.disk), *argv]

    def prepare(self, cluster: LocalCluster) -> None:
        """Prepare it in a process of :meth:`argv`: what that does not sync is gone after a cut."""
        argv = self.argv([sys.executable, "-m", "tests.power_cut.preparer"])
        subprocess.run(argv, input=pickle.dumps(cluster), check=True)

    async def start_cluster(self, cluster: LocalCluster) -> None:
        """Prepare and start it. Everything that writes below ``root`` is a process of :meth:`argv`."""
        await asyncio.to_thread(self.prepare, cluster)
        for child in cluster.children:
            child.argv = self.argv(child.argv)
        await cluster.start()

    def freeze(self) -> None:
        """No fsync that is under way, or comes, returns any more."""
        supervisors = self._supervisors()
        for pid in supervisors:
            _signal(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while any(_state(pid) not in "TZX" for pid in supervisors):
            assert time.monotonic() < deadline, "a supervisor does not stop"
            time.sleep(0.001)

    def cut(self, chance: random.Random | None = None) -> None:
        """Make ``root`` what is on the disk. Nobody may use it now. ``chance``: of what was not synced, some is there:
        whole files, or some of their sectors. Without it all of that is gone."""
        for pid in self._supervisors():
            _signal(pid, signal.SIGKILL)
        after = self.root.with_name(f"{self.root.name}.after-the-cut")
        before = self.root.with_name(f"{self.root.name}.before-the-cut")
        for directory, _, _ in os.walk(self.root):
            (after / Path(directory).relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        for path in sorted(self._durable_names().keys() | (self._current_names() if chance else set())):
            content = self._content(path, chance)
            if content is not None:
                target = after / path.relative_to(self.root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                if path.exists():
                    shutil.copystat(path, target)
        self.root.rename(before)
        after.rename(self.root)
        shutil.rmtree(before)
        self.keep_everything()

    def keep_everything(self) -> None:
        """All that is in ``root`` now is on the disk, and nothing else.

        To be called also after a process that is not of :meth:`argv` wrote there: its syncs were not seen.
        """
        deadline = time.monotonic() + 10
        while self._supervisors():  # each ends with the last process that it serves
            assert time.monotonic() < deadline, "a process still runs on the disk"
            time.sleep(0.001)
        for name in ("data", "names"):
            shutil.rmtree(self.disk / name)
        self._begin()
        program = "import os, sys\nfor path in sys.argv[1:]:\n    os.fsync(os.open(path, os.O_RDONLY))\n"
        paths = [str(path) for path in self.root.rglob("*") if path.is_file()]
        for begin in range(0, len(paths), 1000):
            subprocess.run(self.argv(["python3", "-c", program, *paths[begin : begin + 1000]]), check=True)

    async def cut_cluster(self, cluster: LocalCluster, chance: random.Random | None = None) -> None:
        """The whole machine loses power; ``cluster`` has ended then, and a new one may start on its state."""
        await asyncio.to_thread(self.freeze)
        for child in cluster.children:
            if child._keeper is not None:
                child._keeper.cancel()
            if child.pid is not None:
                _signal(child.pid, signal.SIGKILL)
        await asyncio.to_thread(self._kill_ranks)
        await asyncio.to_thread(self.cut, chance)
        await cluster.stop()

    def _begin(self) -> None:
        for name in ("data", "names"):
            (self.disk / name).mkdir()
        (self.disk / "pids").write_text("")

    def _supervisors(self) -> list[int]:
        return [int(line) for line in (self.disk / "pids").read_text().split() if _state(int(line)) not in "ZX"]

    def _kill_ranks(self) -> None:
        """Everything that has a file under ``root`` open, or has its name: supervisors, spawners, ranks."""
        deadline = time.monotonic() + 20
        while pids := [pid for pid in _others() if self._works_here(pid)]:
            assert time.monotonic() < deadline, f"{pids} do not die"
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _works_here(self, pid: int) -> bool:
        """Ranks name ``root`` in their environment; spawners and supervisors have none, but keep files open."""
        if f"={self.root}".encode() in _environ(pid):
            return True
        return any(Path(target).is_relative_to(self.root) for target in open_files(pid))

    def _durable_names(self) -> dict[Path, str]:
        """Path -> key of the inode that it names on the disk."""
        found: dict[Path, str] = {}
        for names in (self.disk / "names").iterdir():
            directory = Path(names.name.replace("%", "/"))
            if names.suffix == ".new":
                continue
            for line in names.read_text().splitlines():
                key, _, name = line.partition(" ")
                if not name.endswith("-shm"):
                    found[directory / name] = key
        return found

    def _current_names(self) -> set[Path]:
        files = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return {path for path in files if not path.name.endswith("-shm")}

    def _content(self, path: Path, chance: random.Random | None) -> bytes | None:
        key = self._durable_names().get(path)
        synced = None if key is None else self._synced(key)
        if chance is None or not path.exists():
            return synced
        current = path.read_bytes()
        if key is None or not key.startswith(f"{path.stat().st_ino}-"):  # the name itself was not synced
            return chance.choice([synced, current])
        assert synced is not None
        return chance.choice([synced, current, _torn(synced, current, chance)])

    def _synced(self, key: str) -> bytes:
        file = self.disk / "data" / key
        return file.read_bytes() if file.exists() else b""


def _torn(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """Each sector is the old or the new one."""
    size = chance.choice([len(old), len(new)])
    old, new = old.ljust(size, b"\0"), new.ljust(size, b"\0")
    sectors = range(0, size, _SECTOR)
    return b"".join((chance.choice([old, new]))[at : at + _SECTOR] for at in sectors)[:size]


def _others() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _state(pid: int) -> str:
    """The letter of proc(5); X: gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "X"


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
