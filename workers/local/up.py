"""``gpu-platform up``: everything on this machine, until Ctrl-C. ``--demo`` runs the main job and ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from gpu_platform.cli.terminal import safe
from gpu_platform.client.credentials import TOKEN_FILE
from gpu_platform.domain.errors import PlatformError
from gpu_platform.node.nvml.opening import count_gpus, has_gpus
from gpu_platform.observability import configure_logging
from gpu_platform.settings.reading import read_settings
from gpu_platform.state_dir import keep_private
from gpu_platform.topology.machine_file import find_machine, is_machine_file
from workers.fleet.spec import FleetSpec
from workers.local.cluster import DEMO_NODES, ClusterConfig, LocalCluster, NodeSpec
from workers.local.demo import run_demo
from workers.local.fleets import some_of

console = Console(highlight=False, soft_wrap=True)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-platform up", description="Run the whole platform on this machine.", allow_abbrev=False
    )
    parser.add_argument("--demo", action="store_true", help="run a training job through an XID fault, then end")
    parser.add_argument("--state-dir", type=Path, default=Path.cwd() / ".gpu-platform", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=None, help="of the REST API; default 8700, 0: any free one")
    parser.add_argument("--temporal-port", type=int, default=None, help="default 7233, 0: any free one")
    parser.add_argument("--ui-port", type=int, default=None, help="of the Temporal UI; default 8233, 0: any free one")
    parser.add_argument("--database-url", help="PostgreSQL instead of SQLite: postgresql://user@host/database")
    parser.add_argument(
        "--simulate",
        metavar="NAME=MACHINE",
        action="append",
        default=[],
        help="a simulated host, e.g. box=dgx-h100 or box=my-host.yaml, or a fleet: 'rack*=dgx-h100:1000'; may be "
        "repeated. Default: this machine's GPUs, or four simulated hosts when it has none",
    )
    return parser.parse_args(argv)


def fleets_of(simulate: list[str]) -> tuple[FleetSpec, ...]:
    """The fleets that the command line asks for."""
    fleets = tuple(FleetSpec.parse(item) for item in simulate if FleetSpec.is_one(item))
    names = [fleet.name for fleet in fleets]
    if len(set(names)) < len(names):
        raise PlatformError("two fleets of one name: choose patterns that differ in more than the place of the *")
    return fleets


def nodes_of(simulate: list[str]) -> tuple[NodeSpec, ...]:
    """The single hosts that the command line asks for."""
    if simulate:
        nodes = []
        for item in (item for item in simulate if not FleetSpec.is_one(item)):
            name, found, machine = item.partition("=")
            if not found:
                raise PlatformError(f"--simulate {item!r}: write NAME=MACHINE, e.g. box=dgx-h100")
            machine = str(Path(machine).resolve()) if is_machine_file(machine) else machine
            find_machine(machine)
            nodes.append(NodeSpec(name, machine))
        return tuple(nodes)
    return (NodeSpec("local"),) if not read_settings().node.gpus or has_gpus() else DEMO_NODES


async def main(arguments: argparse.Namespace) -> int:
    """Run the local cluster until it is told to stop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)

    demo_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-demo-")) if arguments.demo else None
    default = (0, 0, 0) if arguments.demo else (8700, 7233, 8233)
    chosen = (arguments.port, arguments.temporal_port, arguments.ui_port)
    port, temporal_port, ui_port = (d if c is None else c for c, d in zip(chosen, default, strict=True))
    cluster = LocalCluster(
        ClusterConfig(
            state_dir=(demo_dir or arguments.state_dir).resolve(),
            # The demo always needs two hosts, so it brings its own.
            nodes=DEMO_NODES if arguments.demo and not arguments.simulate else nodes_of(arguments.simulate),
            fleets=fleets_of(arguments.simulate),
            port=port,
            temporal_port=temporal_port,
            temporal_ui_port=ui_port,
            database_url=arguments.database_url,
            fixed_metrics_ports=not arguments.demo,
            needs_hosts=arguments.demo,
        )
    )
    try:
        keep_private(cluster.config.state_dir, make=True)
        with console.status("starting: Temporal, service, control worker, schedulers, node workers"):
            await cluster.__aenter__()
        try:
            if arguments.demo:
                return await _unless_stopped(run_demo(cluster, console), stopped)
            _greet(cluster)
            await stopped.wait()
            console.print("stopping; ranks that run go on, and are found again by the next `up`")
            return 0
        finally:
            await cluster.stop()
    finally:
        if demo_dir is not None:
            shutil.rmtree(demo_dir, ignore_errors=True)


async def _unless_stopped(work, stopped: asyncio.Event) -> int:
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return 130
    return working.result()


def _greet(cluster: LocalCluster) -> None:
    name = read_settings().cluster.name
    console.print(f"[bold]{name} is up[/]   REST {cluster.api_url}/docs   Temporal UI {cluster.ui_url}")
    console.print(f"dashboard: {cluster.api_url}/ with the token in {cluster.config.state_dir / TOKEN_FILE}")
    console.print(f"state and logs: {cluster.config.state_dir}")
    for node in cluster.config.nodes:
        real = "real GPUs" if read_settings().node.gpus else "without GPU support"
        console.print(f"  host {node.name}: {node.simulate + ' (simulated)' if node.simulate else real}")
        if node.name in cluster.missing_hosts:
            story = cluster.nodes[node.name].story()
            console.print(safe(f"  host {node.name} has not registered: {story}", "red"))
    for fleet in cluster.config.fleets:
        names = [host.name for host in fleet.hosts()]
        console.print(f"  fleet {names[0]} to {names[-1]}: {fleet.count} x {fleet.machine} (simulated)")
    if late := cluster.missing_hosts - set(cluster.nodes):
        console.print(safe(f"  not registered yet: {some_of(late)}", "yellow"))
    export = "" if cluster.config.port == 8700 else f"export GPU_PLATFORM_API_URL={cluster.api_url}; "
    python = Path(sys.executable).parent
    console.print(f"try:  {export}{python}/gpu-platform submit {first_job(cluster.config)}")
    console.print("Ctrl-C stops it")


def first_job(config: ClusterConfig) -> str:
    """Options and command of a job that the hosts of this cluster can run: on two GPUs, or on what one host has."""
    machines = [node.simulate for node in config.nodes if node.simulate] + [fleet.machine for fleet in config.fleets]
    if machines:
        return f"{_gpus(max(len(find_machine(machine).gpus) for machine in machines))} --follow -- env"
    count = count_gpus() if read_settings().node.gpus else 0
    return f"{_gpus(count)} --wait -- nvidia-smi" if count else "--follow -- env"


def _gpus(there: int) -> str:
    return f"--gpus {min(2, there)}"


def _activate() -> None:
    """Jobs find the programs of this Python's virtual environment, also if nobody has activated it."""
    own = str(Path(sys.executable).parent)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if sys.prefix != sys.base_prefix and own not in places:
        os.environ["PATH"] = os.pathsep.join([own, *places])


def run() -> int:
    """Entry point of ``gpu-platform up``."""
    arguments = parse(sys.argv[1:])
    _activate()
    level = "ERROR" if arguments.demo else "WARNING"
    try:
        configure_logging("up", cluster=read_settings().cluster.name, level=level, json=False)
        return asyncio.run(main(arguments))
    except PlatformError as error:
        console.print(safe(error.message, "red"))
        return 1


if __name__ == "__main__":
    sys.exit(run())
