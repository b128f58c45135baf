"""Traces in the formats that the field publishes, and in our own (JSON lines of :class:`TraceJob`).

====== ======================================================================= =========================
format from                                                                    recognised by the column
====== ======================================================================= =========================
openb  Alibaba cluster-trace-gpu-v2023, ``openb_pod_list_*.csv``               ``gpu_milli``
philly msr-fiddle/philly-traces as ElasticFlow flattened it, one line a job    ``num_gpus``
kalos  AcmeTrace (Kalos) converted to workers and iterations                   ``gpu_workers``
jsonl  ourselves                                                               a line beginning with ``{``
====== ======================================================================= =========================
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain

from pydantic import ValidationError

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.simulator.inputs.trace import WHOLE_GPU_MILLI, Trace, TraceJob, gang

Row = dict[str, str]


def read_trace(name: str, lines: Iterable[str], host_size: int = 8) -> Trace:
    """Read a trace in any known format. ``host_size``: GPUs of a host, if the trace has only a total.

    Raises InvalidRequest with the line that cannot be read.
    """
    rest = iter(lines)
    first = next(rest, "")
    if first.lstrip().startswith("{"):
        return Trace.of(name, _json_lines(name, chain([first], rest)))
    columns = set(next(csv.reader([first]), []))
    for mark, reader in _READERS.items():
        if mark in columns:
            return reader(name, _Rows(name, csv.DictReader(chain([first], rest))), host_size)
    raise InvalidRequest(
        f"{name} is no trace that can be read: its first line is {first.strip()[:80]!r}; "
        f"known are JSON lines and tables with a column {', '.join(_READERS)}"
    )


class _Rows:
    """The rows of a table. An error inside the loop over them names the line."""

    def __init__(self, name: str, rows: csv.DictReader[str]) -> None:
        self._name = name
        self._rows = rows

    def jobs(self, convert: Callable[[Row], TraceJob | None]) -> Iterator[TraceJob]:
        for row in self._rows:
            try:
                job = convert(row)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidRequest(f"line {self._rows.line_num} of {self._name}: {_first_words(error)}") from error
            if job is not None:
                yield job


def _json_lines(name: str, lines: Iterable[str]) -> Iterator[TraceJob]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield TraceJob.model_validate_json(line)
        except ValidationError as error:
            raise InvalidRequest(f"line {number} of {name}: {_first_words(error)}") from error


def _openb(name: str, rows: _Rows, host_size: int) -> Trace:
    """Read an openb trace. Tasks without a GPU are left out. A task that was never scheduled lasts from creation to
    deletion."""
    left_out = shared = several = 0

    def convert(row: Row) -> TraceJob | None:
        nonlocal left_out, shared, several
        gpus = int(row["num_gpu"])
        if gpus == 0:
            left_out += 1
            return None
        percent = math.ceil(min(int(row["gpu_milli"]), WHOLE_GPU_MILLI) * 100 / WHOLE_GPU_MILLI)
        shared += percent < 100
        models = [model for model in (row["gpu_spec"] or "").split("|") if model]
        several += len(models) > 1
        resources = gang(gpus, host_size)
        resources = resources.model_copy(
            update={
                "model": models[0] if models else None,
                "share": Share(percent=percent, memory_mib=1) if percent < 100 else None,
                "cpus_per_host": math.ceil(int(row["cpu_milli"]) / 1000 / resources.hosts),
                "ram_mib_per_host": math.ceil(int(row["memory_mib"]) / resources.hosts),
            }
        )
        begin = float(row["scheduled_time"] or row["creation_time"])
        return TraceJob(
            id=row["name"],
            submit_s=float(row["creation_time"]),
            duration_s=max(0.0, float(row["deletion_time"]) - begin),
            gpus=resources,
            namespace=row["qos"] or "default",
        )

    jobs = list(rows.jobs(convert))
    notes = [
        f"{left_out} tasks without a GPU are left out" if left_out else "",
        f"{shared} tasks share GPUs with others of their namespace, which is their qos; how much GPU memory they need "
        "is not recorded: none is assumed" if shared else "",
        f"{several} tasks that accept several models are given only the first" if several else "",
    ]  # fmt: skip
    return Trace.of(name, jobs, filter(None, notes))


def _philly(name: str, rows: _Rows, host_size: int) -> Trace:
    """Read a Philly trace. A virtual cluster becomes a namespace; the earliest submission is second 0."""
    numbers = iter(range(10**9))
    jobs = list(
        rows.jobs(
            lambda row: TraceJob(
                id=f"philly-{next(numbers):06d}",
                submit_s=datetime.fromisoformat(row["timestamp"] + "+00:00").timestamp(),
                duration_s=float(row["duration"]),
                gpus=gang(int(row["num_gpus"]), host_size),
                namespace=row["cluster"],
            )
        )
    )
    begin = min((job.submit_s for job in jobs), default=0.0)
    return Trace.of(name, (job.model_copy(update={"submit_s": job.submit_s - begin}) for job in jobs))


def _kalos(name: str, rows: _Rows, host_size: int) -> Trace:
    """Read a Kalos trace. A worker is one host slice; a job lasts as long as all its iterations take."""

    def convert(row: Row) -> TraceJob:
        workers, each = int(row["gpu_workers"]), int(float(row["gpu_per_worker"]))
        iteration_s = float(row["iteration_computing_time"]) + float(row["iteration_networking_time"])
        return TraceJob(
            id=f"kalos-{int(row['job_id']):04d}",
            submit_s=float(row["arrival_time"]),
            duration_s=int(row["num_iteration"]) * iteration_s,
            gpus=ResourceRequest(hosts=workers, gpus_per_host=each, allow_cross_numa=True),
        )

    return Trace.of(name, rows.jobs(convert))


def _first_words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"column {error} is missing" if isinstance(error, KeyError) else str(error)


_READERS: dict[str, Callable[[str, _Rows, int], Trace]] = {
    "gpu_milli": _openb,
    "num_gpus": _philly,
    "gpu_workers": _kalos,
}
