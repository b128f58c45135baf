"""What ``launcher`` means for a job's specification."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpu_platform.domain.jobs.launcher import Launcher
from gpu_platform.domain.jobs.resources import RankPer
from gpu_platform.domain.jobs.spec import JobSpec


def spec(*command: str, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"command": list(command), "gpus": {"gpus_per_host": 2}, **fields})


@pytest.mark.parametrize(
    ("command", "per"),
    [
        (["python", "train.py"], RankPer.GPU),
        (["torchrun", "train.py"], RankPer.HOST),
        (["/opt/env/bin/torchrun", "train.py"], RankPer.HOST),
        (["python3", "-m", "torch.distributed.run", "train.py"], RankPer.HOST),
        (["python3", "-m", "mine"], RankPer.GPU),
    ],
)
def test_torchrun_decides_how_many_ranks_there_are_unless_the_job_does(command: list[str], per: RankPer) -> None:
    assert spec(*command, launcher="torchrun").rank_per is per
    assert JobSpec(command=tuple(command), gpus={"gpus_per_host": 2}, launcher="torchrun").rank_per is per  # type: ignore[arg-type]
    assert spec(*command, launcher="torchrun", rank_per="host").rank_per is RankPer.HOST
    assert spec(*command).rank_per is RankPer.HOST


def test_a_stored_job_keeps_its_ranks() -> None:
    made = spec("python", "x.py", launcher="torchrun", rank_per="host")
    assert JobSpec.model_validate_json(made.model_dump_json()) == made


def test_without_gpus_there_is_one_rank_per_host() -> None:
    assert spec("python", "x.py", launcher="torchrun", gpus={"hosts": 2}).rank_per is RankPer.HOST


def test_each_group_is_decided_by_its_own_command() -> None:
    groups = [
        {"name": "a", "gpus": {"gpus_per_host": 2}},
        {"name": "b", "gpus": {"gpus_per_host": 2}, "command": ["torchrun", "b.py"]},
        {"name": "c", "gpus": {"gpus_per_host": 2}, "rank_per": "host"},
    ]
    made = JobSpec.model_validate({"command": ["python", "a.py"], "groups": groups, "launcher": "torchrun"})
    assert [group.rank_per for group in made.groups] == [RankPer.GPU, RankPer.HOST, RankPer.HOST]


@pytest.mark.parametrize(
    "odd",
    [
        {"gpus": None},
        {"gpus": []},
        {"groups": "x"},
        {"groups": [1]},
        {"command": "x"},
        {"command": [1]},
        {"command": []},
    ],
)
def test_odd_input_is_refused_as_ever(odd: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"command": ["x"], "launcher": "torchrun", **odd})


def test_mpi_starts_processes_itself() -> None:
    assert spec("mpirun", "x", launcher="mpi").launcher is Launcher.MPI
    with pytest.raises(ValidationError, match="mpirun starts a process for each GPU itself"):
        spec("mpirun", "x", launcher="mpi", rank_per="gpu")
    with pytest.raises(ValidationError, match="leave groups out"):
        JobSpec.model_validate({"command": ["x"], "launcher": "mpi", "groups": [{"name": "a"}]})
