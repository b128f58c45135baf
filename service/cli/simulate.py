"""``gpu-platform simulate``: runs the scheduler's core on a trace, on this machine. It asks no service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import session
from service.cli.submitting.option_groups import grouped_options

if TYPE_CHECKING:
    from rich.table import Table

    from gpu_platform.domain.placing.cluster_state import ClusterState
    from gpu_platform.domain.placing.scheduler_input import HostRow
    from gpu_platform.scheduling.simulator.inputs.failures import Outage
    from gpu_platform.scheduling.simulator.inputs.start import SimulationStart
    from gpu_platform.scheduling.simulator.inputs.trace import Trace
    from gpu_platform.scheduling.simulator.reports.report import SimulationReport


def register(app: typer.Typer) -> None:
    """Add the command ``simulate``."""
    app.command()(simulate)


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
    compare: Annotated[list[str] | None, typer.Option(metavar="POLICY", help="Another policy; repeatable.")] = None


@dataclass(frozen=True)
class _ExtentOptions:
    """How much of the trace is simulated."""

    until: Annotated[
        str | None, typer.Option(help="When to stop, e.g. 12h or 7d; default: when all jobs have ended.")
    ] = None
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N jobs.")] = None
    limits: Annotated[
        float | None,
        typer.Option(min=1, metavar="FACTOR", help="Give jobs without a time limit one: their run time times FACTOR."),
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
    seed: Annotated[int, typer.Option(min=0, help="With --mtbf: seed of the random failures.")] = 0
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Interval of the jobs' checkpoints, e.g. 30m; default: none, so they start from zero."),
    ] = None


@dataclass(frozen=True)
class _OutputOptions:
    """Where the figures go."""

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

    Formats of files, what the figures mean, and where public traces are: docs/how-to/simulate.md.
    """
    import time  # the engine has no clock of its own

    from gpu_platform.scheduling.simulator import engine
    from gpu_platform.scheduling.simulator.inputs import files
    from gpu_platform.scheduling.simulator.reports.report import report_on

    _check_choices(given, failing)
    until_s, checkpoint_s = _seconds(extent.until), _seconds(failing.checkpoint)
    inputs = _read_inputs(given)
    loaded = inputs.trace.first(extent.jobs) if extent.jobs else inputs.trace
    loaded = loaded.limited(extent.limits) if extent.limits else loaded
    live = inputs.state.policy if inputs.state else None
    reports = []
    for name in (policies.policy, *(policies.compare or ())):
        label, policy = files.load_policy(name, policies.settings or (), live)
        run = engine.simulate(
            loaded,
            inputs.hosts,
            policy,
            start=inputs.start(),
            failures=_failures(inputs.hosts, failing),
            until_s=until_s,
            checkpoint_s=checkpoint_s,
            clock=time.perf_counter,
        )
        reports.append(report_on(run, label))
    _show(loaded, inputs, reports, output)


@dataclass(frozen=True)
class _Inputs:
    """What is simulated, as read from the files."""

    where: str
    """The name of the cluster's file."""
    hosts: list[HostRow]
    trace: Trace
    state: ClusterState | None
    lasting_s: float | None

    def start(self) -> SimulationStart | None:
        """Return the start for one run. Every run needs its own, because it changes the start's records."""
        from gpu_platform.scheduling.simulator.inputs.start import SimulationStart

        return SimulationStart.of(self.state, self.lasting_s) if self.state else None


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
    return _Inputs(where, hosts, loaded, state, lasting_s)


def _show(trace: Trace, inputs: _Inputs, reports: list[SimulationReport], output: _OutputOptions) -> None:
    from gpu_platform.scheduling.simulator.reports import page

    start = inputs.start()
    notes = [*(start.notes if start else ()), *trace.notes]
    if output.html:
        output.html.write_text(page.html_page(trace.name, inputs.where, notes, reports), encoding="utf-8")
    if output.json:
        dumped = [report.model_dump(mode="json") for report in reports]
        session.print_json({"trace": trace.name, "cluster": inputs.where, "notes": notes, "reports": dumped})
        return
    for note in notes:
        session.say(f"note: {note}")
    session.show(_table(reports))
    if output.html:
        session.say(f"wrote {output.html}")


def _failures(hosts: list[HostRow], failing: _FailureOptions) -> list[Outage] | Iterator[Outage]:
    """The failures. Each policy needs a new iterator, so that all get the same failures."""
    from gpu_platform.scheduling.simulator.inputs import failures, files

    if failing.failures:
        return files.load_failures(failing.failures, hosts)
    mtbf_s = _seconds(failing.mtbf)
    return failures.random_outages(hosts, mtbf_s, _seconds(failing.repair) or 1.0, failing.seed) if mtbf_s else []


def _seconds(text: str | None) -> float | None:
    from service.cli.parsing import limit_s

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
