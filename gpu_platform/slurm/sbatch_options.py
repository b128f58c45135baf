"""The options of ``sbatch``, and what each of them is here. The migration page says the same (a test compares).

Source: sbatch(1) of Slurm 24.05.
"""

from __future__ import annotations

from gpu_platform.slurm.getopt import table

MAPPED: dict[str, str] = {
    "account|A=": "--namespace",
    "array|a=": "--array",
    "begin|b=": "--begin",
    "chdir|D=": "--workdir",
    "constraint|C=": "--constraint",
    "cpus-per-gpu=": "--cpus-per-gpu",
    "cpus-per-task|c=": "--cpus, times the tasks of a host",
    "deadline=": "--deadline",
    "dependency|d=": "--after, --after-any, --after-fail, --after-array",
    "error|e=": "a file that the job writes, beside the log",
    "exclude|x=": "--hosts-exclude",
    "export=": "--env",
    "gpu-bind=": "which GPUs a task sees, for none, single:1, per_task:N and map_gpu:0,1,…",
    "gpus|G=": "--total, or --gpus-per-host with --nodes",
    "gpus-per-node=": "--gpus-per-host",
    "gpus-per-task=": "--gpus-per-host, times the tasks of a host",
    "gres-flags=": "--allow-cross-numa, for disable-binding",
    "gres=": "--gpus-per-host and --gpu-model, or --mig",
    "hold|H": "--hold",
    "input|i=": "the script's stdin",
    "job-name|J=": "--name",
    "kill-on-invalid-dep=": "--if-unmet",
    "mail-type=": "--notify, if the cluster sends mail",
    "mail-user=": "--notify, if the cluster sends mail to such addresses",
    "mem=": "--ram",
    "mem-per-cpu=": "--ram, times the CPUs of a host",
    "mem-per-gpu=": "--memory-per-gpu",
    "no-requeue": "--max-hardware-retries 0 and --no-preempt",
    "nodelist|w=": "--hosts-include",
    "nodes|N=": "--hosts",
    "ntasks|n=": "how many tasks srun starts",
    "ntasks-per-gpu=": "how many tasks srun starts, times the GPUs",
    "ntasks-per-node=": "how many tasks srun starts on each host",
    "open-mode=": "whether --output is written anew",
    "output|o=": "a file that the job writes, beside the log",
    "partition|p=": "--constraint partition=NAME, if hosts have the label partition",
    "qos|q=": "--priority, if there is a level of this name",
    "requeue": "the default: faults and preemptions start the job again",
    "reservation=": "--reservation",
    "signal=": "--warn-signal and --warn-before; B: is --warn-program-only",
    "spread-job": "--strategy spread",
    "switches=": "--prefer leaf, for one switch",
    "time|t=": "--time",
    "tres-per-task=": "--cpus and --gpus-per-host, times the tasks of a host",
}
"""Option -> what it becomes."""

OF_SBATCH: dict[str, str] = {
    "help|h": "prints help",
    "parsable": "prints the id alone",
    "quiet|Q": "prints nothing but the id",
    "test-only": "--dry-run",
    "usage": "prints help",
    "verbose|v": "nothing",
    "version|V": "prints the version",
    "wait|W": "--wait",
    "wrap=": "a script of one line",
}
"""Option -> what the command ``sbatch`` does for it."""

SAID: dict[str, str] = {
    "acctg-freq=": "usage is always measured",
    "batch=": "the script runs on the first host of the job",
    "bb=": "there are no burst buffers",
    "bbf=": "there are no burst buffers",
    "cluster=": "there is one cluster: gpu-platform --api-url names another one",
    "cluster-constraint=": "there is one cluster",
    "clusters|M=": "there is one cluster: gpu-platform --api-url names another one",
    "comment=": "jobs have no comment: choose a --job-name that says it",
    "contiguous": "--prefer leaf asks for hosts below one switch",
    "core-spec|S=": "whole CPUs are given",
    "cores-per-socket=": "hosts are chosen by GPUs and labels: --constraint",
    "cpu-freq=": "the frequency of CPUs is the operator's",
    "delay-boot=": "hosts are not booted for jobs",
    "distribution|m=": "tasks are given in blocks",
    "exclusive?": "hosts are not given whole: ask for all GPUs of a host, and it is the job's alone",
    "extra=": "jobs have no comment",
    "extra-node-info|B=": "hosts are chosen by GPUs and labels: --constraint",
    "get-user-env?": "the environment is that of --export",
    "gid=": "the account of a job follows from its user",
    "gpu-freq=": "the clocks of GPUs are the operator's; --power-limit of submit limits their power",
    "hint=": "whole CPUs are given",
    "ignore-pbs": "#PBS lines are never read",
    "licenses|L=": "licenses are not counted: at most so many at once is --array=…%N",
    "mcs-label=": "namespaces keep jobs apart",
    "mem-bind=": "memory next to the GPUs is used where the host allows it",
    "mincpus=": "write --cpus-per-task",
    "network=": "the network is the operator's",
    "nice?": "write --qos, or --priority of submit",
    "no-kill|k?": "a gang that lost a host starts again; spare hosts are --spares of submit",
    "ntasks-per-core=": "tasks share the CPUs of their host",
    "ntasks-per-socket=": "tasks share the CPUs of their host",
    "overcommit|O": "tasks share the CPUs of their host",
    "oversubscribe|s?": "hosts are shared anyway, GPUs are not: --share of submit",
    "power=": "--power-limit of submit limits the power of GPUs",
    "prefer=": "hosts are preferred by --prefer of submit",
    "priority=": "write --qos, or --priority of submit",
    "profile=": "usage is always measured: gpu-platform jobs describe",
    "propagate?": "limits are the hosts'",
    "reboot": "hosts are not booted for jobs",
    "resv-ports?": "each job has 16 ports of its own: GPU_PLATFORM_PORTS",
    "segment=": "--require of submit says how close hosts must be",
    "sockets-per-node=": "hosts are chosen by GPUs and labels: --constraint",
    "stepmgr": "each script has a manager of its steps",
    "thread-spec=": "whole CPUs are given",
    "threads-per-core=": "whole CPUs are given",
    "time-min=": "the time limit is never shortened",
    "tmp=": "the room of /tmp is the operator's",
    "tres-bind=": "tasks see all GPUs of their host, or those of --gpus-per-task",
    "uid=": "the account of a job follows from its user",
    "use-min-nodes": "as few hosts as possible is the default",
    "wait-all-nodes=": "the script starts when all hosts are ready",
    "wckey=": "usage is counted by namespace and user",
}
"""Option without an effect here -> what is said about it."""

REFUSED: dict[str, str] = {
    "container=": "OCI bundles are not started: run the container's program in the script",
    "container-id=": "OCI bundles are not started: run the container's program in the script",
    **{
        f"{name}=": "scripts run on the host: write apptainer exec or the like in it, or submit --container -- PROGRAM"
        for name in ("container-image", "container-mounts", "container-name", "container-save", "container-workdir")
    },
    "export-file=": "the file is not read: write --export=NAME=VALUE, or export in the script",
    "gpus-per-socket=": "GPUs are given by host: write --gpus-per-node",
    "nodefile|F=": "the file with names is not read: write --nodelist=n1,n2",
}
"""Option that changes what a job is, and that cannot be carried out -> why."""

TABLE = table(" ".join([*MAPPED, *OF_SBATCH, *SAID, *REFUSED]))
ENVIRON = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
    "SBATCH_EXPORT": "export",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_INPUT": "input",
    "SBATCH_JOB_NAME": "job-name",
    "SBATCH_MEM_PER_CPU": "mem-per-cpu",
    "SBATCH_MEM_PER_GPU": "mem-per-gpu",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_NO_REQUEUE": "no-requeue",
    "SBATCH_OPEN_MODE": "open-mode",
    "SBATCH_OUTPUT": "output",
    "SBATCH_ERROR": "error",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_REQUEUE": "requeue",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_SIGNAL": "signal",
    "SBATCH_SPREAD_JOB": "spread-job",
    "SBATCH_TIMELIMIT": "time",
}
"""Variables of the submitter's environment that stand for options. They win over directives."""


def name_of(key: str) -> str:
    """The name in the tables' notation: ``account|A=`` is ``account``."""
    return key.rstrip("=?").partition("|")[0]


SAID_BY_NAME = {name_of(key): text for key, text in SAID.items()}
REFUSED_BY_NAME = {name_of(key): text for key, text in REFUSED.items()}
