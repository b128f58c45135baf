"""The options of ``gpu-platform submit`` that say what a job gets: GPUs, CPUs and memory, and on which hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import typer

from gpu_platform.cli import parsing
from gpu_platform.cli.option_groups import Fields, given


@dataclass(frozen=True)
class GpuOptions:
    """What the gang gets: GPUs, shares of GPUs, CPUs and memory, on how many hosts."""

    HEADINGS: ClassVar = {"gpus": "Resources", "allow_cross_numa": "Placement", "share": "Resources"}

    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs, on one host unless --hosts is given; default: none.")
    ] = None
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.")] = None
    gpus_per_host: Annotated[int | None, typer.Option(help="GPUs on each host; default: none.")] = None
    total: Annotated[
        int | None, typer.Option(help="Number of GPUs, on as few hosts as possible; instead of --gpus and --hosts.")
    ] = None
    gpu_memory: Annotated[
        int | None,
        typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Least memory of each GPU: 16GiB, 16g, 16384MiB."),
    ] = None
    min_compute_capability: Annotated[str | None, typer.Option(metavar="X.Y", help="For example 8.0.")] = None
    gpu_model: Annotated[
        str | None, typer.Option(metavar="MODEL[|MODEL]", help="Part of the model's name: H100, or 'H100|A100'.")
    ] = None
    exclude_gpu_model: Annotated[
        str | None, typer.Option(metavar="MODEL[|MODEL]", help="Models that are not taken, as with --gpu-model.")
    ] = None
    min_bandwidth: Annotated[
        float | None,
        typer.Option(parser=parsing.bandwidth_gb_s, metavar="RATE", help="Least bandwidth between GPUs: 100GB/s."),
    ] = None
    cuda: Annotated[
        str | None, typer.Option(metavar="X[.Y]", help="A CUDA installation of the hosts: 12, 12.4, >=12.4.")
    ] = None
    allow_cross_numa: Annotated[
        bool | None, typer.Option("--allow-cross-numa", help="Allow GPUs on different sockets without NVLink.")
    ] = None
    strategy: Annotated[Literal["pack", "spread"] | None, typer.Option(help="Fill hosts, or use empty ones.")] = None
    require: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="All GPUs in one nvlink, numa, socket, host, leaf, spine, or level of your own."
        ),
    ] = None
    prefer: Annotated[str | None, typer.Option(metavar="LEVEL", help="As --require, if possible.")] = None
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only hosts with this label: zone=a, 'zone=a|b', 'disk!=hdd'; may be repeated, all must hold.",
        ),
    ] = None
    hosts_include: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST[,HOST]", help="Only these hosts: dgx1, 'dgx*', 'dgx[1-4,7]'; may be repeated."),
    ] = None
    hosts_exclude: Annotated[
        list[str] | None, typer.Option(metavar="HOST[,HOST]", help="None of these hosts, as --hosts-include.")
    ] = None
    share: Annotated[
        int | None, typer.Option(metavar="PERCENT", help="Percent of each GPU's SMs; needs --share-memory.")
    ] = None
    share_mode: Annotated[
        Literal["mps", "time_slice"] | None,
        typer.Option(help="mps (limits SMs and memory) or time_slice (turns); default: mps where the host has it."),
    ] = None
    share_memory: Annotated[
        int | None, typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Memory of each GPU: 20GiB.")
    ] = None
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="One MIG instance of each GPU: 1g.10gb.")] = None
    cpus: Annotated[int | None, typer.Option(help="CPUs on each host for this job alone; default: 1 without GPUs.")] = (
        None
    )
    ram: Annotated[
        int | None,
        typer.Option(parser=parsing.memory_mib, metavar="SIZE", help="Memory on each host for this job alone."),
    ] = None
    cpus_per_gpu: Annotated[
        int | None, typer.Option(metavar="N", help="CPUs for each GPU, or share of one; instead of --cpus.")
    ] = None
    memory_per_gpu: Annotated[
        int | None,
        typer.Option(
            parser=parsing.memory_mib,
            metavar="SIZE",
            help="Memory of the host for each GPU, or share of one; instead of --ram. Not the GPU's own: --gpu-memory.",
        ),
    ] = None

    def fields(self) -> Fields:
        """The field ``gpus`` of a job.

        Raises :class:`typer.BadParameter` for options that exclude each other.
        """
        hosts, gpus_per_host = parsing.gang_shape(self.gpus, self.hosts, self.gpus_per_host)
        share = given(mig_profile=self.mig, percent=self.share, memory_mib=self.share_memory, mode=self.share_mode)
        request = given(
            hosts=hosts,
            gpus_per_host=gpus_per_host,
            memory_mib=self.gpu_memory,
            min_compute_capability=self.min_compute_capability,
            model=self.gpu_model,
            exclude_model=self.exclude_gpu_model,
            min_bandwidth_gb_s=self.min_bandwidth,
            cuda=self.cuda,
            allow_cross_numa=self.allow_cross_numa,
            strategy=self.strategy,
            required_level=self.require,
            preferred_level=self.prefer,
            constraints=self.constraint or None,
            hosts_include=_patterns(self.hosts_include),
            hosts_exclude=_patterns(self.hosts_exclude),
            total=self.total,
            cpus_per_host=self.cpus,
            ram_mib_per_host=self.ram,
            cpus_per_gpu=self.cpus_per_gpu,
            ram_mib_per_gpu=self.memory_per_gpu,
            share=share or None,
        )
        return given(gpus=request or None)


def _patterns(texts: list[str] | None) -> list[str] | None:
    return [pattern for text in texts or [] for pattern in parsing.host_patterns(text)] or None
