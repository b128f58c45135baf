"""Sets up each GPU as an attempt was granted it (whole, MIG, MPS, time slices), and undoes that afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog

from gpu_platform.domain.errors import HostUnavailable, PlatformError, PreflightFailed
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan, RankSpec
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.isolation.accounts import account_of
from gpu_platform.node.isolation.isolation import JAILED
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes.stopping import is_closed
from gpu_platform.node.sharing import mig
from gpu_platform.node.sharing.capabilities import instance_nodes
from gpu_platform.node.sharing.compute import set_exclusive, set_time_slice
from gpu_platform.node.sharing.mig_records import MigInstanceRecord, MigInstanceRecords
from gpu_platform.node.sharing.mps import MpsDaemon
from gpu_platform.node.stages import Provision, Stage
from gpu_platform.node.system.tools import GivenUp
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_ONE_DEVICE = (ShareMode.MIG, ShareMode.MPS)
"""CUDA shows a process one MIG device only, and a process can be the client of one MPS daemon only."""


class Sharing(Stage):
    """Sets up the shares of GPUs: MIG instances, MPS daemons and time slices.

    ``reset`` resets a GPU that nothing uses (MIG mode of Ampere). ``scrubber`` is called when a GPU or a share of it
    goes to another tenant, before anything else uses it. ``dev`` and ``proc`` are where device nodes and the driver's
    files are.
    """

    def __init__(
        self,
        node: NodeSettings,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        home: Path,
        *,
        reset: Callable[[str], None],
        scrubber: Scrubber,
        dev: Path = Path("/dev"),
        proc: Path = Path("/proc"),
    ) -> None:
        self._node = node
        self._nvml = nvml
        self._index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
        self._home = home
        self._reset = reset
        self._scrubber = scrubber
        self._jailed = inventory.isolation == JAILED
        self._dev = dev
        self._proc = proc
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._clients: defaultdict[str, dict[str, ShareMode | None]] = defaultdict(dict)
        """GPU -> attempts on it, and how each of them shares it. None: it holds the whole GPU."""

    def recover(self, attempts: Sequence[HostPlan]) -> None:
        """Note which attempt holds which GPU, and undo what is left of attempts that are gone."""
        for plan in attempts:
            for uuid, grant in _grants(plan):
                self._clients[uuid][str(plan.key)] = None if grant is None else grant.mode
        for uuid in self._index:
            with self._locks[uuid], _logged("everything", gpu=uuid):
                self._clear(uuid)

    def prepare(self, plan: HostPlan) -> None:
        """Set up each GPU as the plan says. Raises :class:`PreflightFailed` or :class:`HostUnavailable`."""
        _check_ranks(plan)
        given_up = partial(is_closed, self._home, plan.key)
        for position, (uuid, grant) in enumerate(_grants(plan)):
            with self._locks[uuid]:
                self._clear(uuid)
                self._check_other_attempts(uuid, plan, grant)
                self._clients[uuid][str(plan.key)] = None if grant is None else grant.mode
                match grant:
                    case None:
                        self._give_whole(uuid, plan, given_up)
                    case ShareGrant(mode=ShareMode.MIG):
                        self._give_instance(uuid, plan, position, grant, given_up)
                    case ShareGrant(mode=ShareMode.MPS):
                        self._enter(uuid, plan, given_up)
                        set_exclusive(
                            self._nvml, uuid, True
                        )  # for the daemon: a program that goes around it gets no GPU
                        if self._nvml.runs_cuda:
                            self._start_daemon(uuid, plan, given_up)
                    case _:
                        self._enter(uuid, plan, given_up)
                        set_exclusive(self._nvml, uuid, False)
                        self._slice_time(uuid)

    def provides(self, plan: HostPlan) -> Provision:
        """What ranks need to find their shares: device names, device nodes, and where the MPS daemon is."""
        if not plan.shares:
            return Provision()
        names: list[str] = []
        devices: list[str] = []
        for position, (uuid, grant) in enumerate(_grants(plan)):
            name = uuid
            if grant is not None and grant.mode is ShareMode.MIG:
                instance = self._instance(uuid, plan, position)
                name = instance.uuid or uuid
                devices += self._capability_nodes(uuid, instance)
            names.append(name)
        provision = Provision(devices=devices)
        for spec in plan.ranks:
            own = _own_positions(plan, spec)
            visible = ",".join(names[position] for position in own)
            environ = {"CUDA_VISIBLE_DEVICES": visible, "NVIDIA_VISIBLE_DEVICES": visible}
            if own and plan.shares[own[0]].mode is ShareMode.MPS:
                daemon = self._daemon(plan.gpu_uuids[own[0]])
                environ |= daemon.client_environ(plan.shares[own[0]])
                if self._nvml.runs_cuda:
                    provision += Provision(writable=daemon.writable, shm=daemon.shm)
            provision += Provision(rank_environ={spec.rank: environ})
        return provision

    def finish(self, plan: HostPlan) -> None:
        """Undo what only this attempt needed: MIG instances, the MPS daemon, modes and time slices."""
        for uuid in plan.gpu_uuids:
            with self._locks[uuid]:
                self._clients[uuid].pop(str(plan.key), None)
                self._clear(uuid)

    def daemon_pids(self, uuid: str) -> set[int]:
        """Processes on the GPU that are the platform's own."""
        daemon = self._daemon(uuid)
        return {process.pid for process in daemon.processes()} if daemon.is_started else set()

    # -- setting up one GPU, with its lock held ----------------------------------------------------

    def _check_other_attempts(self, uuid: str, plan: HostPlan, grant: ShareGrant | None) -> None:
        """Raise if another attempt uses the share. The database never grants a share twice, but an attempt may still
        be ending here."""
        mode = None if grant is None else grant.mode
        for key, other in self._clients[uuid].items():
            if key != str(plan.key) and (mode is None or other is not mode):
                used = "all of it" if other is None else other.value
                raise PreflightFailed(
                    f"GPU {uuid} is not free yet on {plan.host}: attempt {key} has {used}",
                    kind=blame(FailureCause.GPU_UNFIT),
                    gpu_uuid=uuid,
                )

    def _enter(self, uuid: str, plan: HostPlan, given_up: GivenUp) -> None:
        """Prepare a GPU for its first attempt: switch MIG off, and scrub the data of an earlier tenant."""
        if len(self._clients[uuid]) == 1:
            self._set_mig_mode(uuid, False)
            self._scrubber.before(uuid, plan.namespace, given_up)

    def _give_whole(self, uuid: str, plan: HostPlan, given_up: GivenUp) -> None:
        self._enter(uuid, plan, given_up)
        # More ranks than GPUs: they share the GPUs on purpose.
        set_exclusive(self._nvml, uuid, self._node.exclusive_process and len(plan.ranks) <= len(plan.gpu_uuids))

    def _give_instance(self, uuid: str, plan: HostPlan, position: int, grant: ShareGrant, given_up: GivenUp) -> None:
        instance_records = self._instance_records(uuid)
        record = instance_records.find(str(plan.key), position)
        existing = mig.instances(self._nvml, uuid)
        if record is not None and any(record.is_made(instance) and instance.uuid for instance in existing):
            return
        if not mig.mode(self._nvml, uuid):
            self._scrubber.before(uuid, None, given_up)  # each instance is scrubbed after its job
        self._set_mig_mode(uuid, True)
        profile, start, size = grant.mig_profile, grant.mig_start, grant.mig_size
        if profile is None or start is None or size is None:
            raise PreflightFailed(
                f"the share of GPU {uuid} names no MIG placement", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=uuid
            )
        record = MigInstanceRecord(
            str(plan.key), position, start, size, plan.namespace, [instance.gi for instance in existing]
        )
        instance_records.put(record)
        instance_records.made(record, mig.create(self._nvml, uuid, profile, start, size).gi)

    def _start_daemon(self, uuid: str, plan: HostPlan, given_up: GivenUp) -> None:
        account = account_of(self._node, plan) if self._jailed else None
        try:
            owner = (None, None) if account is None else (account.uid, account.gid)
            self._daemon(uuid).start(*owner, given_up=given_up)
        except HostUnavailable as error:  # another host may be able to; trying again here would not help
            raise PreflightFailed(error.message, kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=uuid) from error

    def _set_mig_mode(self, uuid: str, on: bool) -> None:
        """Switch MIG on or off. Does nothing if it is so already, or if the GPU has no MIG and none is needed."""
        is_on = mig.mode(self._nvml, uuid)
        if is_on is on or (is_on is None and not on):
            return
        if is_on is None:
            raise PreflightFailed(
                f"GPU {uuid} cannot be partitioned (MIG)", kind=blame(FailureCause.GPU_UNFIT), gpu_uuid=uuid
            )
        if foreign := mig.instances(self._nvml, uuid):
            raise PreflightFailed(
                f"GPU {uuid} has {len(foreign)} MIG instances that are not the platform's: "
                f"remove them (nvidia-smi mig -dci -i {uuid}; nvidia-smi mig -dgi -i {uuid}) or take the GPU offline",
                kind=blame(FailureCause.GPU_UNFIT),
                gpu_uuid=uuid,
            )
        if not mig.set_mode(self._nvml, uuid, on):
            self._reset(uuid)
        if mig.mode(self._nvml, uuid) is not on:
            word = "on" if on else "off"
            raise PreflightFailed(
                f"GPU {uuid}: MIG mode stays as it was, wanted {word}",
                kind=blame(FailureCause.GPU_UNFIT),
                gpu_uuid=uuid,
            )

    def _slice_time(self, uuid: str) -> None:
        if self._node.time_slice != "default" and not self._sliced(uuid).exists():
            self._sliced(uuid).parent.mkdir(exist_ok=True)
            self._sliced(uuid).touch()
            set_time_slice(self._nvml, uuid, self._node.time_slice)

    def _clear(self, uuid: str) -> None:
        """Undo what no attempt on the GPU needs any more. Raises :class:`HostUnavailable` if it is still in use."""
        clients = self._clients[uuid]
        instance_records = self._instance_records(uuid)
        if entries := instance_records.entries():
            existing = mig.instances(self._nvml, uuid)
            for record in entries:
                if record.attempt not in clients:
                    for instance in filter(record.is_made, existing):
                        if instance.uuid is not None:
                            self._scrubber.after_instance(uuid, instance.uuid, record.namespace)
                        mig.destroy(self._nvml, uuid, instance.gi)
                    instance_records.drop(record)
        daemon = self._daemon(uuid)
        if ShareMode.MPS not in clients.values() and daemon.is_started:
            daemon.stop()
        if not clients:
            self._scrubber.after(uuid)
            with _logged("mode", gpu=uuid):
                set_exclusive(self._nvml, uuid, False)
                if (sliced := self._sliced(uuid)).exists():
                    set_time_slice(self._nvml, uuid, "default")
                    sliced.unlink()

    # -- helpers -----------------------------------------------------------------------------------

    def _instance(self, uuid: str, plan: HostPlan, position: int) -> mig.Instance:
        record = self._instance_records(uuid).find(str(plan.key), position)
        for instance in mig.instances(self._nvml, uuid):
            if record is not None and record.is_made(instance):
                return instance
        raise HostUnavailable(f"the MIG instance of {plan.key} on GPU {uuid} is gone")

    def _capability_nodes(self, uuid: str, instance: mig.Instance) -> list[str]:
        if not self._nvml.has_device_nodes or not self._jailed or instance.ci is None:
            return []  # a plain process may open what its user may; a simulated GPU has no nodes
        minor = self._nvml.nvmlDeviceGetMinorNumber(self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        return instance_nodes(minor, instance.gi, instance.ci, dev=self._dev, proc=self._proc)

    def _sliced(self, uuid: str) -> Path:
        """The file that exists while the GPU's time slices are not the driver's default."""
        return self._home / "time-slices" / uuid

    def _instance_records(self, uuid: str) -> MigInstanceRecords:
        return MigInstanceRecords(self._home / "mig" / f"{uuid}.json")

    def _daemon(self, uuid: str) -> MpsDaemon:
        return MpsDaemon(self._home / "mps" / str(self._index.get(uuid, uuid)), uuid, jailed=self._jailed)


def _grants(plan: HostPlan) -> Iterator[tuple[str, ShareGrant | None]]:
    return zip(plan.gpu_uuids, plan.shares or [None] * len(plan.gpu_uuids), strict=True)


def _own_positions(plan: HostPlan, spec: RankSpec) -> list[int]:
    """Positions of the plan's GPUs that the rank sees. Only its own, if CUDA can show a process only one device."""
    positions = [plan.gpu_uuids.index(uuid) for uuid in spec.gpu_uuids]
    if len(positions) > 1 and any(plan.shares[position].mode in _ONE_DEVICE for position in positions):
        return [positions[spec.local_rank]]
    return positions


def _check_ranks(plan: HostPlan) -> None:
    """Raise if a rank would see several shares. There must be as many ranks as shares, so that each has its own."""
    modes = {grant.mode for grant in plan.shares} & set(_ONE_DEVICE)
    for spec in plan.ranks if modes else ():
        beside = [rank for rank in plan.ranks if rank.gpu_uuids == spec.gpu_uuids]
        if len(spec.gpu_uuids) > 1 and len(beside) != len(spec.gpu_uuids):
            raise PreflightFailed(
                f"a process can use one {min(modes).value} share only, and rank {spec.rank} would have "
                f"{len(spec.gpu_uuids)} on {plan.host}: ask for one rank per GPU",
                kind=blame(FailureCause.REQUEST),
            )


@contextlib.contextmanager
def _logged(what: str, *, gpu: str) -> Iterator[None]:
    """Log an error and go on. The same is tried again when the GPU is granted the next time."""
    try:
        yield
    except PlatformError as error:
        log.warning("sharing.not_undone", gpu=gpu, what=what, error=error.message)
    except Exception as error:  # e.g. an NVML error of a lost GPU
        log.warning("sharing.not_undone", gpu=gpu, what=what, error=str(error))
