"""How ranks start on this host: check the plan, prepare the attempt, and order a supervisor for each rank."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, IllegalTransition, PreflightFailed
from gpu_platform.domain.hosts.cuda import newest_cuda
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.attempt import HostPlan, Launched, LaunchRequest, Prepared
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.node.artifacts import ArtifactDirectories
from gpu_platform.node.checkpoints.checkpointing import Checkpointing
from gpu_platform.node.checkpoints.directories import make_shown_directories
from gpu_platform.node.environments.program import activated, checked_init, has_own_root, started
from gpu_platform.node.health import gpu_reset
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.isolation.cgroups.cpus import plain_affinity
from gpu_platform.node.isolation.isolation import JailPlanner, choose_isolation, step_cgroup
from gpu_platform.node.isolation.orders import LeaseTerms, RankOrder
from gpu_platform.node.isolation.secret_files import SecretFiles
from gpu_platform.node.local_attempts import LocalAttempts
from gpu_platform.node.network.links import NetworkOrder
from gpu_platform.node.network.network import RENDEZVOUS_PORTS
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes import preflight, step_process
from gpu_platform.node.processes.environment import PACKAGE, base_environ, rank_environ
from gpu_platform.node.processes.launchers import (
    check_launcher,
    launcher_argv,
    missing_program_hint,
    new_gang_key,
)
from gpu_platform.node.processes.ranks import wait_record
from gpu_platform.node.processes.secret_delivery import SecretDelivery, SecretSource
from gpu_platform.node.processes.spawner_client import SpawnerClient
from gpu_platform.node.processes.step_process import StepGivenUp, look
from gpu_platform.node.stages import Provision, Stage, Stages
from gpu_platform.node.system import lease_file, paths, records
from gpu_platform.settings import Settings
from gpu_platform.steps.environ import SCRIPT

NO_LEASE = "no_lease"
"""Key in the details of a :class:`HostUnavailable`: this host has no lease, so it may start nothing now."""
LEASE_PATIENCE_S = 100.0
"""How long a step waits for a lease. Shorter than the ``start_to_close_timeout`` of these steps."""
_LEASE_LOOK_S = 0.1


class RankLauncher:
    """Thread-safe: one attempt is prepared, launched and finished by one thread at a time."""

    def __init__(
        self,
        settings: Settings,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        attempts: LocalAttempts,
        *,
        dev: Path,
        stages: Sequence[Stage],
        lease: Path | None,
        secrets: SecretSource | None = None,
    ) -> None:
        """``dev``: where device nodes of GPUs are found. ``lease``, ``secrets``: see :class:`NodeWorker`."""
        self._node, self._nvml, self._inventory, self._attempts = settings.node, nvml, inventory, attempts
        self._cluster = settings.cluster.name
        self._lease = None if lease is None else str(lease)
        self._checkpoints = (settings.node.checkpoint_root or settings.state_dir / "checkpoints").resolve()
        # On the disk of the records: if that hangs, nothing of the host goes on.
        self._checkpoints_are_ours = self._checkpoints == (settings.state_dir / "checkpoints").resolve()
        self.artifacts = ArtifactDirectories(settings.node.artifact_root or settings.state_dir / "artifacts")
        self.checkpointing = Checkpointing(settings.node, self._checkpoints, attempts.home)
        self.spawner = SpawnerClient(self._lease)
        self.stages = Stages(stages)
        isolation = choose_isolation(settings.node)
        self._jail_planner = None
        if isolation.jailed:
            self._jail_planner = JailPlanner(
                settings, isolation, inventory, home=attempts.home, checkpoints=self._checkpoints, dev=dev, look=look
            )
            self._jail_planner.network.start(attempts.open)
        self._secrets = SecretDelivery(secrets, settings.api_url, jailed=isolation.jailed)
        self._locks: defaultdict[AttemptKey, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        """Let the spawner end, and guard the packet filter no longer. Ranks and their supervisors go on."""
        self.spawner.close()
        step_process.close()
        if self._jail_planner is not None:
            self._jail_planner.network.close()

    def recover(self) -> None:
        """Go on with the attempts that an earlier node worker left open."""
        plans = self._attempts.open_plans()
        for plan in plans:
            self._show_processes(plan)
        # An attempt that was finished before is not recovered: its stages must not finish twice.
        self.stages.recover([plan for plan in plans if not self._attempts.finished(plan.key).exists()])

    def prepare(self, plan: HostPlan) -> Prepared:
        """Check GPUs, workdir and command, and choose a rendezvous port. A repeated call gives the first answer again.

        Raises :class:`PreflightFailed` (``details["kind"]`` user or hardware, ``gpu_uuid``) and
        :class:`IllegalTransition` when the attempt was stopped already.
        """
        with self._locks[plan.key], _closed_meanwhile(plan.key):
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
        with self._locks[plan.key], _closed_meanwhile(plan.key):
            own = self._prepare(plan)
            ranks = [self._attempts.rank(plan.key, spec.rank) for spec in plan.ranks]
            if any(rank.started is None for rank in ranks):
                self._start(plan, request.rendezvous or own)
            for rank in ranks:
                if (failed := rank.ended) is not None and failed.failure is not None:
                    raise _not_executable(rank.rank, failed.failure, failed.exit_code)
            started = [wait_record(rank) for rank in ranks]
        self._show_processes(plan)
        return Launched(host=self._node.name, ranks=started, prepared=own if request.rendezvous is None else None)

    def is_launching(self, key: AttemptKey) -> bool:
        """True while a step of the attempt is in progress here."""
        lock = self._locks.get(key)
        return lock is not None and lock.locked()

    def finish(self, key: AttemptKey) -> None:
        """Let the stages finish the attempt, once. No process of it lives, and none can start again."""
        with self._locks[key]:
            finished = self._attempts.finished(key)
            plan = self._attempts.plan(key)
            if plan is not None and not finished.exists():
                self.stages.finish(plan)
                self.checkpointing.finish(plan)
                self._attempts.remove_secrets(plan)
                self._secrets.remove(self._attempts.directory(key))
                if self._jail_planner is not None:
                    self._jail_planner.release(plan)
                self._attempts.note_finished(key)
                if self._jail_planner is not None:
                    self._jail_planner.network.leave(key)

    def forget(self, key: AttemptKey) -> None:
        """Note that nothing of the attempt will start here any more."""
        self._locks.pop(key, None)

    def _prepare(self, plan: HostPlan) -> Prepared:
        key = plan.key
        if self._attempts.is_closed(key):
            raise _closed(key)
        directory = self._attempts.directory(key)
        record = records.read_record(str(directory / records.PREPARED))
        if record is not None:
            return Prepared.model_validate(record)
        self._check_lease(plan)
        given_up = partial(self._attempts.is_closed, key)
        self.artifacts.check(plan, given_up)
        self._check_plan(plan)
        with self._attempts.writing():
            directory.mkdir(records.PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._make_directories(plan)
            self._attempts.opened(plan)
            # From here on the attempt must be finished, whatever happens.
            record = plan.without_environments().model_dump(mode="json")
            try:
                records.write_record(str(directory / records.PLAN), record, durable=False)
            except OSError:
                self._attempts.ended(key)
                raise
        try:
            self._attempts.check_room(self._node.disk_reserve_mib)
            network = None if self._jail_planner is None else self._jail_planner.network
            is_alone = len(plan.ranks) == plan.world_size
            ports = RENDEZVOUS_PORTS if is_alone and network is not None and network.isolates else None
            ports = ports or self._attempts.take_ports(key)
            self.stages.prepare(plan)
            resume = self.checkpointing.resume(plan, given_up, self._step_cgroup(plan, "resume"))
        except Exception:
            self.stages.finish(plan)
            self.checkpointing.finish(plan)
            (directory / records.PLAN).unlink()
            self._attempts.ended(key)
            raise
        prepared = Prepared(
            host=self._node.name,
            address=self._node.address,
            rendezvous_port=ports.start,
            resume_from=None if resume.checkpoint is None else resume.checkpoint.path,
            resume_note=resume.note,
            isolates_gangs=network is not None and network.isolates_gangs,
            step_key=token_hex(16) if _is_script(plan) else None,
            gang_key=new_gang_key(plan),
        )
        with self._attempts.writing():
            # While a node worker restarts, the old one and the new one may both prepare the attempt: one port counts.
            first = records.write_first_record(str(directory / records.PREPARED), prepared.model_dump(mode="json"))
        prepared = Prepared.model_validate(first)
        self._attempts.remember_port(key, prepared.rendezvous_port)
        return prepared

    def _check_plan(self, plan: HostPlan) -> None:
        """Raise :class:`PreflightFailed` unless the GPUs are fit for work and the programs can be started here."""
        if plan.require_isolation and self._jail_planner is None:
            raise HostUnavailable(
                f"{plan.host} does not isolate ranks, and the job requires it (require_isolation): "
                "set node.isolation to required there"
            )
        for uuid in plan.gpu_uuids:
            gpu_reset.verify_gpu(self._nvml, uuid)
        if self._jail_planner is not None:
            self._jail_planner.check(plan)
        # Where its programs are, only the rank itself finds out that loads modules or has a root of its own.
        unseen = checked_init(plan, self._node.module_init) is not None or has_own_root(plan)
        commands = [] if unseen else self._commands(plan)
        workdir = None if unseen else plan.workdir
        venv = None if plan.environment is None or has_own_root(plan) else plan.environment.venv
        if not commands and venv is None:
            return
        arguments = {
            "host": plan.host,
            "workdir": workdir,
            "commands": commands,
            "jailed": self._jail_planner is not None,
            "has_upload": plan.environment is not None and plan.environment.upload is not None,
            "venv": venv,
            "own_path": os.environ.get("PATH", ""),
        }
        own = workdir is None and venv is None and not any("PATH" in program.env for program in plan.programs)
        if own and not any("/" in one.command[0] for one in commands):
            preflight.check_paths(**arguments)  # only places of the host itself are looked at
            return
        searched = [place for one in commands for place in one.path.split(os.pathsep)]
        programs = [one.command[0] for one in commands if os.path.isabs(one.command[0])]
        paths = [path for path in (workdir, venv, *programs, *searched) if path is not None]
        self._look("check_paths", arguments, paths, plan.key)

    def _commands(self, plan: HostPlan) -> list[preflight.Command]:
        """The commands of the plan, as a rank finds them. Raises :class:`PreflightFailed` if its launcher is not
        here."""
        found: list[preflight.Command] = []
        for program in plan.programs:
            environ = base_environ(program)
            version = newest_cuda(program.cuda, self._inventory.cuda_installations)
            if version is not None:
                cuda = f"{self._inventory.cuda_installations[version]}/bin"
                environ["PATH"] = f"{environ['PATH']}:{cuda}" if program.cuda is None else f"{cuda}:{environ['PATH']}"
            environ = activated(environ, plan.environment)
            check_launcher(plan, environ)
            hint = missing_program_hint(plan, program)
            found.append(preflight.Command(program.command, environ.get("PATH", os.defpath), hint))
        return found

    def _step_cgroup(self, plan: HostPlan, step: str) -> Cgroup | None:
        """The cgroup of a step of the attempt. None: this host has none for attempts."""
        return None if self._jail_planner is None else step_cgroup(self._attempts.home, plan, step)

    def _look(self, step: str, arguments: Mapping[str, Any], paths: Sequence[str], key: AttemptKey) -> Any:
        """See :func:`step_process.look`. It ends when the attempt is closed."""
        return look(step, arguments, paths, given_up=lambda: self._attempts.is_closed(key))

    def _make_directories(self, plan: HostPlan) -> None:
        """Those that the job writes on file systems that hosts share. Raises ``OSError``."""
        made = [str(paths.checkpoint_dir(self._checkpoints, plan.key)), *self.artifacts.of(plan)]
        if plan.artifacts is None and self._checkpoints_are_ours:
            make_shown_directories(made)
            return
        self._look("make_directories", {"paths": made}, made, plan.key)

    def _check_lease(self, plan: HostPlan) -> None:
        """Raise :class:`HostUnavailable` without a lease: one may come soon, and a host that was LOST gets a new
        plan."""
        why = None if self._lease is None else lease_file.why_not_start(self._lease, plan.term)
        if why is not None:
            raise HostUnavailable(f"{plan.host} does not start attempt {plan.key}: {why}", **{NO_LEASE: True})

    def _start(self, plan: HostPlan, rendezvous: Prepared) -> None:
        self._check_lease(plan)
        secrets = self._secrets.fetch(plan)
        shown = self.checkpointing.shown(plan, rendezvous.resume_from)
        if _is_script(plan):
            shown = [*shown, str(PACKAGE)]
        provision = self.stages.provides(plan) + Provision(readable=shown) + self.artifacts.provides(plan)
        if self._jail_planner is not None:
            hosts = self._jail_planner.network
            network = hosts.order(plan, rendezvous)
            provision += Provision(environ=hosts.environ(network))
            own = {rendezvous.rendezvous_port, self._attempts.port(plan.key) or rendezvous.rendezvous_port}
            hosts.admit(plan.key, network)
            self._make_jail(self._jail_planner, plan, provision, network, own, secrets)
            rendezvous = hosts.rendezvous(network, rendezvous)
        attempt_dir = self._attempts.directory(plan.key)
        self._secrets.place(secrets, attempt_dir)
        provision += Provision(environ=self._secrets.environ(plan, attempt_dir))
        orders = self._rank_orders(plan, rendezvous, provision)
        for spec, answer in zip(plan.ranks, self.spawner.start_ranks(orders), strict=True):
            match answer["status"]:
                case "closed":
                    raise _closed(plan.key)
                case "error":
                    raise HostUnavailable(f"{plan.host} cannot start rank {spec.rank}: {answer['message']}")
                case "failed":
                    raise _not_executable(spec.rank, Failure.model_validate(answer["failure"]), answer["exit_code"])

    def _rank_orders(self, plan: HostPlan, rendezvous: Prepared, provision: Provision) -> list[RankOrder]:
        checkpoint_dir = paths.checkpoint_dir(self._checkpoints, plan.key)
        account = {} if self._jail_planner is None else self._jail_planner.environ(plan)
        secrets = self._secrets.dirs(plan, self._attempts.directory(plan.key))
        init = checked_init(plan, self._node.module_init)
        workdir = plan.workdir if self._jail_planner is None else self._jail_planner.workdir(plan)
        return [
            RankOrder(
                rank_dir=str(paths.rank_dir(self._attempts.home, plan.key, spec.rank)),
                attempt_dir=str(self._attempts.directory(plan.key)),
                argv=started(launcher_argv(plan, spec), plan.environment, init),
                env=activated(
                    rank_environ(
                        plan,
                        spec,
                        rendezvous,
                        cluster=self._cluster,
                        home=self._attempts.home,
                        checkpoint_dir=checkpoint_dir,
                    )
                    | self.checkpointing.environ(plan)
                    | provision.environ
                    | provision.of_rank(spec.rank)
                    | account,
                    plan.environment,
                ),
                workdir=provision.workdir or workdir,
                host=plan.host,
                log_file_bytes=self._node.log_file_bytes,
                log_files=self._node.log_files,
                lease=self._lease_of(plan),
                jail=None if self._jail_planner is None else self._jail_planner.rank_order(plan, spec, provision),
                cpus=plain_affinity(plan, spec, provision, self._inventory) if self._jail_planner is None else None,
                secrets=None if secrets is None else secrets.environ,
            )
            for spec in plan.ranks
        ]

    def _make_jail(
        self,
        planner: JailPlanner,
        plan: HostPlan,
        provision: Provision,
        network: NetworkOrder | None,
        own_ports: Collection[int],
        secrets: SecretFiles | None,
    ) -> None:
        checkpoint_dir = paths.checkpoint_dir(self._checkpoints, plan.key)
        planner.claim(plan)
        order = planner.jail_order(self._nvml, plan, checkpoint_dir, provision, network, own_ports)
        [answer] = self.spawner.start_ranks([order._replace(secrets=secrets)])
        if answer["status"] == "closed":
            raise _closed(plan.key)
        if answer["status"] == "refused":
            raise PreflightFailed(f"{plan.host}: {answer['message']}", kind=blame(FailureCause.REQUEST))
        if answer["status"] == "error":
            raise HostUnavailable(f"{plan.host}: {answer['message']}")

    def _lease_of(self, plan: HostPlan) -> LeaseTerms | None:
        """The lease as a supervisor needs it. It starts its rank only under the lease, and ends the rank with the
        lease."""
        if self._lease is None:
            return None
        return LeaseTerms(self._lease, plan.term, ends_rank=plan.fencing is not Fencing.RELAXED)

    def _show_processes(self, plan: HostPlan) -> None:
        """Tell the library which processes have which GPUs; see :meth:`NvmlLibrary.add_process`."""
        for spec in plan.ranks:
            process = self._attempts.rank(plan.key, spec.rank).main_process
            if process is not None:
                for uuid in spec.gpu_uuids:
                    self._nvml.add_process(uuid, process.pid)


@contextmanager
def _closed_meanwhile(key: AttemptKey) -> Iterator[None]:
    """A step that nobody waits for is one of an attempt that was closed."""
    try:
        yield
    except StepGivenUp:
        raise _closed(key) from None


def _closed(key: AttemptKey) -> IllegalTransition:
    return IllegalTransition(subject=f"attempt {key}", current="stopped", wanted="launched", allowed=[])


def _not_executable(rank: int, failure: Failure, exit_code: int) -> PreflightFailed:
    return PreflightFailed(failure.message, kind=failure.kind.value, rank=rank, host=failure.host, exit_code=exit_code)


def _is_script(plan: HostPlan) -> bool:
    """True if the ranks run a batch script (ADR 69)."""
    return any(SCRIPT in program.env for program in plan.programs)
