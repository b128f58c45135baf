"""``gpu-platform simulate`` as a user runs it; no service is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_platform.cli.local.simulating.progress import as_text
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, RunningRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, HostGroup
from gpu_platform.scheduling.simulator.observers import Progress
from tests.support.command_line import Ran, run_to_end

CLUSTER = "hosts: [{count: 2, machine: dgx-h100}]\n"
JOBS = [
    {"id": "a", "submit_s": 0, "duration_s": 7200, "gpus": {"hosts": 2, "gpus_per_host": 8}, "namespace": "vision"},
    {"id": "b", "submit_s": 60, "duration_s": 3600, "gpus": {"gpus_per_host": 8}, "namespace": "speech"},
    {"id": "c", "submit_s": 120, "duration_s": 600, "priority": 9, "gpus": {"hosts": 2, "gpus_per_host": 8}},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in JOBS))
    (tmp_path / "mine.yaml").write_text("order: priority\nweights: {topology: 5}\n")
    return tmp_path


def run(folder: Path, *arguments: str, cluster: bool = True) -> Ran:
    files = ("jobs.jsonl", "--cluster", "cluster.yaml") if cluster else ()
    return run_to_end("simulate", *files, *arguments, cwd=folder)


def test_policies_side_by_side_as_a_table_and_a_page(folder: Path) -> None:
    ran = run(folder, "--policy", "mine.yaml", "--compare", "fcfs", "--html", "page.html")
    assert ran.code == 0, ran.err
    assert ran.out.split()[:2] == ["mine", "fcfs"]
    assert "Utilisation" in ran.out
    assert "wrote page.html" in ran.err
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_any_settings_are_compared_and_an_order_says_what_it_keeps(folder: Path) -> None:
    ran = run(folder, "--compare", "fcfs", "--compare", "order=fcfs,backfill=none", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert [report["policy"] for report in result["reports"]] == ["default", "fcfs", "order=fcfs,backfill=none"]
    assert "its backfill is still easy" in result["notes"][-1]


def test_json_tells_everything(folder: Path) -> None:
    ran = run(folder, "--set", "order=fcfs", "--until", "2h30m", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    (report,) = result["reports"]
    assert (result["trace"], result["cluster"], report["end_s"]) == ("jobs.jsonl", "cluster", 9000)
    # First come, first served: a for two hours, then b for the rest of the time on half the GPUs.
    assert report["utilisation"] == pytest.approx((16 * 7200 + 8 * 1800) / (16 * 9000))
    assert (report["jobs"]["completed"], report["jobs"]["running"], report["jobs"]["waiting"]) == (1, 1, 1)
    assert report["decision_ms"]["count"] > 0


def test_random_limits_a_load_and_a_part_of_the_trace(folder: Path) -> None:
    ran = run(folder, "--skip", "1", "--limits", "1-5", "--seed", "4", "--load", "0.5", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert sum(result["reports"][0]["jobs"].values()) == 2
    assert "the jobs ask for 50% of the GPU time" in result["notes"][0]
    assert "1 to 5 times their run time at random (seed 4)" in result["notes"][1]


def test_the_mix_of_a_trace_is_a_policy_file_for_simulate(folder: Path) -> None:
    derived = run(folder, "derive-mix", "jobs.jsonl", cluster=False)
    assert derived.code == 0, derived.err
    assert "- {gpus: 8, weight: 1}" in derived.out
    (folder / "mix.yaml").write_text(derived.out)
    assert run(folder, "--policy", "mix.yaml", "--set", "weights=fragmentation").code == 0


def test_progress_is_one_line_and_only_for_a_terminal(folder: Path) -> None:
    assert "jobs done" not in run(folder).err  # not a terminal
    text = as_text("default", Progress(done=1234, jobs=5000, waiting=7, passed_s=7200.0), passed_s=2.0)
    assert text == "default: 1,234 of 5,000 jobs done, 7 wait; 2 h of virtual time; 617 jobs/s"


def test_failures_at_a_rate_strike_all_policies_alike(folder: Path) -> None:
    ran = run(folder, "--compare", "fcfs", "--mtbf", "1d", "--repair", "10m", "--checkpoint", "10m", "--json")
    first, second = json.loads(ran.out)["reports"]
    assert first["failures"] > 0
    assert first["restarts"] > 0
    assert second["restarts"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--policy", "none.yaml"], 2, "no file none.yaml"),
        (["--set", "weights.beauty=1"], 2, "no score is called beauty"),
        (["--failures", "none.jsonl"], 3, "no file none.jsonl"),
        (["--compare", "backfill=slow"], 2, "there is no backfill 'slow'; there are: easy"),
        (["--limits", "0.5"], 2, "write a number from 1 on"),
        (["--load", "9"], 2, "cannot ask for 900%"),
        (["--until", "soon"], 2, "is not a time"),
        (["--failures", "jobs.jsonl", "--mtbf", "1d"], 2, "not both"),
        (["--failures", "jobs.jsonl"], 2, "no list of failures"),
    ],
)
def test_mistakes_end_in_one_line(folder: Path, arguments: list[str], code: int, says: str) -> None:
    ran = run(folder, *arguments)
    assert ran.code == code
    assert says in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_a_live_cluster_is_replayed_with_its_own_policy(folder: Path) -> None:
    rows = ClusterFile(hosts=[HostGroup(count=2, gpus=8, name="gpu")]).rows()
    gpus = [GpuRow(gpu.uuid, row.name, gpu.index, GpuState.IN_USE, False) for row in rows for gpu in row.inventory.gpus]
    runs = RunningRow("runs", 1, "default", "ada", 0, tuple(gpu.uuid for gpu in gpus), 1000.0, 600.0)
    asked = ResourceRequest(gpus_per_host=8, allow_cross_numa=True)
    waits = [PlacementRequest(f"w{n}", 1, asked, n, "default", "ada", 1100.0 + n, time_limit_s=60.0) for n in range(3)]
    state = ClusterState(at=1200.0, hosts=rows, gpus=gpus, running=[runs], queue=waits, policy={"order": "fcfs"})
    (folder / "live.json").write_text(state.model_dump_json())
    ran = run(folder, "--snapshot", "live.json", "--compare", "priority", "--json", cluster=False)
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert [report["policy"] for report in result["reports"]] == ["default", "priority"]
    # What runs ends 400 s after the snapshot; then two start, then the third.
    assert [report["end_s"] for report in result["reports"]] == [520, 520]
    assert "each runs as long as it may" in result["notes"][0]


def test_one_of_cluster_and_snapshot_is_needed(folder: Path) -> None:
    assert "give --cluster or --snapshot" in run(folder, cluster=False).err
