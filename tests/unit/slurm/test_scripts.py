"""Scripts as users have them: what job they become, and what is said of what they ask for in vain."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from gpu_platform.cli import parsing
from gpu_platform.cli.commands import LazyCommands
from gpu_platform.cli.slurm import sbatch
from gpu_platform.cli.submitting import script_submission, scripts
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.slurm import sbatch_options
from gpu_platform.slurm.getopt import Given
from gpu_platform.slurm.script import Script, WrongScript, looks_like_script, parse, read_directives, read_script
from gpu_platform.slurm.times import read_moment
from gpu_platform.slurm.translation import Submitter, Translation, translate

SCRIPTS = Path(__file__).parents[2] / "slurm_scripts"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def script(name: str) -> Script:
    return read_script(SCRIPTS / name)


def translated(name: str, environ: dict[str, str] | None = None) -> Translation:
    given = read_directives(script(name).slurm, sbatch_options.TABLE)
    return translate(given, Submitter(name, "/home/ada/project", environ or {}, NOW))


def translate_lines(*options: str) -> Translation:
    text = "#!/bin/sh\n" + "".join(f"#SBATCH {option}\n" for option in options)
    given = read_directives(parse(text.encode(), "job.sh").slurm, sbatch_options.TABLE)
    return translate(given, Submitter("job.sh", "/home/ada/project", {}, NOW))


def options(found: Translation) -> dict[str, str | None]:
    """The words as a dictionary of option and value."""
    pairs: dict[str, str | None] = {}
    words = [*found.words]
    while words:
        name = words.pop(0)
        pairs[name] = words.pop(0) if words and not words[0].startswith("--") else None
    return pairs


def fields(script_name: str, **typed: Any) -> dict[str, Any]:
    return script_submission.prepared(LazyCommands()["submit"], script(script_name), [], typed).fields


def test_an_array() -> None:
    found = translated("array.sh")
    assert options(found) == {"--name": "sweep", "--cpus": "1", "--time": "300s", "--array": "0-4:2%2"}
    assert found.runner["array"] == {"count": 3, "min": 0, "max": 4, "step": 2}
    assert found.runner["output"] == "sweep-%A_%a.out"


def test_several_hosts_with_a_launcher_on_each() -> None:
    found = translated("torchrun.sh")
    assert options(found) == {
        "--name": "llama-finetune",
        "--gpu-model": "a100",
        "--gpus-per-host": "8",
        "--hosts": "4",
        "--cpus": "96",
        "--time": f"{2 * 86400}s",
        "--namespace": "nlp-group",
    }
    assert found.partitions == ["a100"]
    assert found.runner["ntasks_per_node"] == 1
    said = " ".join(found.notes)
    for option in ("--exclusive", "--mem=0"):
        assert option in said
    assert (found.mail_on, found.mail_to) == (["start", "end", "fail"], ["ada@example.org"])


def test_types_of_gpus_constraints_and_hosts() -> None:
    found = translated("gres.sh")
    assert options(found) == {
        "--name": "gres.sh",
        "--gpu-model": "rtx 3090",
        "--gpus-per-host": "2",
        "--cpus-per-gpu": "6",
        "--ram": f"{4096 * 12}MiB",
        "--hosts-exclude": "node[01-03],node17,login",
        "--constraint": "zone=a|b",
    }
    assert found.words.count("--constraint") == 2
    assert "nvlink=true" in found.words
    assert found.qos == "high"
    assert any("nvme" in note for note in found.notes)
    assert any("--nice" in note for note in found.notes)


def test_times_and_an_environment() -> None:
    found = translated("times.sh", {"HOME": "/home/ada", "SECRET": "x"})
    assert options(found) == {
        "--name": "times.sh",
        "--cpus": "1",
        "--time": "5400s",
        "--begin": "2026-12-01T14:00:00+00:00",
        "--deadline": "2099-01-01T00:00:00+00:00",
        "--warn-signal": "USR1",
        "--warn-before": "90s",
        "--hold": None,
        "--max-hardware-retries": "0",
        "--no-preempt": None,
    }
    assert found.env == {"DATA": "/data", "MODE": "a,b"}


def test_every_wrong_line_is_named_with_the_nearest_option() -> None:
    with pytest.raises(WrongScript) as error:
        read_directives(script("wrong.sh").slurm, sbatch_options.TABLE)
    first, second = str(error.value).splitlines()
    assert "wrong.sh:3:" in first
    assert "--nodes" in first
    assert "wrong.sh:5:" in second
    assert script("wrong.sh").late == (f"{SCRIPTS / 'wrong.sh'}:8",)


def test_our_own_lines_win_over_slurms_and_typed_ones_over_both() -> None:
    found = fields("ours.sh")
    assert found["time_limit_s"] == 7200
    assert found["priority"] == 5
    assert (found["gpus"]["hosts"], found["gpus"]["gpus_per_host"]) == (2, 4)
    assert found["env"]["MODE"] == "fast"
    typed = fields("ours.sh", time=60, total=3, name="mine")
    assert (typed["time_limit_s"], typed["gpus"], typed["name"]) == (60, {"total": 3}, "mine")
    runner = json.loads(typed["env"][scripts.OPTIONS])
    assert (runner["time_limit_s"], runner["name"]) == (60, "mine")


def test_the_runner_passes_the_warning_on_that_counts_in_the_end() -> None:
    def runner(**typed: Any) -> Any:
        return json.loads(fields("requeue.sh", **typed)["env"][scripts.OPTIONS]).get("passes_on")

    assert runner() == "USR1"
    assert runner(warn_signal="USR2") == "USR2"
    assert runner(signal="TERM@2") is None
    assert runner(signal="B:HUP@2") == "HUP"
    assert fields("requeue.sh")["warn_program_only"] is True


def test_a_wrong_line_of_ours_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#GPU --gpu 4\n#GPU --time 5\n#GPU --wait\ntrue\n")
    with pytest.raises(WrongScript) as error:
        script_submission.prepared(LazyCommands()["submit"], read_script(path), [], {})
    lines = str(error.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{path}:2", f"{path}:3", f"{path}:4"]
    assert "--gpus" in lines[0]


def test_the_text_travels_and_no_brace_of_it_is_filled_in() -> None:
    found = fields("array.sh")
    assert "{" not in found["env"][scripts.SCRIPT]
    assert json.loads(found["env"][scripts.SCRIPT]) == (SCRIPTS / "array.sh").read_text()
    JobSpec.model_validate(found)


def test_only_scripts_that_ask_the_platform_get_a_token() -> None:
    assert fields("requeue.sh").get("job_token") is True
    assert "job_token" not in fields("ddp.sh"), "scontrol show hostnames asks nobody"


@pytest.mark.parametrize(
    "name", ["GPU_PLATFORM_TOKEN", "SLURM_JOB_ID", "HOME", "CUDA_VISIBLE_DEVICES", "SSH_AUTH_SOCK"]
)
def test_the_submitters_token_and_session_stay_at_home(name: str) -> None:
    found = translated("output.sh", {name: "x", "MODE": "a", "not a name": "b"})
    assert found.env == {"MODE": "a"}


def test_the_platforms_variables_cannot_be_forged() -> None:
    with pytest.raises(WrongScript, match="GPU_PLATFORM_JOB_ID"):
        translate_lines("--export=GPU_PLATFORM_JOB_ID=j-1")


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["--gpus=16"], {"--total": "16"}),
        (["--gpus=16", "-N2"], {"--gpus-per-host": "8", "--hosts": "2"}),
        (["-n8", "--gpus-per-task=1", "-N2"], {"--gpus-per-host": "4", "--hosts": "2"}),
        (["-n8", "--ntasks-per-node=4", "--gpus-per-task=h100:1"], {"--gpus-per-host": "4", "--hosts": "2"}),
        (["--gres=gpu:1g.10gb:2"], {"--gpus-per-host": "2", "--mig": "1g.10gb"}),
        (["--gres=gpu"], {"--gpus-per-host": "1"}),
        (["--gpus-per-node=4", "--mem-per-gpu=32G"], {"--memory-per-gpu": "32768MiB"}),
        (["-n4", "-c8", "--mem-per-cpu=2G"], {"--cpus": "32", "--ram": f"{32 * 2048}MiB"}),
        (["--nodelist=n[1-2]"], {"--hosts-include": "n[1-2]", "--hosts": "2"}),
        (["--switches=1"], {"--prefer": "leaf"}),
        (["-d afterok:j-1:j-2,afterany:a-3_4"], {"--after": "j-1,j-2", "--after-any": "a-3.4"}),
        (["-d aftercorr:a-3", "--kill-on-invalid-dep=no"], {"--after-array": "a-3", "--if-unmet": "hold"}),
        (["--array=5,1,3%7"], {"--array": "1,3,5%7"}),
        (
            ["-N2", "--tasks-per-node=2", "--tres-per-task=cpu=3,gres/gpu:a100=1"],
            {"--gpus-per-host": "2", "--cpus": "6"},
        ),
        (["--tres-per-task=gres/gpu:a100=1"], {"--gpus-per-host": "1", "--gpu-model": "a100"}),
        (["--gres=gpu:8", "--gres-flags=disable-binding"], {"--gpus-per-host": "8", "--allow-cross-numa": None}),
    ],
)
def test_what_an_option_becomes(lines: list[str], wanted: dict[str, str]) -> None:
    found = options(translate_lines(*lines))
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--gpus=16 --nodes=3", "divided"),
        ("--gres=gpu:a100:1,gpu:h100:1", "groups"),
        ("--gres=shard:2", "--share"),
        ("--tres-per-task=license/x=1", "gres/gpu=1"),
        ("--container-image=x.sqsh", "apptainer"),
        ("--nodefile=nodes.txt", "--nodelist"),
        ("hetjob", "rank groups"),
        ("--dependency=after:j-1", "afterany"),
        ("--dependency=afterok:j-1?afterok:j-2", "enough"),
        ("--dependency=afterok:123", "j-"),
        ("--constraint=intel|amd", "label"),
        ("--constraint=[rack1*2&rack2*4]", "counterpart"),
        ("--signal=WINCH", "USR1"),
        ("--output=%q.out", "%j"),
        ("--container=/x", "OCI"),
        ("--time=soon", "minutes"),
        ("--nodes=0", "hosts"),
        ("--exclude=./nodes.txt", "names"),
    ],
)
def test_what_would_make_another_job_of_it_is_refused(line: str, says: str) -> None:
    with pytest.raises(WrongScript) as error:
        translate_lines(line)
    assert "job.sh:2" in str(error.value)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("lines", "tasks", "own"),
    [
        (["--gpus=8", "--ntasks-per-gpu=1"], (8, None), 1),
        (["-N2", "--gpus-per-node=4", "--ntasks-per-gpu=2"], (None, 8), None),
        (["-n4", "--gpus-per-task=1", "--gpu-bind=none"], (4, None), None),
        (["-n4", "--gres=gpu:4", "--gpu-bind=verbose,per_task:1"], (4, None), 1),
        (["-n2", "--gres=gpu:2", "--gpu-bind=map_gpu:0,1"], (2, None), 1),
    ],
)
def test_how_many_tasks_there_are_for_gpus_and_what_they_see(
    lines: list[str], tasks: tuple[int | None, int | None], own: int | None
) -> None:
    found = translate_lines(*lines)
    assert (found.runner["ntasks"], found.runner["ntasks_per_node"]) == tasks
    assert found.runner.get("gpus_per_task") == own
    assert found.notes == []


@pytest.mark.parametrize("text", ["closest", "single:2", "map_gpu:1,0", "mask_gpu:0x1"])
def test_another_binding_of_gpus_is_said(text: str) -> None:
    [note] = translate_lines("-n2", "--gres=gpu:2", f"--gpu-bind={text}").notes
    assert f"--gpu-bind={text}: no effect here" in note


def test_the_last_of_two_counts_and_the_command_line_wins() -> None:
    given = [Given("time", "10", "job.sh:2"), Given("time", "20", "job.sh:3"), Given("time", "30")]
    assert options(translate(given, Submitter("job.sh", "/", {}, NOW)))["--time"] == "1800s"


def test_variables_stand_between_directives_and_the_command_line() -> None:
    found = sbatch.of_environ({"SBATCH_TIMELIMIT": "5", "SBATCH_NO_REQUEUE": "1", "SBATCH_GRES": "", "HOME": "/"})
    assert found == [Given("no-requeue", "", "SBATCH_NO_REQUEUE"), Given("time", "5", "SBATCH_TIMELIMIT")]
    given = [Given("time", "1", "job.sh:2"), *found]
    assert options(translate(given, Submitter("job.sh", "/", {}, NOW)))["--time"] == "300s"


@pytest.mark.parametrize("text", ["USR1@60", "SIGUSR1@60", "10@60", "B:USR1@60"])
def test_a_signal_is_an_option_of_ours_too(text: str) -> None:
    warning = parsing.warning(text)
    assert (warning.signal, warning.before_s) == ("USR1", 60)


@pytest.mark.parametrize("text", ["Z:USR1@60", "WINCH@3", "USR1@soon"])
def test_a_wrong_signal_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parsing.warning(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"echo hi\n", "#!"),
        (b"#!/bin/sh\r\n#SBATCH -N1\r\n", "dos2unix"),
        (b"#!/bin/sh\n\0", "NUL"),
        (b"#!/bin/sh\n\xff\xfe", "UTF-8"),
        (b"#!/bin/sh\n" + b"#" * 100_000, "bytes"),
        (b"#!/bin/sh\n#SBATCH --job-name='x\n", "quotation"),
    ],
)
def test_what_is_no_script(content: bytes, says: str) -> None:
    with pytest.raises(WrongScript, match=says):
        parse(content, "job.sh")


def test_only_a_script_with_directives_is_read_as_one(tmp_path: Path) -> None:
    plain, binary = tmp_path / "plain.sh", tmp_path / "binary"
    plain.write_text("#!/bin/sh\n##SBATCH -N2\n# SBATCH -N2\n#SBATCHES\necho '#GPU'\n")
    binary.write_bytes(b"\x7fELF\n#SBATCH -N2\n")
    assert not looks_like_script(plain)
    assert not looks_like_script(binary)
    assert not looks_like_script(tmp_path)
    assert not looks_like_script(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert not looks_like_script(tmp_path / "pipe")
    assert looks_like_script(SCRIPTS / "ddp.sh")


@pytest.mark.parametrize(("launcher", "instead"), [("mpi", "mpirun in the script"), ("torchrun", "srun torchrun")])
def test_a_launcher_that_would_reach_one_host_only_is_refused(launcher: str, instead: str) -> None:
    found = parse(f"#!/bin/sh\n#SBATCH -N 2\n#GPU --launcher {launcher}\nmpirun x\n".encode(), "job.sh")
    with pytest.raises(WrongScript, match=f"--launcher {launcher} would not reach the others: .*{instead}"):
        script_submission.prepared(LazyCommands()["submit"], found, [], {})
    plain = parse(f"#!/bin/sh\n#GPU --launcher {launcher}\nmpirun x\n".encode(), "job.sh")
    assert script_submission.prepared(LazyCommands()["submit"], plain, [], {}).fields["launcher"] == launcher


@pytest.mark.parametrize(
    ("text", "begin", "since"),
    [
        ("now-2hours", "2026-12-01T10:00", "2026-12-01T10:00"),
        ("08:00", "2026-12-02T08:00", "2026-12-01T08:00"),
        ("today", "2026-12-01T12:00", "2026-12-01T00:00"),
        ("tomorrow", "2026-12-02T00:00", "2026-12-02T00:00"),
        ("1130", "2026-11-30T00:00", "2026-11-30T00:00"),
    ],
)
def test_sacct_reads_times_of_the_past(text: str, begin: str, since: str) -> None:
    assert f"{read_moment(text, NOW):%Y-%m-%dT%H:%M}" == begin
    assert f"{read_moment(text, NOW, past=True):%Y-%m-%dT%H:%M}" == since
