"""What a job asks for: GPUs or shares of them, hosts, CPUs, memory, and how close together they must be."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpu_platform.domain.hosts.cuda import check_cuda
from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.host_choice import Constraints, HostChoice, HostPatterns

MAX_HOSTS = 4096
MAX_GPUS_PER_HOST = 64
MAX_CPUS_PER_HOST = 4096
DEFAULT_GPUS = 0

LEVEL_PATTERN = r"^[a-z][a-z0-9_.-]{0,62}$"
INSIDE_ONE_HOST = frozenset({"numa", "socket", "host"})
"""Topology levels that no gang of several hosts can have."""
NETWORK_GB_S = 12.0
"""The bandwidth from one rank to another host, GB/s: NCCL's default for a 100 Gbit/s port (``NET_BW`` in
``src/graph/topo.h``). Hosts do not report how fast their NICs are, so this is assumed, the same at every level."""


class Strategy(StrEnum):
    """Whether a job prefers full or empty hosts, if several fit."""

    PACK = "pack"
    """Fill hosts that already work, to keep whole hosts free for gangs."""
    SPREAD = "spread"
    """Prefer the emptiest hosts, for heat and for surviving one host's death."""


class RankPer(StrEnum):
    """Whether one rank is started for each host or for each GPU."""

    HOST = "host"
    """One process per host that sees all the gang's GPUs there."""
    GPU = "gpu"
    """One process per GPU; LOCAL_RANK selects the device, as torchrun does."""


def models_of(pattern: str) -> tuple[str, ...]:
    """Return the parts of model names in ``H100|A100``, in lower case."""
    return tuple(part.strip().casefold() for part in pattern.split("|"))


def _check_models(pattern: str) -> str:
    if "|" in pattern and not all(models_of(pattern)):
        raise ValueError(f"{pattern!r} has an empty name: write the models with one | between them, e.g. H100|A100")
    return pattern


Models = Annotated[str, Field(max_length=128), AfterValidator(_check_models)]
"""Parts of model names with ``|`` between them."""


class ResourceRequest(BaseModel):
    """The requirements for every GPU of the gang, and the shape of the gang.

    Without GPUs it asks for CPUs and memory of its hosts: one CPU each, unless it says more. A stored request always
    names ``gpus_per_host``. So requests that were stored when one GPU was the default still mean one GPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS, description="Number of hosts")] = 1
    gpus_per_host: Annotated[
        int, Field(ge=0, le=MAX_GPUS_PER_HOST, description="GPUs on each host; 0: CPUs and memory only")
    ] = DEFAULT_GPUS
    total: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_HOSTS * MAX_GPUS_PER_HOST,
            description="Number of GPUs, on as few hosts as possible; instead of hosts and gpus_per_host",
        ),
    ] = None
    share: Annotated[Share | None, Field(description="A share of each GPU; default: whole GPUs")] = None
    cpus_per_host: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_CPUS_PER_HOST,
            description="CPUs on each host for this job alone; default: 1 without GPUs, else none",
        ),
    ] = 0
    ram_mib_per_host: Annotated[int, Field(ge=0, description="Memory on each host for this job alone, MiB")] = 0
    cpus_per_gpu: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_CPUS_PER_HOST,
            description="CPUs for each GPU, or share of one, on its host; instead of cpus_per_host, which follows from "
            "it (with total: on each host as many as its GPUs need)",
        ),
    ] = 0
    ram_mib_per_gpu: Annotated[
        int,
        Field(
            ge=0,
            le=2**31 - 1,
            description="Memory of the host for each GPU, or share of one, MiB; instead of ram_mib_per_host, as "
            "cpus_per_gpu",
        ),
    ] = 0
    cuda: Annotated[
        str | None,
        AfterValidator(check_cuda),
        Field(description="A CUDA installation of the host: 12 (any 12.x), 12.4, or >=12.4", examples=["12.4"]),
    ] = None
    isolated: Annotated[
        bool, Field(description="Only hosts whose kernel isolates ranks; a job asks for it by require_isolation")
    ] = False
    reservation: Annotated[
        str | None,
        Field(
            max_length=63,
            description="Only what this advance reservation keeps; a job asks for it by its own field reservation",
        ),
    ] = None
    memory_mib: Annotated[int, Field(ge=0, le=10_000_000, description="Least memory of each GPU, MiB")] = 0
    min_compute_capability: Annotated[
        str | None, Field(pattern=r"^\d{1,2}\.\d$", description="e.g. 8.0", examples=["8.0"])
    ] = None
    model: Annotated[
        Models | None,
        Field(
            description="Part of the model's name, any case, e.g. H100; several with | between them: H100|A100",
            examples=["H100|A100"],
        ),
    ] = None
    exclude_model: Annotated[
        Models | None,
        Field(description="GPUs of these models are not taken: as model, e.g. T4|P100"),
    ] = None
    min_bandwidth_gb_s: Annotated[
        float,
        Field(
            ge=0,
            le=10_000,
            allow_inf_nan=False,
            description="Least bandwidth between the GPUs of a gang in one direction, GB/s (of a rank group, if the "
            "gang has several)",
        ),
    ] = 0.0
    allow_cross_numa: Annotated[
        bool, Field(description="May the GPUs of one host be on different sockets without NVLink?")
    ] = False
    constraints: Annotated[
        Constraints,
        Field(
            description="What the labels of each host must say: label=value, label=value|value, label!=value; all must "
            "hold. Fabric levels (leaf, spine, nvlink) are labels, too",
            examples=[["zone=a", "disk!=hdd"]],
        ),
    ] = ()
    hosts_include: Annotated[
        HostPatterns,
        Field(
            description="Only hosts with these names: dgx1, dgx*, dgx[1-4,7]; default: all",
            examples=[["dgx[1-4]"]],
        ),
    ] = ()
    hosts_exclude: Annotated[HostPatterns, Field(description="No host with these names, as hosts_include")] = ()
    strategy: Strategy = Strategy.PACK
    required_level: Annotated[
        str | None,
        Field(
            pattern=LEVEL_PATTERN,
            description="How close the GPUs must be: nvlink, numa, socket, host, leaf, spine, any, "
            "or a level that the configuration makes of host labels",
        ),
    ] = None
    preferred_level: Annotated[
        str | None, Field(pattern=LEVEL_PATTERN, description="As required_level, if possible")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, data: Any) -> Any:
        """Fill what depends on other fields: a total and a share are of GPUs, and without GPUs a host gives one CPU."""
        if not isinstance(data, dict):
            return data
        of_gpus = data.get("total") is not None or data.get("share") is not None
        # Compared with 0: a wrong value such as {} or null is not replaced, so that it is refused.
        if of_gpus and data.get("gpus_per_host", 0) == 0:
            data = {**data, "gpus_per_host": 1}
        if data.get("gpus_per_host", DEFAULT_GPUS) == 0 and data.get("cpus_per_host", 0) == 0:
            data = {**data, "cpus_per_host": 1}
        return data

    @model_validator(mode="after")
    def _asks_for_the_gpus_it_describes(self) -> Self:
        if self.gpus_per_host:
            return self
        level = self.required_level if self.required_level in INSIDE_ONE_HOST | {"nvlink"} else None
        described = {
            "model": self.model,
            "exclude_model": self.exclude_model,
            "memory_mib": self.memory_mib,
            "min_compute_capability": self.min_compute_capability,
            "min_bandwidth_gb_s": self.min_bandwidth_gb_s,
            "cpus_per_gpu": self.cpus_per_gpu,
            "ram_mib_per_gpu": self.ram_mib_per_gpu,
            f"required_level {level}": level,
        }
        if said := [name for name, value in described.items() if value]:
            raise ValueError(
                f"{' and '.join(said)} describes GPUs, but none is asked for: "
                "say how many with gpus_per_host (--gpus), e.g. 1"
            )
        return self

    @model_validator(mode="after")
    def _host_amounts_are_said_once(self) -> Self:
        slices = self if self.total is not None else self.slices(self.gpus_per_host, self.hosts)
        for per_gpu, per_host, follows in (
            ("cpus_per_gpu", "cpus_per_host", slices.cpus_per_host),
            ("ram_mib_per_gpu", "ram_mib_per_host", slices.ram_mib_per_host),
        ):
            said, each = getattr(self, per_host), getattr(self, per_gpu)
            # A stored request names both: the amount per host is what followed from the amount per GPU.
            if each and said not in (0, follows if self.total is None else 0):
                raise ValueError(
                    f"{per_gpu} {each} and {per_host} {said} are two answers to one question: leave one out"
                )
            object.__setattr__(self, per_host, follows)
        if self.cpus_per_host > MAX_CPUS_PER_HOST:
            raise ValueError(
                f"cpus_per_gpu {self.cpus_per_gpu} for {self.gpus_per_host} GPUs is {self.cpus_per_host} CPUs on each "
                f"host; at most {MAX_CPUS_PER_HOST} are allowed"
            )
        return self

    @model_validator(mode="after")
    def _level_can_hold_the_gang(self) -> Self:
        if self.hosts > 1 and self.required_level in INSIDE_ONE_HOST:
            raise ValueError(
                f"required_level {self.required_level!r} lies inside one host, but {self.hosts} hosts were asked for"
            )
        return self

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        if self.total is not None and (self.hosts, self.gpus_per_host) != (1, 1):
            raise ValueError("total says how many GPUs in all: leave hosts and gpus_per_host out")
        if self.total is not None and self.share is not None:
            raise ValueError("total counts whole GPUs: for shares say hosts and gpus_per_host")
        return self

    @model_validator(mode="after")
    def _bandwidth_is_between_gpus(self) -> Self:
        if self.min_bandwidth_gb_s and self.gpus == 1:
            raise ValueError(
                "min_bandwidth_gb_s is between the GPUs of a gang, but one GPU was asked for: leave it out"
            )
        return self

    def slices(self, gpus: int, hosts: int = 1) -> Self:
        """Return the request for ``hosts`` slices of ``gpus`` GPUs each. Amounts for each GPU become amounts of the
        host here, and nowhere else.
        """
        update: dict[str, object] = {"total": None, "hosts": hosts, "gpus_per_host": gpus}
        if self.cpus_per_gpu:
            update["cpus_per_host"] = self.cpus_per_gpu * gpus
        if self.ram_mib_per_gpu:
            update["ram_mib_per_host"] = self.ram_mib_per_gpu * gpus
        return self.model_copy(update=update)

    @property
    def host_choice(self) -> HostChoice:
        """Which hosts it may have, by labels and names."""
        return HostChoice(self.constraints, self.hosts_include, self.hosts_exclude)

    def on_any_host(self) -> Self:
        """Return the request of a job that may have every host."""
        if not self.host_choice:
            return self
        return self.model_copy(update={"constraints": (), "hosts_include": (), "hosts_exclude": ()})

    @property
    def takes_room_of_hosts(self) -> bool:
        """True if it asks for CPUs or memory of its hosts."""
        return bool(self.cpus_per_host or self.ram_mib_per_host or self.cpus_per_gpu or self.ram_mib_per_gpu)

    @property
    def gang_level(self) -> str | None:
        """The level whose domain a gang of several hosts must not leave: ``required_level``, or ``nvlink`` if only
        NVLink is as fast as the gang requires.
        """
        if self.min_bandwidth_gb_s > NETWORK_GB_S and (self.hosts > 1 or self.total is not None):
            return self.required_level if self.required_level in INSIDE_ONE_HOST else "nvlink"
        return self.required_level

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.total if self.total is not None else self.hosts * self.gpus_per_host
