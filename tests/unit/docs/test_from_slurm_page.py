"""The migration page says of each option of sbatch what the code does with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_platform.cli.slurm import sacct, scancel, sinfo, squeue
from gpu_platform.slurm import sbatch_options
from gpu_platform.slurm.getopt import OptionTable
from gpu_platform.steps import srun as step

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "from-slurm.md").read_text()
ROW = re.compile(r"^\| `--([a-z0-9-]+)`(?:, `-(\w)`)? \| (.+) \|$", re.MULTILINE)
OPTIONS = PAGE.partition("## Options of sbatch")[2].partition("Also refused")[0]


def test_each_option_is_on_the_page_and_means_what_the_code_does() -> None:
    written = {name: (short or "", text) for name, short, text in ROW.findall(OPTIONS)}
    expected = {}
    for of_kind in (
        sbatch_options.MAPPED,
        sbatch_options.OF_SBATCH,
        sbatch_options.SAID,
        sbatch_options.REFUSED,
    ):
        for key, text in of_kind.items():
            expected[sbatch_options.name_of(key)] = (key.rstrip("=?").partition("|")[2], text)
    assert written == expected
    assert set(written) == set(sbatch_options.TABLE.by_name)


def test_an_option_is_of_one_kind() -> None:
    kinds = (sbatch_options.MAPPED, sbatch_options.OF_SBATCH, sbatch_options.SAID, sbatch_options.REFUSED)
    names = [sbatch_options.name_of(key) for kind in kinds for key in kind]
    assert sorted(names) == sorted(set(names))


def test_variables_and_fields_are_those_of_the_code() -> None:
    for name in sbatch_options.ENVIRON:
        assert f"`{name}`" in PAGE
    of_lists = PAGE.partition("Fields of `squeue -o`")[2].partition("## ")[0]
    words = set(re.findall(r"`([^`]+)`", of_lists))
    expected = {f"%{letter}" for letter in (*squeue.LETTERS, *sinfo.LETTERS)} | {*squeue.NAMES, *sacct.COLUMNS}
    assert words - {"squeue -O", "sinfo -o", "sacct -o"} == expected


@pytest.mark.parametrize(
    ("command", "table"),
    [("squeue", squeue.OPTIONS), ("scancel", scancel.OPTIONS), ("sinfo", sinfo.OPTIONS), ("sacct", sacct.OPTIONS)],
)
def test_options_of_commands_exist(command: str, table: OptionTable) -> None:
    [row] = re.findall(rf"^\| `{command}` \| ([^|]+) \|", PAGE, re.MULTILINE)
    options = re.findall(r"(?<![\w-])(--?[a-zA-Z][a-z-]*)", row)
    assert options
    for option in options:
        given, _ = table.read([option, "x"], anywhere=True)
        assert given


def test_options_of_srun_in_a_script_exist() -> None:
    of_srun = PAGE.partition("| of `srun` in a script |")[2].partition("`scontrol show hostnames`")[0]
    for option in re.findall(r"`(--?[a-zA-Z][a-z-]*)`", of_srun):
        given, _ = step.OPTIONS.read([option, "1"], anywhere=True)
        assert given


def test_mapped_options_name_options_that_there_are() -> None:
    from gpu_platform.cli.commands import LazyCommands

    ours = {option for parameter in LazyCommands()["submit"].params for option in parameter.opts}
    for text in sbatch_options.MAPPED.values():
        for option in re.findall(r"--[a-z-]+", text):
            assert option in ours | {"--nodes", "--output"}, option
