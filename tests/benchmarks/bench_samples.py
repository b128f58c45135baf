"""What the samples of a host with 8 GPUs cost: CPU to make and write them, bytes a day, and the time of a question.

The readings are made up and differ from each other, so that values repeat as little as they ever will.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_platform.domain.hosts.samples import (
    DAY_S,
    SAMPLE_S,
    HeldGpu,
    HostSamples,
    SampleQuery,
    Tally,
    point_length,
)
from gpu_platform.node.accounting.sample_files import SampleFiles
from gpu_platform.node.accounting.sample_recorder import Sample, SampleRecorder
from gpu_platform.node.nvml.gpu_signals import Reading

GPUS = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(8)]
BEGIN = 1_800_000_000 // DAY_S * DAY_S
READINGS_A_SECOND = 10
JOB_HOSTS = 128


def making(files: SampleFiles, seconds: int = 3000) -> None:
    """CPU of all that a node worker does for samples besides reading the GPUs, which it does anyway."""
    at = [float(BEGIN)]
    recorder = SampleRecorder(lambda: at[0])
    chance = random.Random(1)
    readings = [Reading(0.0, chance.randrange(30, 80), chance.randrange(101), 500.0, 40_000) for _ in range(1000)]
    cpu, began = time.process_time(), time.perf_counter()
    for step in range(seconds * READINGS_A_SECOND):
        at[0] = BEGIN + step / READINGS_A_SECOND
        for uuid in GPUS:
            recorder.on_reading(uuid, readings[step % 1000])
        if step % (SAMPLE_S * READINGS_A_SECOND) == 0:
            files.append(recorder.take())
    cpu_share, share = (time.process_time() - cpu) / seconds * 100, (time.perf_counter() - began) / seconds * 100
    what = "8 GPUs at 100 ms: to make and write samples"
    print(f"{what:<64} CPU {cpu_share:.3f} % of a core, {share:.3f} % of the time")


def write_days(files: SampleFiles, directory: Path, days: int, mib: int) -> None:
    """``mib``: how many different values the memory has."""
    chance = random.Random(2)
    for at in range(BEGIN, BEGIN + days * DAY_S, SAMPLE_S):
        power = 300 + at % 400
        files.append([Sample(at, uuid, chance.randrange(101), chance.randrange(mib), 60, power) for uuid in GPUS])
    size = sum(path.stat().st_size for path in directory.iterdir()) / days
    print(f"{'the same: on disk':<64} {size / 1e6:8.2f} MB a day")


def ask(files: SampleFiles, days: int, gpus: int) -> bytes:
    """As the node worker answers."""
    until = BEGIN + 30 * DAY_S
    since = until - days * DAY_S
    held = [HeldGpu(gpu_uuid=uuid, since=since, until=until) for uuid in GPUS[:gpus]]
    query = SampleQuery(since=since, until=until, point_s=point_length(until - since), gpus=held)
    return files.read(query).model_dump_json().encode()


def add_up(answers: list[bytes]) -> None:
    """As the service adds them up."""
    until = BEGIN + 30 * DAY_S
    tally = Tally(SampleQuery(since=until - DAY_S, until=until, point_s=point_length(DAY_S), gpus=[]))
    for answer in answers:
        tally.add(HostSamples.model_validate_json(answer).measured)
    tally.figures()


def timed(what: str, work: Callable[[], Any]) -> Any:
    cpu, began = time.process_time(), time.perf_counter()
    found = work()
    wall_ms, cpu_ms = (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3
    size = f", answer {len(found) / 1e3:.0f} kB" if isinstance(found, bytes) else ""
    print(f"{what:<64} {wall_ms:8.1f} ms, CPU {cpu_ms:.1f} ms{size}", flush=True)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        making(SampleFiles(Path(name) / "made", 30))
        for mib in (500, 80_000):
            print(f"memory with {mib:,} different values:")
            directory = Path(name) / str(mib)
            files = SampleFiles(directory, 30)
            write_days(files, directory, 30, mib)
            ask(files, 1, 1)
            timed("a host answers: 24 h of one GPU", lambda files=files: ask(files, 1, 1))
            answer = timed("a host answers: 24 h of 8 GPUs", lambda files=files: ask(files, 1, 8))
            timed("a host answers: 30 days of 8 GPUs", lambda files=files: ask(files, 30, 8))
            timed("the service adds up 24 h of one host", lambda answer=answer: add_up([answer]))
            timed(
                f"the service adds up 24 h of {JOB_HOSTS} hosts, 1,024 GPUs",
                lambda answer=answer: add_up([answer] * JOB_HOSTS),
            )


if __name__ == "__main__":
    main()
