"""What the terminal shows, where the words matter: made up answers, no service."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rich.console import Console

from gpu_platform.client.wire import DryRun
from gpu_platform.domain.job import GpuRequest, JobEvent, JobSpec
from gpu_platform.domain.placement import EstimateBasis, Reason, WaitCode
from service.cli import show, show_waiting
from tests.store_cluster import NOW, placement


def shown(thing: Any) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as captured:
        console.print(thing)
    return captured.get()


def test_a_dry_run_says_which_hosts_are_spare() -> None:
    spec = JobSpec(command=["true"], gpus=GpuRequest(hosts=2, gpus_per_host=1), spare_hosts=1)
    answer = DryRun(accepted=True, message="would start now", placement=placement({"a": [0], "b": [0], "c": [0]}))
    lines = shown(show_waiting.dry_run(answer, spec)).splitlines()
    assert [line.strip() for line in lines if ": GPU" in line] == ["a: GPU 0", "b: GPU 0", "c: GPU 0 (spare)"]


def test_what_never_fits_is_not_told_to_wait_for_hosts_to_come_back() -> None:
    reason = Reason(code=WaitCode.NEVER_FITS, message="needs 8 GPUs", estimate=EstimateBasis.REPAIR)
    assert show_waiting.start_text(reason) == "never, unless it asks for less or hosts are added that can hold it"
    away = reason.model_copy(update={"code": WaitCode.NO_HOSTS})
    assert show_waiting.start_text(away) == "nobody can say when: hosts or GPUs must come back first"


def test_a_job_without_gpus_released_none() -> None:
    event = JobEvent(seq=1, at=NOW + timedelta(seconds=1), kind="gang.released", actor="control", data={"gpus": []})
    assert show.event_text(event) == "released"
    assert show.event_text(event.model_copy(update={"data": {"gpus": ["x"]}})) == "1 GPU released"
