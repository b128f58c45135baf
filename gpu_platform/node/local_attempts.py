"""The attempts of this host: which of them are open, and what their records on disk say."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_platform import disk_room
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, PreflightFailed
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.accounting import limits
from gpu_platform.node.accounting.limits import overdue
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.processes.stopping import attempt_processes, find_open_attempts, is_closed
from gpu_platform.node.system import paths, records
from gpu_platform.node.system.ports import free_ports


class LocalAttempts:
    """Every question is answered from disk, so a node worker that restarts gives the same answers.

    An attempt is open from its preparation until its last process and its stages are done.
    """

    def __init__(self, home: Path, host: str) -> None:
        self.home, self.host = home, host
        found = find_open_attempts(home)
        self._open = set(found)
        self._ports = {key: port for key, port in found.items() if port is not None}
        self._ports_lock = threading.Lock()
        self._lock = threading.Lock()
        self._resetting: Counter[str] = Counter()
        self._gpus: dict[AttemptKey, list[str]] = {}
        """GPUs of open attempts: whom a fault stops must be known while the disk hangs."""

    def open(self) -> list[AttemptKey]:
        """Attempts that were prepared or launched here and still have processes or open records."""
        return sorted(self._open, key=str)

    def finished_lately(self, within_s: float) -> list[AttemptKey]:
        """Attempts of which nothing is left here since at most ``within_s`` seconds."""
        since = time.time() - within_s
        found: list[AttemptKey] = []
        for path in self.home.glob(f"jobs/*/*/{records.FINISHED}"):
            with contextlib.suppress(FileNotFoundError):  # old records are removed meanwhile
                # The file is a second name of another record. Only the time of its last change says when it got it.
                if path.stat().st_ctime >= since:
                    found.append(AttemptKey(job_id=path.parent.parent.name, attempt=int(path.parent.name)))
        return sorted(found, key=str)

    def open_plans(self) -> list[HostPlan]:
        """The plans of the open attempts."""
        return [plan for key in self.open() if (plan := self.plan(key)) is not None]

    def opened(self, plan: HostPlan) -> None:
        """Note that the attempt is open from now on. Raises :class:`HostUnavailable` while a GPU of it is reset."""
        with self._lock:
            if busy := [uuid for uuid in plan.gpu_uuids if self._resetting[uuid]]:
                raise HostUnavailable(f"{self.host} resets GPU {busy[0]} just now: the attempt starts there later")
            self._open.add(plan.key)
            self._gpus[plan.key] = plan.gpu_uuids

    @contextlib.contextmanager
    def kept_free(self, gpu_uuids: Sequence[str]) -> Iterator[None]:
        """No attempt with one of these GPUs is open here inside the block. Raises :class:`PreflightFailed` if one
        is."""
        for key in self.open():
            self.gpus_of(key)  # read once, not under the lock
        with self._lock:
            for uuid in gpu_uuids:
                if holders := [key for key, gpus in self._gpus.items() if key in self._open and uuid in gpus]:
                    raise PreflightFailed(
                        f"GPU {uuid} cannot be reset: attempt {holders[0]} has it on {self.host}",
                        kind=blame(FailureCause.GPU_UNFIT),
                        gpu_uuid=uuid,
                    )
            self._resetting.update(gpu_uuids)
        try:
            yield
        finally:
            with self._lock:
                self._resetting.subtract(gpu_uuids)

    def ended(self, key: AttemptKey) -> None:
        """Note that nothing of the attempt is left."""
        with self._lock:
            self._open.discard(key)
            self._gpus.pop(key, None)
        self._ports.pop(key, None)

    def take_ports(self, key: AttemptKey) -> range:
        """Choose ports for an attempt in the host's network. No other attempt gets them while it is open.

        Raises :class:`PreflightFailed` if there are none.
        """
        with self._ports_lock:
            ports = free_ports(port for taker, port in self._ports.items() if taker != key)
            self._ports[key] = ports.start
        return ports

    def remember_port(self, key: AttemptKey, port: int) -> None:
        """Note the attempt's rendezvous port, so that no other attempt gets it."""
        self._ports[key] = port

    def port(self, key: AttemptKey) -> int | None:
        """The first of the attempt's own ports here. None: it is not prepared."""
        return self._ports.get(key)

    def directory(self, key: AttemptKey) -> Path:
        """The directory of the attempt's records."""
        return paths.attempt_dir(self.home, key)

    def plan(self, key: AttemptKey) -> HostPlan | None:
        """What the attempt was to start here. None: it is unknown, or its records were removed."""
        record = records.read_record(f"{self.directory(key)}/{records.PLAN}")
        return None if record is None else HostPlan.model_validate(record)

    def has_environment(self, key: AttemptKey) -> bool:
        """True if the attempt has files of an environment here: code, or a container."""
        record = records.read_record(f"{self.directory(key)}/{records.PLAN}")
        return record is not None and record.get("environment") is not None

    def rank(self, key: AttemptKey, rank: int) -> RankProcess:
        """One rank, whether it was started or not."""
        return RankProcess(paths.rank_dir(self.home, key, rank), rank, self.host)

    def ranks(self, key: AttemptKey) -> list[RankProcess]:
        """The ranks that have a record here, in order."""
        try:
            names = os.listdir(self.directory(key))
        except FileNotFoundError:
            return []
        numbers = sorted(int(name.removeprefix("rank-")) for name in names if name.startswith("rank-"))
        return [self.rank(key, number) for number in numbers]

    def running_ranks(self, key: AttemptKey) -> int:
        """How many ranks of the attempt have started here and have not ended."""
        return sum(rank.started is not None and rank.ended is None for rank in self.ranks(key))

    def is_closed(self, key: AttemptKey) -> bool:
        """True once the attempt was told to stop here: nothing of it may start any more."""
        return is_closed(self.home, key)

    def finished(self, key: AttemptKey) -> Path:
        """The file that exists once the stages have finished the attempt."""
        return self.directory(key) / records.FINISHED

    def note_finished(self, key: AttemptKey) -> None:
        """Note that the stages have finished the attempt, which is closed. Only the name counts, so a second name of
        another record is enough: that is cheaper than a file."""
        try:
            os.link(self.directory(key) / records.CLOSED, self.finished(key))
        except OSError:  # there is such a file, or the file system has no second names
            self.finished(key).touch()

    def stopped_because(self, key: AttemptKey, at_ms: int) -> str | None:
        """Why the attempt was stopped here at or before ``at_ms`` (Unix time). None: it was not."""
        record = records.read_record(str(self.directory(key) / records.CLOSED))
        return record["reason"] if record is not None and record["at_ms"] <= at_ms else None

    def overdue(self, key: AttemptKey) -> tuple[FailureCause, str] | None:
        """Why this host ended the attempt for its time limit or deadline. None: it did not."""
        return overdue(self.directory(key))

    def change_limit(self, key: AttemptKey, time_limit_s: int | None) -> None:
        """Give the attempt another time limit, if it is open here."""
        if key in self._open:
            limits.change_limit(self.directory(key), time_limit_s)

    def gpus_of(self, key: AttemptKey) -> list[str]:
        """GPU uuids that the attempt got here. Empty if it is unknown. Of an open attempt they are read once."""
        if (known := self._gpus.get(key)) is not None:
            return known
        plan = self.plan(key)
        found = [] if plan is None else plan.gpu_uuids
        if plan is not None and key in self._open:
            self._gpus[key] = found
        return found

    def on_gpu(self, uuid: str) -> list[AttemptKey]:
        """Open attempts that hold the GPU or a share of it."""
        return [key for key in self.open() if uuid in self.gpus_of(key)]

    def pids_on(self, uuid: str) -> set[int]:
        """Pids of open attempts that hold the GPU."""
        return {
            process.pid for key in self.on_gpu(uuid) for process in attempt_processes(self.home, key, self.ranks(key))
        }

    def forget(self, key: AttemptKey) -> None:
        """Remove the records of a stopped attempt. Its logs stay, and so does the mark that it is closed.

        Raises :class:`IllegalTransition` while it is open.
        """
        if key in self._open:
            raise IllegalTransition(subject=f"attempt {key}", current="open", wanted="forgotten", allowed=["stopped"])
        directory = self.directory(key)
        kept = (records.LOG, records.LOGS_REMOVED, records.CLOSED)
        for path in [*directory.glob("rank-*/*"), *directory.iterdir()]:
            if path.is_file() and not path.name.startswith(kept):
                path.unlink(missing_ok=True)
        for rank in directory.glob("rank-*"):
            with contextlib.suppress(OSError):  # its log is kept
                rank.rmdir()

    def check_room(self, reserve_mib: int | None) -> None:
        """See :func:`check_room`."""
        check_room(self.home, self.host, reserve_mib)

    def remove_secrets(self, plan: HostPlan) -> None:
        """Empty the records of an attempt that has ended and still hold its environment: the orders of ranks whose
        supervisors were killed. Raises ``OSError``."""
        for rank in self.ranks(plan.key):
            with contextlib.suppress(FileNotFoundError):
                os.truncate(f"{rank.directory}/{records.ORDER}", 0)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write records inside the block. Raises :class:`HostUnavailable` if the disk is full, read-only or broken."""
        try:
            yield
        except OSError as error:
            if not disk_room.is_fault_of_disk(error.errno):
                raise
            raise HostUnavailable(
                f"{self.host} cannot write its records: {disk_room.told_of_error(_whose(self.home), error)}"
            ) from error


def check_room(home: Path, host: str, reserve_mib: int | None) -> None:
    """Raise :class:`HostUnavailable` unless the disk of the host's records has room beyond the reserve.

    What runs already still writes its records then, and its end is known. ``reserve_mib``: see ``disk_room``.
    """
    room = disk_room.DiskRoom.of(home, disk_room.kept_by_starts(reserve_mib))
    if room.is_full():
        why = f"{room.why()}: node.disk_reserve_mib"
        raise HostUnavailable(f"{host} starts nothing new: {disk_room.told(_whose(home), why)}")


def _whose(home: Path) -> str:
    return f"its records ({home})"
