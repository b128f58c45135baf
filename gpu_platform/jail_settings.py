"""The settings of a host's jails: what all jobs, one attempt and one rank may use. A part of ``NodeSettings``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class JailSettings(BaseModel):
    """How much of a host its jailed ranks get."""

    model_config = ConfigDict(extra="forbid")

    rank_pids_max: Annotated[int, Field(ge=16)] = 16_384
    """Tasks (processes and threads) of one jailed rank."""
    attempt_pids_max: Annotated[int, Field(ge=16)] | None = None
    """Tasks of all jailed ranks of an attempt on this host; None: half of ``pids_max``."""
    pids_max: Annotated[int, Field(ge=64)] | None = None
    """Tasks of all jailed ranks of this host; None: half of what its kernel allows (``kernel.pid_max``,
    ``kernel.threads-max``)."""
    rank_memory_mib: Annotated[int, Field(ge=16)] | None = None
    """Memory of one jailed rank, with its files in ``/tmp`` and ``/dev/shm``; None: what its attempt may use."""
    attempt_memory_mib: Annotated[int, Field(ge=16)] | None = None
    """Memory of all jailed ranks of an attempt on this host, for jobs that do not say; None: all but
    ``host_reserve_mib``."""
    host_reserve_mib: Annotated[int, Field(ge=0)] | None = None
    """Memory that all jailed ranks of this host together leave free; None: 5 % of the host's."""
    cpu_weight: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Weight of all jailed ranks together when CPUs are short, against other services of the host, which have 100.
    Between attempts the weight follows their GPUs."""
    io_weight: Annotated[int, Field(ge=1, le=10_000)] = 100
    """The same for local disks, where the kernel can weigh them (BFQ or its I/O cost model)."""
    attempt_io_mib_s: Annotated[int, Field(ge=1)] | None = None
    """The most MiB/s that an attempt reads from each local disk, and that it writes to it; None: no limit."""
    rank_tmp_mib: Annotated[int, Field(ge=1)] = 8_192
    """Size of a jailed attempt's private ``/tmp``."""
    rank_tmp_files: Annotated[int, Field(ge=16)] | None = 1_000_000
    """The most files in each of a jailed attempt's ``/tmp``, ``/var/tmp`` and ``/dev/shm``; None: the kernel's default
    (one for every two pages of memory)."""
    rank_shm_mib: Annotated[int, Field(ge=1)] | None = None
    """Size of a jailed attempt's ``/dev/shm``; None: half of the host's memory. What is in it counts as memory."""
    rank_memlock_mib: Annotated[int, Field(ge=0)] | None = None
    """Memory that each process of a jailed rank may lock (``ulimit -l``), as RDMA needs it; None: any amount."""
    rdma_management: bool = False
    """Jailed ranks also get the nodes for management datagrams of their RDMA cards (``umad``, ``issm``), for tools such
    as ``ibdiagnet``. Only where all users are trusted: these nodes can reconfigure the fabric."""
