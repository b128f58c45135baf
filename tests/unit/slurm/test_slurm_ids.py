"""Programs for Slurm take its ids for numbers: what they do with them, with ours."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpu_platform.cli.commands import LazyCommands
from gpu_platform.cli.jobs import copying
from gpu_platform.slurm.ids import id_of, number_of, shown_id, with_id_of
from gpu_platform.steps.environ import Layout, Options, script_environ
from gpu_platform.steps.output import names_of

JOB, ARRAY = "j-1jrp3k2h0x4t7za", "a-1jrp3k2h0x4t7zb"


def environ(job: str) -> dict[str, str]:
    base = {"GPU_PLATFORM_JOB_ID": job, "GPU_PLATFORM_HOST": "n01"}
    if "." in job:
        array, _, index = job.partition(".")
        base |= {"GPU_PLATFORM_ARRAY_ID": array, "GPU_PLATFORM_ARRAY_INDEX": index}
    return base | script_environ(base, Options(slurm=True), Layout(("n01",), (1,)), 0)


@pytest.mark.parametrize(
    "expression",
    [
        "$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))",
        "$((20000 + SLURM_JOB_ID % 20000))",
        "$((10000 + (SLURM_JOB_ID % 50000)))",
        "$((29500 + $SLURM_JOB_ID % 1000))",
        "$((10#${SLURM_JOB_ID: -4} + 15000))",
    ],
)
@pytest.mark.parametrize("jobs", [[JOB, "j-1jrp3k2h0x4t7zc"], [f"{ARRAY}.0", f"{ARRAY}.1"]])
def test_scripts_make_ports_of_the_id(expression: str, jobs: list[str]) -> None:
    ports = set()
    for job in jobs:
        done = subprocess.run(
            ["/bin/bash", "-c", f"echo {expression}"],
            env=environ(job) | {"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert 10000 <= int(done.stdout) < 65536, done.stderr
        ports.add(int(done.stdout))
    assert len(ports) == 2, "two jobs of one host have two ports"


@pytest.mark.parametrize("job", [JOB, ARRAY, f"{ARRAY}.17"])
def test_frameworks_read_it_as_a_number(job: str) -> None:
    """As Lightning, Ignite and JAX do, and Lightning before it requeues a job."""
    text = environ(job)["SLURM_JOB_ID"]
    assert 15000 <= int(text[-4:]) + 15000 < 65536
    assert 0 <= int(text) % 2**12 + (65535 - 2**12 + 1) < 65536
    assert re.match("[0-9_-]+", text)


def test_programs_find_it_in_sbatchs_answer() -> None:
    """As submitit, dask-jobqueue and Nextflow do; what they find is the name of the output file, too."""
    answer = f"Submitted batch job {number_of(JOB)}"
    for pattern in (r"job (?P<id>[0-9]+)", r"(?P<id>\d+)", r"Submitted batch job (?P<id>\d+)"):
        found = re.search(pattern, answer)
        assert found is not None
        assert found["id"] == environ(JOB)["SLURM_JOB_ID"] == names_of(environ(JOB), "x")["j"]
        assert id_of(found["id"]) == JOB


def test_an_element_has_a_number_of_its_own_and_that_of_its_array() -> None:
    seen = environ(f"{ARRAY}.3")
    assert seen["SLURM_ARRAY_JOB_ID"] == number_of(ARRAY) == names_of(seen, "x")["A"]
    assert seen["SLURM_JOB_ID"] == number_of(f"{ARRAY}.3") == names_of(seen, "x")["j"]
    for text in (seen["SLURM_JOB_ID"], f"{seen['SLURM_ARRAY_JOB_ID']}_3", f"{ARRAY}_3"):
        assert id_of(text) == f"{ARRAY}.3"
    assert shown_id(f"{ARRAY}.3") == f"{number_of(ARRAY)}_3"


@pytest.mark.parametrize("text", ["123", "4711_3", "9" * 24, "9" * 40, "j-1", f"{number_of(JOB)}_3", "", "x_1"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert id_of(text) == text


def test_every_command_of_ours_takes_the_number() -> None:
    commands = {name: LazyCommands()[name] for name in ("usage", "metrics")}
    commands |= {f"jobs {name}": one for name, one in LazyCommands()["jobs"].commands.items()}
    named = {
        name: (command, first)
        for name, command in commands.items()
        for first in command.params[:1]
        if "JOB" in (first.metavar or "")
    }
    assert len(named) > 15
    for name, (command, first) in named.items():
        more = ["8888"] * (len([one for one in command.params if one.param_type_name == "argument"]) - 1)
        with command.make_context(name, [number_of(JOB), *more]) as context:
            read = context.params[first.name]
        assert JOB in (read if isinstance(read, list) else [read]), name
    assert with_id_of(f"{number_of(JOB)}:model/3:4") == f"{JOB}:model/3:4"
    assert copying.parse_place(f"{number_of(ARRAY)}_3:x") == copying.JobPath(f"{ARRAY}.3", "x")
