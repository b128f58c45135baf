"""The host's side of a job: prepare, launch, watch and stop the ranks of an attempt.

Every operation may be repeated, by this node worker or after its restart: the state is in the records on disk
(``records``) and in the kernel, not in this process. If the process dies, ranks and their supervisors go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, PreflightFailed
from gpu_platform.domain.hosts.cuda import newest_cuda
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import (
    AttemptKey,
    HostExits,
    HostPlan,
    Launched,
    LaunchRequest,
    Prepared,
    RankExit,
    Stopped,
    StopRequest,
    WatchRequest,
)
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.spec import Fencing
from gpu_platform.hosts.accounting.accounting import read_usage
from gpu_platform.hosts.accounting.limits import overdue_message
from gpu_platform.hosts.checkpoints.checkpointing import Checkpointing
from gpu_platform.hosts.health import gpu_reset, host_reset
from gpu_platform.hosts.health.health import HealthMonitor
from gpu_platform.hosts.isolation.cpus import plain_affinity
from gpu_platform.hosts.isolation.isolation import JailPlanner, choose_isolation
from gpu_platform.hosts.isolation.orders import LeaseTerms, RankOrder
from gpu_platform.hosts.nvml.library import NvmlLibrary
from gpu_platform.hosts.processes import preflight
from gpu_platform.hosts.processes.environment import base_environ, rank_environ
from gpu_platform.hosts.processes.logs import LogRead, read_log
from gpu_platform.hosts.processes.ranks import RankProcess, wait_record
from gpu_platform.hosts.processes.spawner_client import SpawnerClient
from gpu_platform.hosts.processes.stopping import (
    attempt_processes,
    close_attempt,
    end_attempt,
    find_open_attempts,
    is_closed,
)
from gpu_platform.hosts.stages import Provision, Stage, Stages
from gpu_platform.hosts.system import lease_file, paths, records
from gpu_platform.hosts.system.ports import free_port
from gpu_platform.settings import Settings

log = structlog.get_logger(__name__)

NO_LEASE = "no_lease"
"""Key in the details of a :class:`HostUnavailable`: this host has no lease, so it may start nothing now."""
LEASE_PATIENCE_S = 100.0
"""How long a step waits for a lease. Shorter than the ``start_to_close_timeout`` of these steps."""
_LEASE_LOOK_S = 0.1
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class HostAgent:
    """Thread-safe. ``watch`` and ``stop`` are coroutines. Everything else blocks: mostly for milliseconds, but
    ``reset_gpu``, ``launch`` and what asks a driver may take seconds. Call it from a thread, not from an event loop.

    ``health`` is paused while a real GPU is reset (an open NVML handle would hold the device).
    ``dev`` is where device nodes of GPUs are found. ``stages`` are run around each attempt.
    ``lease_file``: ranks start and run only under the lease in it (``lease_file.py``); None: without one.
    """

    def __init__(
        self,
        settings: Settings,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        health: HealthMonitor | None = None,
        *,
        dev: Path = Path("/dev"),
        stages: Sequence[Stage] = (),
        lease_file: Path | None = None,
    ) -> None:
        self._lease = None if lease_file is None else str(lease_file)
        self._node = settings.node
        self._home = paths.node_dir(settings.state_dir.resolve(), settings.node.name)
        self._checkpoints = (settings.node.checkpoint_root or settings.state_dir / "checkpoints").resolve()
        self.checkpointing = Checkpointing(settings.node, self._checkpoints, self._home)
        self._nvml = nvml
        self._inventory = inventory
        self._health = health
        self._spawner = SpawnerClient()
        isolation = choose_isolation(settings.node)
        self._jail_planner = None
        if isolation.jailed:
            self._jail_planner = JailPlanner(
                settings, isolation, inventory, home=self._home, checkpoints=self._checkpoints, dev=dev
            )
        self._locks: defaultdict[AttemptKey, threading.Lock] = defaultdict(threading.Lock)
        self._ports: dict[AttemptKey, int] = {}
        self._stages = Stages(stages)
        found = find_open_attempts(self._home)
        self._open = set(found)
        self._ports |= {key: port for key, port in found.items() if port is not None}
        plans = [plan for key in sorted(self._open, key=str) if (plan := self._plan(key)) is not None]
        for plan in plans:
            self._show_processes(plan)
        # An attempt that was finished before is not recovered: its stages must not finish twice.
        self._stages.recover([plan for plan in plans if not self._finished(plan.key).exists()])

    @property
    def host(self) -> str:
        """The name of this host."""
        return self._node.name

    def close(self) -> None:
        """Let the spawner end. Ranks and their supervisors go on."""
        self._spawner.close()

    def prepare(self, plan: HostPlan) -> Prepared:
        """Check GPUs, workdir and command, and choose a rendezvous port. A repeated call gives the first answer again.

        Raises :class:`PreflightFailed` (``details["kind"]`` user or hardware, ``gpu_uuid``) and
        :class:`IllegalTransition` when the attempt was stopped already.
        """
        with self._locks[plan.key]:
            return self._prepare(plan)

    async def wait_for_lease(self, plan: HostPlan) -> None:
        """Wait for a lease under which ``plan`` may start, for at most ``LEASE_PATIENCE_S`` seconds.

        The control plane may be away just now, and no attempt may end for that. Returns as well when no such lease can
        come; :meth:`prepare` and :meth:`launch` then say why.
        """
        path, deadline = self._lease, time.monotonic() + LEASE_PATIENCE_S
        while path and lease_file.may_start_later(path, plan.term) and time.monotonic() < deadline:  # noqa: ASYNC110  # a file
            await asyncio.sleep(_LEASE_LOOK_S)

    def launch(self, request: LaunchRequest) -> Launched:
        """Start every rank of the plan that was not started yet. Raises as :meth:`prepare` does,
        and :class:`HostUnavailable` when the host cannot start processes now."""
        plan = request.plan
        with self._locks[plan.key]:
            own = self._prepare(plan)
            ranks = [self._rank(plan.key, spec.rank) for spec in plan.ranks]
            if any(rank.started is None for rank in ranks):
                self._start(plan, request.rendezvous or own)
            for rank in ranks:
                if (failed := rank.ended) is not None and failed.failure is not None:
                    raise _not_executable(rank.rank, failed.failure, failed.exit_code)
            started = [wait_record(rank) for rank in ranks]
        self._show_processes(plan)
        return Launched(host=self._node.name, ranks=started, prepared=own if request.rendezvous is None else None)

    async def watch(self, request: WatchRequest) -> HostExits:
        """Return when all ranks have ended, or as soon as one has failed (``first_failure``).

        No polling. A rank that has no record, or whose supervisor was killed, has ``vanished``:
        its processes may live still, so ``stop`` must follow.
        """
        waiting = {asyncio.create_task(self._rank(request.key, rank).wait_ended()) for rank in request.ranks}
        exits: list[RankExit] = []
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                exits += [task.result() for task in done]
                failed = [rank for rank in exits if rank.exit_code != 0]
                if failed:
                    first = min(failed, key=lambda rank: (rank.ended_at_ms, rank.rank))
                    return HostExits(host=self._node.name, exits=_by_rank(exits), first_failure=first)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return HostExits(host=self._node.name, exits=_by_rank(exits))

    async def stop(self, request: StopRequest) -> Stopped:
        """Close the attempt and end all its processes here; returns when none is left.

        Also for an attempt that this host never saw: it is then closed in advance.
        """
        key = request.key
        try:
            with self._writing():
                await asyncio.to_thread(close_attempt, self._home, key, request.reason, request.grace_s)
        except HostUnavailable:  # the disk is full: end the processes, and fail, since only a closed attempt is stopped
            await end_attempt(self._home, key, self._ranks(key), request.grace_s)
            raise
        # A launch in progress here either sees the attempt closed, or is done when its lock is free.
        await asyncio.to_thread(self._wait_for_launch, key)
        ranks = self._ranks(key)
        grace_s = request.grace_s
        if request.save_first and (plan := self._plan(key)) is not None:
            grace_s = await self.checkpointing.before_stop(plan, ranks, grace_s)
        if self._health is not None:
            self._health.expect_kill(self.gpus_of(key))
        killed = await end_attempt(self._home, key, ranks, grace_s)
        await asyncio.to_thread(self._finish, key)
        self._open.discard(key)
        self._ports.pop(key, None)
        self._locks.pop(key, None)
        exits = [rank.exit_now() for rank in ranks if rank.started is not None]
        usage = read_usage(paths.attempt_dir(self._home, key))
        return Stopped(host=self._node.name, exits=exits, killed_processes=killed, usage=usage)

    def attempts(self) -> list[AttemptKey]:
        """Attempts that were prepared or launched here and still have processes or open records."""
        return sorted(self._open, key=str)

    def checkpoints(self, keys: Sequence[AttemptKey]) -> list[SavedCheckpoint]:
        """The newest complete checkpoint of each of ``keys`` that has one. For one caller at a time."""
        return self.checkpointing.newest(keys)

    def ask_for_checkpoint(self, key: AttemptKey) -> int:
        """Ask the attempt's program to save now. Returns how many processes got a signal.

        Raises :class:`IllegalTransition` if the attempt does not run here.
        """
        plan, ranks = self._plan(key), self._ranks(key)
        if plan is None or is_closed(self._home, key):
            raise IllegalTransition(subject=f"attempt {key}", current="not running", wanted="asked", allowed=[])
        with self._writing():
            return self.checkpointing.ask(plan, ranks)

    def sweep_checkpoints(self) -> list[str]:
        """Remove surplus checkpoints of the jobs that run here; see ``checkpoints/retention.py``."""
        return self.checkpointing.retention.sweep(
            [plan for key in self.attempts() if (plan := self._plan(key)) is not None]
        )

    def stopped_because(self, key: AttemptKey, at_ms: int) -> str | None:
        """Why the attempt was stopped here at or before ``at_ms`` (Unix time). None: it was not."""
        record = records.read_record(str(paths.attempt_dir(self._home, key) / records.CLOSED))
        return record["reason"] if record is not None and record["at_ms"] <= at_ms else None

    def overdue_message(self, key: AttemptKey) -> str | None:
        """Why this host ended the attempt for its time limit. None: it did not."""
        return overdue_message(paths.attempt_dir(self._home, key))

    def running_ranks(self, key: AttemptKey) -> int:
        """How many ranks of the attempt have started here and have not ended."""
        return sum(rank.started is not None and rank.ended is None for rank in self._ranks(key))

    def gpus_of(self, key: AttemptKey) -> list[str]:
        """GPU uuids that the attempt got here. Empty if the attempt is unknown."""
        plan = self._plan(key)
        return [] if plan is None else plan.gpu_uuids

    def attempts_on(self, uuid: str) -> list[AttemptKey]:
        """Open attempts that hold the GPU or a share of it."""
        return [key for key in self.attempts() if uuid in self.gpus_of(key)]

    def forget(self, key: AttemptKey) -> None:
        """Remove the records of a stopped attempt. Its logs stay, and so does the mark that it is closed.

        Raises :class:`IllegalTransition` while it is open.
        """
        if key in self._open:
            raise IllegalTransition(subject=f"attempt {key}", current="open", wanted="forgotten", allowed=["stopped"])
        directory = paths.attempt_dir(self._home, key)
        kept = (records.LOG, records.LOGS_REMOVED, records.CLOSED)
        for path in [*directory.glob("rank-*/*"), *directory.iterdir()]:
            if path.is_file() and not path.name.startswith(kept):
                path.unlink(missing_ok=True)
        for rank in directory.glob("rank-*"):
            with contextlib.suppress(OSError):  # its log is kept
                rank.rmdir()

    def gpu_processes(self, uuid: str) -> list[int]:
        """Pids that use the GPU: those that NVML lists, and all processes of attempts that hold it."""
        return sorted(gpu_reset.processes_on(self._nvml, uuid) | self.attempt_pids(uuid))

    def attempt_pids(self, uuid: str) -> set[int]:
        """Pids of open attempts that hold the GPU."""
        return {
            process.pid
            for key in self.attempts_on(uuid)
            for process in attempt_processes(self._home, key, self._ranks(key))
        }

    def reset_gpu(self, uuid: str) -> None:
        """Reset a GPU that nothing uses. A real GPU takes seconds. Raises :class:`PreflightFailed` if it fails."""
        if pids := self.gpu_processes(uuid):
            raise PreflightFailed(
                f"GPU {uuid} cannot be reset: processes {pids} hold it",
                kind=blame(FailureCause.GPU_UNFIT),
                gpu_uuid=uuid,
            )
        pause = self._health.paused() if self._health and self._nvml.must_close_to_reset else contextlib.nullcontext()
        with pause:
            gpu_reset.reset_gpu(self._nvml, uuid, timeout_s=self._node.reset_timeout_s)
        if self._health is not None:
            self._health.was_reset(uuid)

    def reset_all_gpus(self) -> None:
        """Reset all GPUs in one command. The host must be drained. Raises :class:`PreflightFailed`."""
        for gpu in self._inventory.gpus:
            if pids := self.gpu_processes(gpu.uuid):
                raise PreflightFailed(
                    f"the GPUs cannot be reset together: processes {pids} hold GPU {gpu.index}",
                    kind=blame(FailureCause.GPU_UNFIT),
                )
        pause = self._health.paused() if self._health and self._nvml.must_close_to_reset else contextlib.nullcontext()
        with pause:
            host_reset.reset_all_gpus(self._nvml, timeout_s=self._node.reset_timeout_s)
        if self._health is not None:
            for gpu in self._inventory.gpus:
                self._health.was_reset(gpu.uuid)

    def verify_gpu(self, uuid: str) -> None:
        """Raise :class:`PreflightFailed` (``kind="hardware"``) unless the GPU answers and is fit for work."""
        gpu_reset.verify_gpu(self._nvml, uuid)

    def read_log(self, key: AttemptKey, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogRead:
        """Read up to ``limit`` bytes of a rank's log from ``offset`` (negative: from the end).

        Raises ``FileNotFoundError`` while there is no log, :class:`NotFound` if it was removed.
        """
        return read_log(self._home, key, rank, offset, limit)

    def _prepare(self, plan: HostPlan) -> Prepared:
        key = plan.key
        if is_closed(self._home, key):
            raise _closed(key)
        directory = paths.attempt_dir(self._home, key)
        record = records.read_record(str(directory / records.PREPARED))
        if record is not None:
            return Prepared.model_validate(record)
        self._check_lease(plan)
        for uuid in plan.gpu_uuids:
            self.verify_gpu(uuid)
        for program in plan.programs:
            environ = base_environ(program)
            version = newest_cuda(program.cuda, self._inventory.cuda_installations)
            if version is not None:
                cuda = f"{self._inventory.cuda_installations[version]}/bin"
                environ["PATH"] = f"{environ['PATH']}:{cuda}" if program.cuda is None else f"{cuda}:{environ['PATH']}"
            preflight.check_command(plan, program.command, environ)
        if self._jail_planner is not None:
            self._jail_planner.check(plan)
        with self._writing():
            directory.mkdir(parents=True, exist_ok=True)
            paths.checkpoint_dir(self._checkpoints, key).mkdir(parents=True, exist_ok=True)
            # From here on the attempt must be finished, whatever happens.
            records.write_record(str(directory / records.PLAN), plan.model_dump(mode="json"), durable=False)
        self._open.add(key)
        try:
            self._stages.prepare(plan)
            resume = self.checkpointing.resume(plan)
        except Exception:
            self._stages.finish(plan)
            self.checkpointing.finish(plan)
            (directory / records.PLAN).unlink()
            self._open.discard(key)
            raise
        port = free_port(self._ports.values())
        prepared = Prepared(
            host=self._node.name,
            address=self._node.address,
            rendezvous_port=port,
            resume_from=None if resume.checkpoint is None else resume.checkpoint.path,
            resume_note=resume.note,
        )
        with self._writing():
            records.write_record(str(directory / records.PREPARED), prepared.model_dump(mode="json"), durable=False)
        self._ports[key] = port
        return prepared

    def _check_lease(self, plan: HostPlan) -> None:
        """Raise :class:`HostUnavailable` without a lease: one may come soon, and a host that was LOST gets a new
        plan."""
        why = None if self._lease is None else lease_file.why_not_start(self._lease, plan.term)
        if why is not None:
            raise HostUnavailable(f"{plan.host} does not start attempt {plan.key}: {why}", **{NO_LEASE: True})

    def _start(self, plan: HostPlan, rendezvous: Prepared) -> None:
        self._check_lease(plan)
        checkpoint_dir = paths.checkpoint_dir(self._checkpoints, plan.key)
        shown = self.checkpointing.shown(plan, rendezvous.resume_from)
        provision = self._stages.provides(plan) + Provision(readable=shown)
        account = {} if self._jail_planner is None else self._jail_planner.environ(plan)
        orders = [
            RankOrder(
                rank_dir=str(paths.rank_dir(self._home, plan.key, spec.rank)),
                attempt_dir=str(paths.attempt_dir(self._home, plan.key)),
                argv=plan.program(spec).command,
                env=rank_environ(plan, spec, rendezvous, home=self._home, checkpoint_dir=checkpoint_dir)
                | self.checkpointing.environ(plan)
                | provision.environ
                | provision.of_rank(spec.rank)
                | account,
                workdir=plan.workdir,
                host=plan.host,
                log_file_bytes=self._node.log_file_bytes,
                log_files=self._node.log_files,
                lease=self._lease_of(plan),
                jail=None if self._jail_planner is None else self._jail_planner.rank_order(plan, spec, provision),
                cpus=plain_affinity(plan, spec, provision, self._inventory) if self._jail_planner is None else None,
            )
            for spec in plan.ranks
        ]
        if self._jail_planner is not None:
            [answer] = self._spawner.start_ranks(
                [self._jail_planner.jail_order(self._nvml, plan, checkpoint_dir, provision)]
            )
            if answer["status"] == "closed":
                raise _closed(plan.key)
            if answer["status"] == "error":
                raise HostUnavailable(f"{plan.host}: {answer['message']}")
        for spec, answer in zip(plan.ranks, self._spawner.start_ranks(orders), strict=True):
            match answer["status"]:
                case "closed":
                    raise _closed(plan.key)
                case "error":
                    raise HostUnavailable(f"{plan.host} cannot start rank {spec.rank}: {answer['message']}")
                case "failed":
                    raise _not_executable(spec.rank, Failure.model_validate(answer["failure"]), answer["exit_code"])

    def _lease_of(self, plan: HostPlan) -> LeaseTerms | None:
        """The lease as a supervisor needs it. It starts its rank only under the lease, and ends the rank with the
        lease."""
        if self._lease is None:
            return None
        return LeaseTerms(self._lease, plan.term, ends_rank=plan.fencing is not Fencing.RELAXED)

    async def end_ranks_without_lease(self) -> None:
        """End every rank here because the lease has ended. Ranks of jobs with ``fencing: relaxed`` go on."""
        plans = [plan for key in self.attempts() if (plan := self._plan(key)) is not None]
        ending = [plan.key for plan in plans if plan.fencing is not Fencing.RELAXED]
        reason = f"host {self.host} was cut off: its lease ended, so the job may start elsewhere"
        stops = [self.stop(StopRequest(key=key, host=self.host, grace_s=0, reason=reason)) for key in ending]
        await asyncio.gather(*stops)

    def _show_processes(self, plan: HostPlan) -> None:
        """Tell the library which processes have which GPUs; see :meth:`NvmlLibrary.add_process`."""
        for spec in plan.ranks:
            process = self._rank(plan.key, spec.rank).main_process
            if process is not None:
                for uuid in spec.gpu_uuids:
                    self._nvml.add_process(uuid, process.pid)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRNOS:
                raise
            raise HostUnavailable(
                f"{self._node.name} cannot write its records in {self._home}: {error.strerror}; make room there"
            ) from error

    def _wait_for_launch(self, key: AttemptKey) -> None:
        with self._locks[key]:
            pass

    def _finish(self, key: AttemptKey) -> None:
        """Let the stages finish the attempt, once. No process of it lives, and none can start again."""
        with self._locks[key]:
            finished = self._finished(key)
            plan = self._plan(key)
            if plan is not None and not finished.exists():
                self._stages.finish(plan)
                self.checkpointing.finish(plan)
                finished.touch()

    def _finished(self, key: AttemptKey) -> Path:
        """The file that exists once the stages have finished the attempt."""
        return paths.attempt_dir(self._home, key) / records.FINISHED

    def _plan(self, key: AttemptKey) -> HostPlan | None:
        record = records.read_record(str(paths.attempt_dir(self._home, key) / records.PLAN))
        return None if record is None else HostPlan.model_validate(record)

    def _rank(self, key: AttemptKey, rank: int) -> RankProcess:
        return RankProcess(paths.rank_dir(self._home, key, rank), rank, self._node.name)

    def _ranks(self, key: AttemptKey) -> list[RankProcess]:
        names = (path.name for path in paths.attempt_dir(self._home, key).glob("rank-*"))
        return [self._rank(key, number) for number in sorted(int(name.removeprefix("rank-")) for name in names)]


def _by_rank(exits: list[RankExit]) -> list[RankExit]:
    return sorted(exits, key=lambda rank: rank.rank)


def _closed(key: AttemptKey) -> IllegalTransition:
    return IllegalTransition(subject=f"attempt {key}", current="stopped", wanted="launched", allowed=[])


def _not_executable(rank: int, failure: Failure, exit_code: int) -> PreflightFailed:
    return PreflightFailed(failure.message, kind=failure.kind.value, rank=rank, host=failure.host, exit_code=exit_code)
