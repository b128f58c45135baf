"""Turns options of ``sbatch`` into options of ``gpu-platform submit``, and into what the runner of the script needs.

What has no meaning here becomes a note, which is printed. What would make another job of it is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from gpu_platform.slurm.amounts import (
    Gpus,
    read_gpu_bind,
    read_gpus,
    read_gres,
    read_memory_mib,
    read_nodes,
    read_number,
    read_signal,
    read_tres,
)
from gpu_platform.slurm.array_option import read_array
from gpu_platform.slurm.constraints import read_constraint
from gpu_platform.slurm.dependencies import read_dependencies
from gpu_platform.slurm.exporting import exported
from gpu_platform.slurm.getopt import Given
from gpu_platform.slurm.hostlists import compress, expand, expand_or_none
from gpu_platform.slurm.mail import read_mail_types, read_mail_users
from gpu_platform.slurm.patterns import filled
from gpu_platform.slurm.sbatch_options import REFUSED_BY_NAME, SAID_BY_NAME
from gpu_platform.slurm.script import WrongScript
from gpu_platform.slurm.times import read_limit_s, read_moment

T = TypeVar("T")

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_DEPENDENCY_OPTIONS = {"ok": "--after", "any": "--after-any", "fail": "--after-fail", "each": "--after-array"}


@dataclass(frozen=True)
class Submitter:
    """From where a script is submitted."""

    script_name: str
    directory: str
    environ: Mapping[str, str]
    now: datetime
    host: str = ""
    user: str = ""


@dataclass
class Translation:
    """What became of the options."""

    words: list[str] = field(default_factory=list)
    """Options of ``gpu-platform submit``."""
    runner: dict[str, Any] = field(default_factory=dict)
    """Fields of ``gpu_platform.steps.environ.Options``."""
    env: dict[str, str] = field(default_factory=dict)
    """What the job gets of the submitter's environment."""
    notes: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    """Partitions that were named. Whether there are any, the cluster knows."""
    qos: str | None = None
    is_singleton: bool = False
    """It waits for the user's jobs of its name. Which these are, the cluster knows."""
    mail_on: list[str] = field(default_factory=list)
    """Of what somebody is told by mail. Whether there is mail, the cluster knows."""
    mail_to: list[str] = field(default_factory=list)
    """Addresses. Empty: the submitter's own."""

    def say(self, one: Given, text: str) -> None:
        """Note something about an option."""
        where = f"{one.where}: " if one.where else ""
        self.notes.append(f"{where}{one.written}: {text}")


def translate(given: Iterable[Given], submitter: Submitter) -> Translation:
    """The job that these options describe; of an option that is given twice, the last one counts.

    Raises :class:`WrongScript`, with a line for each wrong option.
    """
    return _Translator({one.name: one for one in given}, submitter).translated()


class _Translator:
    def __init__(self, given: dict[str, Given], submitter: Submitter) -> None:
        self._given, self._submitter = given, submitter
        self._wrong: list[str] = []
        self._to = Translation()

    def translated(self) -> Translation:
        for name, one in self._given.items():
            if name in REFUSED_BY_NAME:
                self._refuse(one, REFUSED_BY_NAME[name])
            elif name in SAID_BY_NAME:
                self._to.say(one, f"no effect here: {SAID_BY_NAME[name]}")
        self._name()
        self._tres_of_tasks()
        self._resources()
        self._times()
        self._choice_of_hosts()
        self._order()
        self._outputs()
        self._environment()
        self._to.mail_on = self._value("mail-type", read_mail_types) or []
        self._to.mail_to = self._value("mail-user", read_mail_users) or []
        if self._wrong:
            raise WrongScript("\n".join(self._wrong))
        return self._to

    def _value(self, name: str, read: Callable[[str], T]) -> T | None:
        """What the option says. None: it is not given, or it is wrong, which is noted."""
        one = self._given.get(name)
        if one is None:
            return None
        try:
            return read(one.value)
        except ValueError as error:
            self._refuse(one, str(error))
            return None

    def _number(self, name: str, what: str) -> int | None:
        return self._value(name, lambda text: read_number(text, what))

    def _refuse(self, one: Given, why: str) -> None:
        self._wrong.append(f"{one.where + ': ' if one.where else ''}{one.written[:100]}: {why}")

    def _add(self, *words: str) -> None:
        self._to.words += words

    def _name(self) -> None:
        asked = self._given.get("job-name")
        wanted = asked.value if asked is not None else os.path.basename(self._submitter.script_name)
        name = _NAME.sub("-", wanted).strip("._-")[:63].strip("._-") or "job"
        if asked is not None and name != wanted:
            self._to.say(asked, f"the job is called {name}: names have letters, digits, '.', '_' and '-'")
        self._add("--name", name)
        self._to.runner["name"] = name

    def _tres_of_tasks(self) -> None:
        """``--tres-per-task=cpu=4,gres/gpu=1`` is another way to write two options."""
        one = self._given.get("tres-per-task")
        for name, value in (self._value("tres-per-task", read_tres) or {}).items():
            assert one is not None
            self._given.setdefault(name, Given(name, value, one.where))

    def _resources(self) -> None:
        nodes = self._value("nodes", read_nodes)
        ntasks, per_node = self._number("ntasks", "a number of tasks"), self._number("ntasks-per-node", "a number")
        per_gpu = self._number("ntasks-per-gpu", "a number of tasks")
        hosts = nodes[0] if nodes is not None else None
        if nodes is not None and nodes[1] is not None:
            self._to.say(self._given["nodes"], f"the job gets {hosts} hosts, the least that it takes")
        listed = self._value("nodelist", expand)
        if hosts is None and ntasks is not None and per_node is not None:
            hosts = -(-ntasks // per_node)
        if hosts is None and listed is not None:
            hosts = len(listed)
        if hosts is not None and ntasks is not None and ntasks < hosts:
            self._to.notes.append(f"{ntasks} tasks cannot use {hosts} hosts: the job gets {ntasks}")
            hosts = ntasks
        of_host = per_node or (None if ntasks is None else -(-ntasks // (hosts or 1)))
        gpus = self._gpus(hosts, ntasks, of_host)
        if per_gpu is not None and ntasks is None and per_node is None:
            ntasks, per_node = self._tasks_of_gpus(per_gpu, gpus)
            of_host = per_node or ntasks
        self._bind_gpus(1 if per_gpu == 1 else None, has_tasks=bool(ntasks or per_node))
        if hosts is not None and "--total" not in self._to.words:
            self._add("--hosts", str(hosts))
        self._cpus_and_memory(gpus, of_host or 1)
        self._to.runner |= {"ntasks": ntasks, "ntasks_per_node": per_node}

    def _gpus(self, hosts: int | None, ntasks: int | None, of_host: int | None) -> int:
        """Ask for GPUs. Returns how many each host has (with a total: how many in all)."""
        on_node, total = self._value("gpus-per-node", read_gpus), self._value("gpus", read_gpus)
        per_task, gres = self._value("gpus-per-task", read_gpus), self._value("gres", read_gres)
        if gres is not None:
            for name in gres[1]:
                self._to.say(self._given["gres"], f"no effect here for {name}: hosts have labels (--constraint)")
            on_node = on_node or gres[0]
        if per_task is not None:
            self._to.runner["gpus_per_task"] = per_task.number
        found = on_node or total or per_task
        if found is None or not found.number:
            return 0
        if found.model is not None:
            self._add("--gpu-model", found.model)
        if found.mig is not None:
            self._add("--mig", found.mig)
        if on_node is not None:
            if total is not None and total.number != on_node.number * (hosts or 1):
                self._refuse(self._given["gpus"], f"{hosts or 1} hosts of {on_node.number} GPUs have another number")
            return self._per_host(on_node.number)
        if total is not None:
            return self._of_total(total, hosts)
        if of_host is not None or hosts is not None:
            return self._per_host(found.number * (of_host or 1))
        return self._per_host(found.number * (ntasks or 1))

    def _tasks_of_gpus(self, of_gpu: int, gpus: int) -> tuple[int | None, int | None]:
        """All tasks, or those of each host, where so many run for each GPU."""
        if not gpus:
            self._to.say(self._given["ntasks-per-gpu"], "no effect without GPUs")
            return None, None
        return (of_gpu * gpus, None) if "--total" in self._to.words else (None, of_gpu * gpus)

    def _bind_gpus(self, own: int | None, *, has_tasks: bool) -> None:
        """``own``: how many GPUs a task sees if --gpu-bind says nothing else. None: as --gpus-per-task says."""
        if (one := self._given.get("gpu-bind")) is not None:
            own = read_gpu_bind(one.value)
            if own is None or not has_tasks:
                self._to.say(one, "no effect here: tasks see all GPUs of their host, or those of --gpus-per-task")
        if own is not None and has_tasks:
            self._to.runner["gpus_per_task"] = own or None

    def _per_host(self, count: int) -> int:
        self._add("--gpus-per-host", str(count))
        return count

    def _of_total(self, total: Gpus, hosts: int | None) -> int:
        if hosts is None:
            # One host, if they fit on one: as Slurm, which gives as few hosts as possible.
            self._add("--total", str(total.number))
            return total.number
        if total.number % hosts:
            self._refuse(self._given["gpus"], f"{total.number} GPUs cannot be divided by {hosts} hosts")
            return total.number
        return self._per_host(total.number // hosts)

    def _cpus_and_memory(self, gpus: int, tasks: int) -> None:
        each, of_gpu = (
            self._number("cpus-per-task", "a number of CPUs"),
            self._number("cpus-per-gpu", "a number of CPUs"),
        )
        memory, of_cpu = self._value("mem", read_memory_mib), self._value("mem-per-cpu", read_memory_mib)
        memory_of_gpu = self._value("mem-per-gpu", read_memory_mib)
        is_total = "--total" in self._to.words
        cpus = None
        if of_gpu is not None and gpus:
            self._add("--cpus-per-gpu", str(of_gpu))
            cpus = of_gpu * gpus
        elif each is not None or not gpus:
            cpus = (each or 1) * tasks
            self._add("--cpus", str(cpus))
        self._to.runner["cpus_per_task"] = each
        if memory == 0:
            self._to.say(self._given["mem"], "no effect here: without --mem, jobs share the memory of their host")
        elif memory is not None:
            self._add("--ram", f"{memory}MiB")
        elif memory_of_gpu is not None and gpus:
            self._add("--memory-per-gpu", f"{memory_of_gpu}MiB")
        elif of_cpu:
            if is_total and of_gpu is not None:
                self._add("--memory-per-gpu", f"{of_cpu * of_gpu}MiB")
            else:
                self._add("--ram", f"{of_cpu * (cpus or tasks)}MiB")

    def _times(self) -> None:
        limit = self._value("time", read_limit_s)
        if limit is not None:
            self._add("--time", f"{limit}s")
            self._to.runner["time_limit_s"] = limit
        for name in ("begin", "deadline"):
            moment = self._value(name, lambda text: read_moment(text, self._submitter.now))
            if moment is not None and moment > self._submitter.now:
                self._add(f"--{name}", moment.isoformat())
        warning = self._value("signal", read_signal)
        if warning is None:
            return
        one = self._given["signal"]
        if limit is None and "deadline" not in self._given:
            self._to.say(one, "no effect without --time: a warning is sent before the end of it")
            return
        before = warning.before_s if limit is None else min(warning.before_s, limit - 1)
        if before <= 0:
            return
        self._add("--warn-signal", warning.signal, "--warn-before", f"{before}s")
        if warning.batch_only:
            self._add("--warn-program-only")
        else:
            self._to.say(one, f"the script gets SIG{warning.signal}, too, if it has a trap for it")

    def _choice_of_hosts(self) -> None:
        for name, option in (("nodelist", "--hosts-include"), ("exclude", "--hosts-exclude")):
            one = self._given.get(name)
            if one is None:
                continue
            if "/" in one.value:
                self._refuse(one, "the file with names is not read: write the names")
                continue
            hosts = self._value(name, expand) if name == "exclude" else expand_or_none(one.value)
            if hosts:
                self._add(option, compress(hosts))
        one = self._given.get("constraint")
        if one is not None:
            for text in self._value("constraint", read_constraint) or ():
                self._add("--constraint", text)
        if (one := self._given.get("reservation")) is not None:
            self._add("--reservation", one.value)
        self._labels_and_names()

    def _labels_and_names(self) -> None:
        if (one := self._given.get("switches")) is not None:
            if one.value.partition("@")[0] == "1":
                self._add("--prefer", "leaf")
            else:
                self._to.say(one, "no effect here: hosts below one switch are preferred for 1 only")
        if (one := self._given.get("gres-flags")) is not None:
            if one.value == "disable-binding":
                self._add("--allow-cross-numa")
            else:
                self._to.say(one, "no effect here: GPUs are given next to each other and to their CPUs anyway")
        if "spread-job" in self._given:
            self._add("--strategy", "spread")
        if (one := self._given.get("partition")) is not None:
            self._to.partitions = [name for name in one.value.split(",") if name]
        if (one := self._given.get("account")) is not None:
            self._add("--namespace", one.value)
        if (one := self._given.get("qos")) is not None:
            self._to.qos = one.value

    def _order(self) -> None:
        if (array := self._value("array", read_array)) is not None:
            text, about = array
            self._add("--array", text)
            self._to.runner["array"] = about
        dependencies = self._value("dependency", read_dependencies) or {}
        self._to.is_singleton = dependencies.pop("singleton", None) is not None
        for kind, ids in dependencies.items():
            self._add(_DEPENDENCY_OPTIONS[kind], ",".join(ids))
        if (one := self._given.get("kill-on-invalid-dep")) is not None:
            if one.value not in ("yes", "no"):
                self._refuse(one, "write yes or no")
            elif "dependency" in self._given:
                self._add("--if-unmet", "cancel" if one.value == "yes" else "hold")
        if "hold" in self._given:
            self._add("--hold")
        names = list(self._given)
        if "no-requeue" in names and ("requeue" not in names or names.index("no-requeue") > names.index("requeue")):
            self._add("--max-hardware-retries", "0", "--no-preempt")

    def _outputs(self) -> None:
        for name in ("output", "error", "input"):
            one = self._given.get(name)
            if one is None or one.value == "none":
                continue
            # Checked here, so that a wrong pattern submits nothing.
            if self._value(name, lambda text: filled(text, {})) is not None:
                self._to.runner[name] = one.value
        if (one := self._given.get("open-mode")) is not None:
            if one.value in ("append", "truncate"):
                self._to.runner["open_mode"] = one.value
            else:
                self._refuse(one, "write append or truncate")
        if (one := self._given.get("chdir")) is not None:
            self._add("--workdir", os.path.join(self._submitter.directory, one.value))

    def _environment(self) -> None:
        one = self._given.get("export")
        try:
            self._to.env = exported("ALL" if one is None else one.value, self._submitter.environ)
        except ValueError as error:
            assert one is not None
            self._refuse(one, str(error))
        variables = {
            "SLURM_SUBMIT_DIR": self._submitter.directory,
            "SLURM_SUBMIT_HOST": self._submitter.host,
            "SLURM_JOB_USER": self._submitter.user,
        }
        for name, option in (
            ("SLURM_JOB_PARTITION", "partition"),
            ("SLURM_JOB_ACCOUNT", "account"),
            ("SLURM_JOB_QOS", "qos"),
            ("SLURM_GPUS", "gpus"),
            ("SLURM_GPUS_PER_NODE", "gpus-per-node"),
            ("SLURM_MEM_PER_CPU", "mem-per-cpu"),
            ("SLURM_MEM_PER_GPU", "mem-per-gpu"),
            ("SLURM_MEM_PER_NODE", "mem"),
        ):
            if (given := self._given.get(option)) is not None:
                variables[name] = given.value
        for name in ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE"):
            if name in variables and not self._wrong:
                variables[name] = str(read_memory_mib(variables[name]))
        self._to.runner |= {"slurm": True, "environ": variables}
