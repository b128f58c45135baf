"""``gpu-platform machines …``: machine types, of which simulated hosts are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions

if TYPE_CHECKING:
    from gpu_platform.topology.description import MachineDescription

machines = typer.Typer(help="Machine types of simulated hosts: list, check, capture.", no_args_is_help=True)

Machine = Annotated[str, typer.Argument(metavar="FILE|TYPE", help="A YAML file, or a type that the platform knows.")]


def register(app: typer.Typer) -> None:
    """Add the commands for machine types."""
    machines.command("list")(list_machines)
    machines.command()(check)
    machines.command()(capture)
    app.add_typer(machines, name="machines")


@grouped_options
def list_machines(*, listing: ListingOptions) -> None:
    """The machine types that the platform knows."""
    from gpu_platform.cli.show.list_columns import MACHINES
    from gpu_platform.topology.description import load_description, machine_ids

    shown = listing.listing(MACHINES)
    shown.show(_row(load_description(machine_id)) for machine_id in machine_ids())


def _row(described: MachineDescription) -> dict[str, Any]:
    model = described.gpu
    gpus = len(described.inventory("host").gpus)
    return {
        "id": described.id,
        "name": described.name,
        "gpus": gpus,
        "model": model.model,
        "memory_mib": model.memory_mib,
    }


def check(machine: Machine) -> None:
    """Read a machine description, and print what the scheduler sees in it: groups of GPUs, and how fast they are.

    Every mistake is named with its field; then the exit code is 2.
    """
    from gpu_platform.topology.machine_file import find_machine

    session.write("\n".join(_summary(find_machine(machine))))


def capture(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A registered host.", show_default=False)],
    machine_id: Annotated[str | None, typer.Option("--id", help="Id of the machine type; default: the host's.")] = None,
    output: session.Output = None,
) -> None:
    """Write the description of a registered host, for `simulate` and `up --simulate`."""
    from gpu_platform.domain.errors import NotFound
    from gpu_platform.topology.machine_file import machine_of_host, to_yaml

    with session.service() as client:
        rows = {row.name: row for row in client.snapshot().hosts}
    if host not in rows:
        known = ", ".join(sorted(rows)[:10]) or "none"
        raise NotFound(f"there is no host {host}; registered are: {known}")
    inventory = rows[host].inventory
    text = to_yaml(machine_of_host(inventory, machine_id or inventory.machine, f"{inventory.machine}, as {host} is"))
    if output is None:
        session.write(text.rstrip())
        return
    session.write_file(output, text)


def _summary(described: MachineDescription) -> list[str]:
    from gpu_platform.domain.texts import counted
    from gpu_platform.topology.machine import machine_of, members
    from gpu_platform.topology.subsets import best_subset

    machine = machine_of(described.inventory("host"))
    model = described.gpu
    lines = [
        f"{described.id}: {described.name}",
        f"GPUs      {machine.size} x {model.model}, {model.memory_mib} MiB, "
        f"compute capability {model.compute_capability}{', MIG' if model.mig_capable else ''}",
    ]
    if described.cpus or described.ram_mib:
        lines.append(f"host      {described.cpus or '?'} CPUs, {described.ram_mib or '?'} MiB of memory")
    for title, groups in (
        ("sockets", machine.sockets),
        ("NUMA", machine.numa_nodes),
        ("switches", machine.switches),
        ("NVLink", machine.islands),
    ):
        numbers = " | ".join(" ".join(str(machine.gpus[p].index) for p in members(group)) for group in groups)
        lines.append(f"{title:<9} GPUs {numbers}")
    for size in range(2, machine.size + 1):
        best = best_subset(machine, machine.all_gpus, size, allow_cross_numa=True)
        if best is not None:
            indices = " ".join(str(machine.gpus[position].index) for position in members(best.gpus))
            speed = f"{best.bandwidth_gb_s:g} GB/s at level {best.level}"
            lines.append(f"{counted(size, 'GPU'):<9} {speed} (GPUs {indices})")
    return lines
