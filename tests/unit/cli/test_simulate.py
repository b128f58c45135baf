"""``gpu-platform simulate`` as a user runs it; no service is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("gpu-platform"))
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


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb", "GPU_PLATFORM_API_URL": "http://127.0.0.1:1"}
    return subprocess.run(
        [PROGRAM, "simulate", "jobs.jsonl", "--cluster", "cluster.yaml", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_policies_side_by_side_as_a_table_and_a_page(folder: Path) -> None:
    ran = run(folder, "--policy", "mine.yaml", "--compare", "fcfs", "--html", "page.html")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[:2] == ["mine", "fcfs"]
    assert "Utilisation" in ran.stdout
    assert "wrote page.html" in ran.stderr
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_json_tells_everything(folder: Path) -> None:
    ran = run(folder, "--set", "order=fcfs", "--until", "2h30m", "--json")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    (report,) = result["reports"]
    assert (result["trace"], result["cluster"], report["end_s"]) == ("jobs.jsonl", "cluster", 9000)
    # First come, first served: a for two hours, then b for the rest of the time on half the GPUs.
    assert report["utilisation"] == pytest.approx((16 * 7200 + 8 * 1800) / (16 * 9000))
    assert (report["jobs"]["completed"], report["jobs"]["running"], report["jobs"]["waiting"]) == (1, 1, 1)
    assert report["decision_ms"]["count"] > 0


def test_failures_at_a_rate_strike_all_policies_alike(folder: Path) -> None:
    ran = run(folder, "--compare", "fcfs", "--mtbf", "1d", "--repair", "10m", "--checkpoint", "10m", "--json")
    first, second = json.loads(ran.stdout)["reports"]
    assert first["failures"] > 0
    assert first["restarts"] > 0
    assert second["restarts"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--policy", "none.yaml"], 2, "no file none.yaml"),
        (["--set", "weights.beauty=1"], 2, "no score is called beauty"),
        (["--failures", "none.jsonl"], 3, "no file none.jsonl"),
        (["--until", "soon"], 2, "is not a time"),
        (["--failures", "jobs.jsonl", "--mtbf", "1d"], 2, "not both"),
        (["--failures", "jobs.jsonl"], 2, "no list of failures"),
    ],
)
def test_mistakes_end_in_one_line(folder: Path, arguments: list[str], code: int, says: str) -> None:
    ran = run(folder, *arguments)
    assert ran.returncode == code
    assert says in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr
