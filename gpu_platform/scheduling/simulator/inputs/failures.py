"""Failures: what breaks, when, and for how long. From a rate, or from a record of a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.placing.scheduler_input import HostRow

DAY_S = 86_400.0


class Outage(BaseModel):
    """One failure. A failure file has one of these per line, as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: Annotated[float, Field(ge=0)]
    host: str
    gpu: int | None = None
    """Index of the GPU. None: the whole host."""
    down_s: Annotated[float, Field(gt=0)]


def random_outages(hosts: Sequence[HostRow], gpu_mtbf_s: float, down_s: float, seed: int = 0) -> Iterator[Outage]:
    """Yield failures without end. GPUs fail independently, each every ``gpu_mtbf_s`` on average (exponential)."""
    gpus = [(host.name, gpu.index) for host in hosts for gpu in host.inventory.gpus]
    generator = np.random.default_rng(seed)
    at_s = 0.0
    while gpus:
        at_s += float(generator.exponential(gpu_mtbf_s / len(gpus)))
        host, gpu = gpus[int(generator.integers(len(gpus)))]
        yield Outage(at_s=at_s, host=host, gpu=gpu, down_s=down_s)


def read_failures(name: str, lines: Iterable[str], hosts: Sequence[HostRow]) -> list[Outage]:
    """Read our JSON lines, or InfiniteHBD's fault trace (one JSON list of events).

    Its servers become our hosts in the order of their first fault; servers beyond our number of hosts are left out.
    Raises InvalidRequest for a file that cannot be read, and for hosts that do not exist.
    """
    rest = iter(lines)
    first = next(rest, "")
    try:
        if first.lstrip().startswith("["):
            found = list(_infinite_hbd(json.loads("".join(chain([first], rest))), hosts))
        else:
            found = [Outage.model_validate_json(line) for line in chain([first], rest) if line.strip()]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{name} is no list of failures: {error}") from error
    known = {host.name: {gpu.index for gpu in host.inventory.gpus} for host in hosts}
    for failure in found:
        if failure.host not in known:
            raise InvalidRequest(f"{name} names a host that the cluster does not have: {failure.host}")
        if failure.gpu is not None and failure.gpu not in known[failure.host]:
            raise InvalidRequest(f"{name}: {failure.host} has no GPU {failure.gpu}")
    return sorted(found, key=lambda failure: failure.at_s)


def _infinite_hbd(events: list[dict[str, object]], hosts: Sequence[HostRow]) -> Iterator[Outage]:
    """Read github.com/stepfun-ai/InfiniteHBD-Trace: fault_start and fault_end of servers, times in days."""
    ours: dict[str, str] = {}
    begun: dict[tuple[str, str], list[float]] = {}
    for event in events:
        node, at_s = str(event["node_id"]), float(str(event["event_time"])) * DAY_S
        if node not in ours and len(ours) < len(hosts):
            ours[node] = hosts[len(ours)].name
        fault = (node, json.dumps(event["fault_type"], sort_keys=True))
        if event["event_type"] == "fault_start":
            begun.setdefault(fault, []).append(at_s)
        elif begun.get(fault) and node in ours:
            start_s = begun[fault].pop(0)
            yield Outage(at_s=start_s, host=ours[node], down_s=max(1.0, at_s - start_s))
