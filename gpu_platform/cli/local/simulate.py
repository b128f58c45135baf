"""``gpu-platform simulate``: runs the scheduler's core on a trace, on this machine. It asks no service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.local.simulating.default_command import DEFAULT, RunsByDefault
from gpu_platform.cli.local.simulating.derive_mix import derive_mix
from gpu_platform.cli.local.simulating.progress import progress_line
from gpu_platform.cli.option_groups import grouped_options

if TYPE_CHECKING:
    from rich.table import Table

    from gpu_platform.domain.placing.cluster_state import ClusterState
    from gpu_platform.domain.placing.scheduler_input import HostRow
    from gpu_platform.domain.placing.window import WindowRow
    from gpu_platform.scheduling.simulator.inputs.failures import Outage
    from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
    from gpu_platform.scheduling.simulator.inputs.trace import Trace, TraceJob
    from gpu_platform.scheduling.simulator.reports.report import SimulationReport


def register(app: typer.Typer) -> None:
    """Add the command ``simulate`` with its own commands. Without the name of one it is ``simulate run``."""
    group = typer.Typer(cls=RunsByDefault, help="Run the scheduler on a trace of jobs, on this machine.")
    group.command(DEFAULT)(simulate)
    group.command("derive-mix")(derive_mix)
    app.add_typer(group, name="simulate")


@dataclass(frozen=True)
class _InputOptions:
    """What is simulated."""

    trace: Annotated[
        Path | None,
        typer.Argument(help="JSON lines, or a table as openb, Philly or Kalos publish it; may be gzipped."),
    ] = None
    cluster: Annotated[Path | None, typer.Option(help="YAML: machine types and how many hosts of each.")] = None
    snapshot: Annotated[
        Path | None, typer.Option(help="Start from what `gpu-platform snapshot` wrote; instead of --cluster.")
    ] = None
    windows: Annotated[
        Path | None,
        typer.Option(help="YAML: advance reservations and maintenance windows, besides those of the snapshot."),
    ] = None
    lasting: Annotated[
        str | None, typer.Option(help="With --snapshot: run time of its jobs without a time limit; default: for ever.")
    ] = None


@dataclass(frozen=True)
class _PolicyOptions:
    """The policies that are compared."""

    policy: Annotated[
        str,
        typer.Option(
            help="A YAML policy file, or the name of a queue order; default: the platform's, or the snapshot's."
        ),
    ] = "default"
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one setting, in all policies.")
    ] = None
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="Another policy: a file, the name of a queue order, or settings that differ, "
            "e.g. backfill=none,order=fcfs; repeatable.",
        ),
    ] = None


@dataclass(frozen=True)
class _ExtentOptions:
    """How much of the trace is simulated."""

    until: Annotated[
        str | None, typer.Option(help="When to stop, e.g. 12h or 7d; default: when all jobs have ended.")
    ] = None
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")] = None
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the N jobs that came first.")] = 0
    limits: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR",
            help="Give jobs without a time limit one: their run time times FACTOR. With a range like 1-5 each job's "
            "factor is random, and the limit is rounded up to one that people choose.",
        ),
    ] = None
    run_times: Annotated[
        str,
        typer.Option(
            metavar="learned|limits|known",
            help="What the scheduler knows of run times: what it learns from jobs that have ended (also those "
            "that --skip leaves out), only time limits, or the truth.",
        ),
    ] = "learned"
    load: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Change the times between arrivals, so that the jobs ask for this part of the GPU time, e.g. 0.9.",
        ),
    ] = None


@dataclass(frozen=True)
class _FailureOptions:
    """What fails, and what that costs."""

    failures: Annotated[
        Path | None, typer.Option(help="JSON lines of at_s, host, gpu, down_s; or InfiniteHBD's fault trace.")
    ] = None
    mtbf: Annotated[
        str | None, typer.Option(help="Mean time between failures of a GPU, e.g. 400d; instead of a file.")
    ] = None
    repair: Annotated[str, typer.Option(help="With --mtbf: how long a GPU is out of service.")] = "1h"
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random failures (--mtbf) and time limits.")] = 0
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Interval of the jobs' checkpoints, e.g. 30m; default: none, so they start from zero."),
    ] = None


@dataclass(frozen=True)
class _OutputOptions:
    """Where the figures go."""

    estimates: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Note the estimated start of about N jobs, if they wait when they come.",
        ),
    ] = 500
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with plots.")] = None
    json: session.Json = False


@grouped_options
def simulate(
    given: _InputOptions,
    policies: _PolicyOptions,
    extent: _ExtentOptions,
    failing: _FailureOptions,
    output: _OutputOptions,
) -> None:
    """Run a trace of jobs through the scheduler with a virtual clock: utilisation, waiting times, fairness.

    With --snapshot, start from a live cluster's state, e.g. to see when the jobs that wait now will have run.

    `run` may be left out. Files, what the figures mean, and where public traces are: docs/how-to/simulate.md.
    """
    import time  # the engine has no clock of its own

    from gpu_platform.scheduling.simulator import engine
    from gpu_platform.scheduling.simulator.inputs.policies import policies_to_compare
    from gpu_platform.scheduling.simulator.inputs.run_times import run_times_of
    from gpu_platform.scheduling.simulator.observers import Observers
    from gpu_platform.scheduling.simulator.reports.report import report_on

    _check_choices(given, failing)
    until_s, checkpoint_s = _seconds(extent.until), _seconds(failing.checkpoint)
    inputs = _read_inputs(given)
    loaded = _shaped(inputs, extent, failing.seed)
    earlier = _earlier(inputs, extent, failing.seed)
    live = inputs.state.policy if inputs.state else None
    compared = policies_to_compare(policies.policy, policies.compare or (), policies.settings or (), live)
    reports = []
    for one in compared:
        with progress_line(one.name) as progress:
            run = engine.simulate(
                loaded,
                inputs.hosts,
                one.policy,
                start=inputs.start(),
                failures=_failures(inputs.hosts, failing),
                until_s=until_s,
                checkpoint_s=checkpoint_s,
                observers=Observers(
                    time.perf_counter, progress, output.estimates, run_times_of(extent.run_times, earlier)
                ),
            )
        reports.append(report_on(run, one.name))
    _show(loaded, inputs, [one.note for one in compared if one.note], reports, output)


@dataclass(frozen=True)
class _Inputs:
    """What is simulated, as read from the files."""

    where: str
    """The name of the cluster's file."""
    hosts: list[HostRow]
    trace: Trace
    state: ClusterState | None
    lasting_s: float | None
    windows: list[WindowRow]
    """Of the file of windows."""

    def start(self) -> SimulationStart | None:
        """Return the start for one run. Every run needs its own, because it changes the start's records."""
        from gpu_platform.scheduling.simulator.inputs.start import SimulationStart

        if self.state:
            return SimulationStart.of(self.state, self.lasting_s, self.windows)
        return SimulationStart.empty(self.hosts, self.windows) if self.windows else None


def _check_choices(given: _InputOptions, failing: _FailureOptions) -> None:
    if failing.failures and failing.mtbf:
        raise typer.BadParameter("give --failures or --mtbf, not both")
    if (given.cluster is None) == (given.snapshot is None):
        raise typer.BadParameter("give --cluster or --snapshot")
    if given.trace is None and given.snapshot is None:
        raise typer.BadParameter("give a trace of jobs, or --snapshot")


def _read_inputs(given: _InputOptions) -> _Inputs:
    from gpu_platform.scheduling.simulator.inputs import files
    from gpu_platform.scheduling.simulator.inputs.trace import Trace

    lasting_s = _seconds(given.lasting)
    state = files.load_state(given.snapshot) if given.snapshot else None
    hosts = state.hosts if state else files.load_cluster(given.cluster or Path())
    where = (given.snapshot or given.cluster or Path()).stem
    host_size = max((len(host.inventory.gpus) for host in hosts), default=8)
    loaded = files.load_trace(given.trace, host_size) if given.trace else Trace.of(where, [])
    windows = files.load_windows(given.windows, hosts, state) if given.windows else []
    return _Inputs(where, hosts, loaded, state, lasting_s, windows)


def _shaped(inputs: _Inputs, extent: _ExtentOptions, seed: int) -> Trace:
    """Return the part of the trace that is simulated, with the limits and the load that were asked for."""
    from gpu_platform.scheduling.simulator.inputs.load import at_load
    from gpu_platform.scheduling.simulator.inputs.time_limits import LimitFactors, with_limits

    factors = LimitFactors.read(extent.limits) if extent.limits else None
    trace = inputs.trace.part(extent.skip, extent.jobs)
    if extent.load:
        trace = at_load(trace, sum(len(host.inventory.gpus) for host in inputs.hosts), extent.load)
    return with_limits(trace, factors, seed) if factors else trace


def _earlier(inputs: _Inputs, extent: _ExtentOptions, seed: int) -> list[TraceJob]:
    """Return the jobs that ended before the part of the trace that is simulated: what the scheduler learned from."""
    from gpu_platform.scheduling.simulator.inputs.time_limits import LimitFactors, with_limits

    trace, factors = inputs.trace.part(0, extent.skip), LimitFactors.read(extent.limits) if extent.limits else None
    begin_s = min((job.submit_s for job in inputs.trace.jobs[extent.skip :]), default=0.0)
    jobs = (with_limits(trace, factors, seed) if factors else trace).jobs
    return [job for job in jobs if job.submit_s + job.duration_s <= begin_s]


def _show(
    trace: Trace, inputs: _Inputs, policy_notes: list[str], reports: list[SimulationReport], output: _OutputOptions
) -> None:
    from gpu_platform.scheduling.simulator.reports import page

    start = inputs.start()
    notes = [*(start.notes if start else ()), *trace.notes, *policy_notes]
    if output.html:
        session.write_file(output.html, page.html_page(trace.name, inputs.where, notes, reports))
    if output.json:
        dumped = [report.model_dump(mode="json") for report in reports]
        session.print_json({"trace": trace.name, "cluster": inputs.where, "notes": notes, "reports": dumped})
        return
    for note in notes:
        session.say(f"note: {note}")
    session.show(_table(reports))


def _failures(hosts: list[HostRow], failing: _FailureOptions) -> list[Outage] | Iterator[Outage]:
    """The failures. Each policy needs a new iterator, so that all get the same failures."""
    from gpu_platform.scheduling.simulator.inputs import failures, files

    if failing.failures:
        return files.load_failures(failing.failures, hosts)
    mtbf_s = _seconds(failing.mtbf)
    return failures.random_outages(hosts, mtbf_s, _seconds(failing.repair) or 1.0, failing.seed) if mtbf_s else []


def _seconds(text: str | None) -> float | None:
    from gpu_platform.cli.parsing import limit_s

    return None if text is None else float(limit_s(text))


def _table(reports: list[SimulationReport]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from gpu_platform.scheduling.simulator.reports.page import best_of, metrics_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for report in reports:
        table.add_column(report.policy, justify="right")
    table.add_column("", style="dim")
    for metric in metrics_of(reports):
        best = best_of(metric, reports)
        texts = (metric.text(metric.value(report)) for report in reports)
        cells = (Text(text, style="green" if i in best else "") for i, text in enumerate(texts))
        table.add_row(metric.name, *cells, metric.meaning)
    return table
