"""GPUs in a terminal: a table of many, and all that is known of one."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from gpu_platform.cli.show import tables
from gpu_platform.domain.hosts.gpu import Gpu, GpuHealth
from gpu_platform.domain.jobs.usage import GpuNow

_GIB_MIB = 1024


def gpus_table(gpus: Iterable[Gpu], wide: bool = False) -> Table:
    """One row per GPU. ``wide``: with uuids."""
    columns = ["GPU", *(["UUID"] if wide else []), "MODEL", "MEMORY", "STATE", "JOB", "FULL", "TEMP", "POWER", "UTIL"]
    table = tables.plain_table(*columns, "FAULTS", "RESETS", "NOTE")
    for gpu in gpus:
        table.add_row(
            f"{gpu.host}:{gpu.info.index}",
            *([gpu.info.uuid] if wide else []),
            gpu.info.model,
            f"{gpu.info.memory_mib / _GIB_MIB:.0f} GiB",
            tables.gpu_state(gpu),
            "\n".join(holders(gpu)) or "-",
            taken_text(gpu),
            measured(gpu.temperature_c, "{:.0f} °C"),
            measured(gpu.power_w, "{:.0f} W"),
            measured(gpu.utilization_percent, "{:.0f} %"),
            str(gpu.fault_count),
            str(gpu.reset_count),
            _note(gpu),
        )
    return table


def holders(gpu: Gpu) -> list[str]:
    """The jobs that hold it, each with its share."""
    return [one.job_id + (f" ({one.share})" if one.share is not None else "") for one in gpu.holders]


def taken_text(gpu: Gpu) -> str:
    """How much of a shared GPU is taken."""
    if not any(one.share is not None for one in gpu.holders):
        return "-"
    taken, all_of_it = gpu.memory_granted_mib / _GIB_MIB, gpu.info.memory_mib / _GIB_MIB
    return f"{gpu.percent_granted} %, {taken:.0f}/{all_of_it:.0f} GiB"


def gpu_details(gpu: Gpu, health: GpuHealth | None, away: str | None) -> Table:
    """All facts of one GPU. ``away``: why its host measures nothing now."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, value in (*_facts(gpu), *(_live(health) if health is not None else [("measured now", away or "-")])):
        facts.add_row(label, value)
    return facts


def now_table(gpus: Iterable[GpuNow]) -> Table:
    """What the GPUs of a running job do now."""
    table = tables.plain_table("GPU", "SHARE", "UTIL", "MEMORY", "TEMP", "POWER")
    for gpu in gpus:
        used = "-" if gpu.memory_used_mib is None else f"{gpu.memory_used_mib / _GIB_MIB:.1f}"
        table.add_row(
            f"{gpu.host}:{gpu.index}",
            gpu.share or "all of it",
            measured(gpu.utilization_percent, "{:.0f} %"),
            f"{used}/{gpu.memory_mib / _GIB_MIB:.0f} GiB",
            measured(gpu.temperature_c, "{:.0f} °C"),
            measured(gpu.power_w, "{:.0f} W"),
        )
    return table


def measured(value: float | None, form: str) -> str:
    """The value in the format ``form``, or ``-`` if it was not measured."""
    return "-" if value is None else form.format(value)


def _note(gpu: Gpu) -> str:
    host = "" if gpu.host_state == "READY" else f"host {gpu.host_state}"
    return "; ".join(text for text in (gpu.reason, host) if text)


def _facts(gpu: Gpu) -> Iterable[tuple[str, RenderableType]]:
    info = gpu.info
    yield "GPU", f"{gpu.host}:{info.index}"
    yield "uuid", info.uuid
    yield "serial", info.serial or "-"
    yield "model", f"{info.model}, {info.memory_mib} MiB, compute capability {info.compute_capability}"
    near = [f"NUMA node {measured(info.numa_node, '{}')}", f"socket {measured(info.socket, '{}')}"]
    yield "PCI", ", ".join([info.pci_bus_id or "-", *near, *([info.pcie_switch] if info.pcie_switch else [])])
    yield "state", tables.gpu_state(gpu)
    if note := _note(gpu):
        yield "note", note
    yield "held by", "\n".join(holders(gpu)) or "nobody"
    if (full := taken_text(gpu)) != "-":
        yield "taken", full + (f", shared by namespace {gpu.shared_by}" if gpu.shared_by else "")
    yield "faults", f"{gpu.fault_count}, resets {gpu.reset_count}"


def _live(health: GpuHealth) -> Iterable[tuple[str, RenderableType]]:
    if health.problem is not None:
        yield "problem", health.problem
    yield "temperature", measured(health.temperature_c, "{} °C")
    yield "power", f"{measured(health.power_w, '{:.0f}')} of {measured(health.power_limit_w, '{:.0f} W')}"
    used = measured(health.memory_used_mib, "{} MiB of memory used")
    yield "utilisation", f"{measured(health.utilization_percent, '{} %')}, {used}"
    yield "throttled by", ", ".join(health.throttled_by) or "nothing"
    ecc = f"{measured(health.corrected_ecc, '{}')} corrected, {measured(health.uncorrected_ecc, '{}')} uncorrected"
    yield "ECC errors", f"{ecc}, since the last reset"
    yield "remapped rows", measured(health.remapped_rows, "{}") + _remapping(health)
    up = f"{measured(health.nvlinks_up, '{}')} up (at best {measured(health.nvlinks_best, '{}')})"
    fabric = f"; {health.fabric_problem}" if health.fabric_problem else ""
    yield "NVLinks", f"{up}, {measured(health.nvlink_errors, '{}')} errors{fabric}"
    width = f"x{measured(health.pcie_width, '{}')} of x{measured(health.pcie_max_width, '{}')}"
    yield "PCIe", f"{width}, {measured(health.pcie_replays, '{}')} replays"
    yield "XIDs", ", ".join(f"{xid} ({often} times)" for xid, often in sorted(health.xids.items())) or "none"


def _remapping(health: GpuHealth) -> str:
    remapping = {
        "pending": health.remap_pending,
        "failed": health.remap_failed,
        "no spares": health.spare_rows_exhausted,
    }
    return "".join(f", {what}" for what, holds in remapping.items() if holds)
