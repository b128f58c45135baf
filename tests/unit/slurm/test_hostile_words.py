"""Slurm's commands are given what nobody meant: nothing is chosen, started or shown that was not written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.cli import placeholder, session
from gpu_platform.cli.commands import LazyCommands
from gpu_platform.cli.slurm import entry, job_lists, job_rows, sacct, sbatch, scontrol, squeue
from gpu_platform.cli.slurm.formats import letters, lines, long_names, of_sacct
from gpu_platform.cli.slurm.list_options import FILTERS
from gpu_platform.cli.submitting import scripts
from gpu_platform.slurm import amounts
from gpu_platform.slurm.array_option import read_array
from gpu_platform.slurm.constraints import read_constraint
from gpu_platform.slurm.dependencies import read_dependencies
from gpu_platform.slurm.exporting import exported
from gpu_platform.slurm.getopt import Given
from gpu_platform.slurm.hostlists import expand
from gpu_platform.slurm.mail import read_mail_types
from gpu_platform.slurm.patterns import filled
from gpu_platform.slurm.sbatch_options import MAPPED, name_of
from gpu_platform.slurm.script import WrongScript, parse
from gpu_platform.slurm.times import read_limit_s, read_moment
from gpu_platform.steps.environ import LAUNCH
from tests.unit.slurm.test_formats import job

# -- what chooses jobs ---------------------------------------------------------------------------------

COMMANDS = ("scancel", "squeue", "sacct", "sinfo")
EMPTY = ("", " ", ",", " , ,")


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> AbstractContextManager[Any]:
        raise AssertionError("the service was asked, so something was chosen")

    monkeypatch.setattr(session, "service", refuse)


def filters() -> list[tuple[str, str]]:
    tables = {name: entry.import_module(f"gpu_platform.cli.slurm.{name}").OPTIONS.by_name for name in COMMANDS}
    found = [(name, one) for name, table in tables.items() for one in FILTERS if one in table]
    found = [(name, one) for name, one in found if tables[name][one].value == "required"]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("value", EMPTY)
@pytest.mark.parametrize(("command", "option"), filters())
@pytest.mark.usefixtures("nobody_is_asked")
def test_a_filter_without_a_value_never_means_all(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.run(command, [f"--{option}={value}"]) == 1
    assert capsys.readouterr().err == f"{command}: error: --{option}: the value is empty\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("scancel", ["--me"]),
        ("scancel", ["--user=ada"]),
        ("scancel", []),
        ("scontrol", ["hold"]),
        ("scontrol", ["release"]),
        ("scontrol", ["requeue"]),
    ],
)
@pytest.mark.parametrize("value", EMPTY)
@pytest.mark.usefixtures("nobody_is_asked")
def test_an_id_that_is_empty_does_not_widen_a_filter(command: str, words: list[str], value: str) -> None:
    assert entry.run(command, [*words, value]) == 1


@pytest.mark.parametrize(
    "text", ["٣", "1_[1-99999999]", "1586_[1-9", "-1", "j-1;j-2", "../hosts/x", "j-1/../j-2", "*", "%"]
)
def test_what_is_no_id_names_no_job(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|is too large"):
        job_lists.ids(text)


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "-1", "x", ""])
@pytest.mark.parametrize("command", ["squeue", "sinfo"])
@pytest.mark.usefixtures("nobody_is_asked")
def test_an_interval_is_a_number_of_seconds(command: str, value: str) -> None:
    assert entry.run(command, [f"--iterate={value}"]) == 1


# -- what a script asks for ------------------------------------------------------------------------------

_SEPARATORS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@given(
    st.lists(st.sampled_from(["#!/bin/sh", "#SBATCH --account=x", "#GPU --hold", "# a", "", *_SEPARATORS]), max_size=8)
)
def test_a_directive_begins_a_line_as_shells_and_readers_see_lines(pieces: list[str]) -> None:
    text = "#!/bin/bash\n# " + "".join(pieces) + "#\n#SBATCH --nodes=1\n"
    found = parse(text.encode(), "job.sh")
    assert [one.where for one in (*found.slurm, *found.ours)] == ["job.sh:3"]


def test_only_commands_that_a_shell_runs_get_a_token() -> None:
    for separator in _SEPARATORS:
        hidden = parse(f"#!/bin/sh\n# no {separator}sbatch more.sh\ntrue\n".encode(), "job.sh")
        assert not scripts.job_of(LazyCommands()["submit"], hidden, [], {}, []).job_token


_HOSTILE = (
    *(
        "--hold",
        "-h",
        "--",
        "--user=root",
        "x --hold",
        "a\n--hold",
        "--namespace=root",
        "@/etc/passwd",
        "-",
        "",
        "$(id)",
        "=",
    ),
    *("--json", "a,--hold", "\x1b[2J", "../x", "~root", "{index}", "a;b", "--priority 100", "a|b", "partition=x"),
)
_BECOMES = {
    "account": {"namespace"},
    "chdir": {"workdir"},
    "constraint": {"constraint"},
    "exclude": {"hosts_exclude"},
    "gres-flags": {"allow_cross_numa"},
    "hold": {"hold"},
    "job-name": {"name"},
    "no-requeue": {"no_preempt", "max_hardware_retries"},
    "nodelist": {"hosts_include", "hosts"},
    "reservation": {"reservation"},
    "spread-job": {"strategy"},
    "switches": {"prefer"},
}


@pytest.mark.parametrize("option", [name_of(key) for key in MAPPED])
def test_no_value_of_an_option_becomes_another_option(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "_by_cluster", lambda *_: [])  # partitions and levels of priority: the cluster's own
    command, script = LazyCommands()["submit"], parse(b"#!/bin/sh\ntrue\n", "job.sh")
    plain = scripts.job_of(command, script, [], {}, []).params
    for value in _HOSTILE:
        try:
            found = scripts.job_of(command, script, [], {}, [Given(option, value)]).params
        except (WrongScript, ValueError):
            continue
        changed = {name for name in found if found[name] != plain.get(name)}
        assert changed <= _BECOMES.get(option, set()), (option, value)


@given(
    st.text(st.sampled_from("AB=,'\" \\\n$x"), max_size=24), st.dictionaries(st.sampled_from("AB"), st.text(max_size=3))
)
def test_export_gives_what_is_written_or_is_refused(text: str, environ: dict[str, str]) -> None:
    try:
        found = exported(text, environ)
    except ValueError:
        return
    for name, value in found.items():
        assert name.isidentifier()
        if value != environ.get(name):
            assert all(part in text for part in value.split()), "a value has nothing that was not written"
            assert value.count(",") <= text.count(",")


@pytest.mark.parametrize("text", ["MSG=it's,PATH", "A='x", 'A="x,B=y', "A='\"", 'A="a"\''])
def test_a_quotation_mark_that_is_not_closed_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="not closed"):
        exported(text, {"PATH": "/bin", "s": "x"})


@pytest.mark.parametrize("name", ["GPU_PLATFORM_TOKEN", "A\nB", "A B", "", "1A", "a-b", "BASH_FUNC_x%%", "Ａ"])
def test_a_name_that_is_none_is_not_exported(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not the name|sets its own"):
        exported(f"{name}=x,ALL", {})
    assert name not in exported("ALL", {name: "x"})


def test_a_wrapped_command_is_the_script_and_no_directive(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(sbatch, "submit", lambda made, _: asked.append(made.fields) or 0)
    assert sbatch.run(["--wrap", "true\n#SBATCH --account=other\n#GPU --hold"]) == 0
    assert "namespace" not in asked[0]
    assert "hold" not in asked[0]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text", ["n[0-65535]," * 8000, "n[1,1,1,1,1,1,1,1]" + "[1,1]" * 40, "a[0-9]" * 60, "n[0-999999999]"]
)
def test_a_list_of_hosts_has_its_bound_whatever_it_repeats(text: str) -> None:
    with pytest.raises(ValueError, match="names more than 65536 hosts"):
        expand(text.strip(","))


_PARSERS: dict[str, Callable[[str], object]] = {
    "memory": amounts.read_memory_mib,
    "nodes": amounts.read_nodes,
    "gpus": amounts.read_gpus,
    "gres": amounts.read_gres,
    "tres": amounts.read_tres,
    "gpu-bind": amounts.read_gpu_bind,
    "signal": amounts.read_signal,
    "array": read_array,
    "constraint": read_constraint,
    "dependency": read_dependencies,
    "export": lambda text: exported(text, {}),
    "hosts": expand,
    "ids": job_lists.ids,
    "mail": read_mail_types,
    "pattern": lambda text: filled(text, {}),
    "limit": read_limit_s,
    "moment": lambda text: read_moment(text, datetime.now(UTC)),
    "letters": lambda text: letters(text, squeue.LETTERS),
    "names": lambda text: long_names(text, squeue.NAMES),
    "columns": lambda text: of_sacct(text, sacct.COLUMNS, "|", False),
}
_REPEATED = (
    *("(", "[", "]", "'", '"', ",", "-", "a", "1", ":", "%", "\\", "|", "&", "a,", "1-", "[1", "(a", "[1],"),
    *("%j", " ", "a:", "gpu:1(", "gpu,", "afterok:", "j-1:", "%.1i"),
)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", _PARSERS)
def test_the_time_of_a_parser_grows_as_the_text_does(name: str) -> None:
    """What takes seconds for 90,000 characters took the square of their number."""
    for unit in _REPEATED:
        with suppress(ValueError):
            _PARSERS[name]("gpu:" + (unit * 90_000)[:90_000] + "!")


# -- what is shown -----------------------------------------------------------------------------------------

_TEXT = st.text(st.sampled_from("ab|,:;\n\t\r \x1b\u202e\u2028\x85"), max_size=12)


@given(_TEXT, _TEXT, st.sampled_from(["|", ",", ":", "::", ";", " ", "ab"]))
def test_a_text_of_a_job_is_one_field_of_what_programs_read(workdir: str, word: str, delimiter: str) -> None:
    spec = {**job()["spec"], "workdir": workdir, "command": [word, word]}
    cells = of_sacct("WorkDir,SubmitLine,AllocTRES", sacct.COLUMNS, delimiter, False)
    [line] = lines(cells, [job(spec=spec)], header=False)
    assert line.count(delimiter) == 2
    assert len(line.splitlines()) <= 1


@pytest.mark.parametrize(
    "text", ["x\n   JobState=COMPLETED ExitCode=0:0", "x\tUserId=root", "x\u2028JobId=1", "x\x1b[2J"]
)
def test_a_text_of_a_job_is_no_other_field_of_scontrol(text: str) -> None:
    spec = {**job()["spec"], "command": ["/bin/true", text], "workdir": text}
    shown: list[str] = []
    record: Callable[[str], None] = shown.append
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "write", record)
        patched.setattr(session, "service", _Nothing)
        patched.setattr(scontrol, "_job_records", lambda *_: ([scontrol._job_record(job(spec=spec))], []))
        scontrol.run(["show", "job"])
    heads = [line.split("=")[0].strip() for line in shown[0].splitlines() if line.strip()]
    assert heads.count("JobState") == heads.count("JobId") == 1
    assert "UserId=root" not in [line.strip() for line in shown[0].splitlines()]


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "rm -r ~", placeholder.NAME, "900", "train.py"],
        ["rm", "-r", "x", placeholder.NAME, "train.py"],
        ["/bin/sh", "-c", "rm -r ~", "slurm_script", "a"],
        ["rm", "-r", "x", "slurm_script"],
        [*LAUNCH[:3], "script", "a"],
    ],
)
def test_a_command_that_looks_like_ours_is_shown_as_it_is(command: list[str]) -> None:
    assert placeholder.shown_command(command) == command
    assert placeholder.command_of(command) is None
    assert job_rows.command(job(spec={**job()["spec"], "command": command})) == " ".join(command)


def test_a_script_is_shown_by_its_name() -> None:
    command = [*LAUNCH, "a", "b"]
    assert job_rows.command(job(spec={**job()["spec"], "command": command})) == "a-very-long-name a b"
