"""All that is known of one host, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table

from gpu_platform.cli.show import list_columns, show_gpu, tables, times
from gpu_platform.domain.hosts.gpu import Gpu, Host


def host_details(host: Host, gpus: Sequence[Gpu]) -> Group:
    """The facts of a host, then its GPUs."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, value in _facts(host):
        facts.add_row(label, value)
    return Group(facts, *(["", show_gpu.gpus_table(gpus)] if gpus else []))


def _facts(host: Host) -> Iterable[tuple[str, RenderableType]]:
    yield "host", host.name
    yield "state", tables.state(host.state)
    if host.reason:
        yield "note", host.reason
    yield "machine", host.machine + (" (simulated)" if host.simulated else "")
    yield "GPUs", f"{host.gpus_free} of {host.gpus_total} free"
    if host.refused_gpus:
        owners = ", ".join(sorted(set(host.refused_gpus.values())))
        found = "\n".join(f"{uuid}: it belongs to {owner}" for uuid, owner in host.refused_gpus.items())
        yield "refused GPUs", f"{found}\nif {owners} lost them for ever: `gpu-platform hosts remove`"
    yield "fabric", f"leaf {host.leaf or '-'}, spine {host.spine or '-'}"
    yield "address", host.address
    yield "lease", f"{host.lease_remaining_s:.0f} s left"
    if host.certificate_ends_at is not None:
        ends_at = host.certificate_ends_at
        left = list_columns.certificate(ends_at, datetime.now(UTC))
        yield "certificate", f"{left} ({times.local(ends_at)})"
    yield "driver", f"{host.driver_version or '-'}, runs CUDA up to {host.cuda_version or '-'}"
    found = [f"{version} in {directory}" for version, directory in host.cuda_installations.items()]
    yield "CUDA", "\n".join([*found, *(f"{version}: {why}" for version, why in host.unusable_cuda.items())]) or "-"
    if host.nvswitches:
        yield "NVSwitches", str(host.nvswitches)
    if host.nics:
        yield "network cards", ", ".join(f"{nic.name} ({nic.kind})" for nic in host.nics)
    yield "isolation", host.isolation
    yield "containers", ", ".join(host.containers) or "none: it does not isolate ranks"
    yield "not guaranteed", "\n".join(host.missing_guarantees) or "-"
