"""What each page of the documentation takes for granted, so that ``tests/integration/test_docs.py`` can follow it.

A page that is not here needs nothing but the programs of :data:`PROGRAMS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support import pages
from tests.support.pages import DOCS, ROOT

LONG = {"check-a-deployment.md", "install.md"}
"""Pages that take more than five seconds: `make test-docs` follows them, too."""
SHORT = {"tutorial.md", "submit.md", "exec-and-logs.md", "from-slurm.md", "arrays.md", "environments.md"}
"""Pages that a newcomer reads: `make test` follows them. `make test-long` follows the others."""

NOT_HERE = ("systemctl", "nvidia-smi", "py-spy")
"""Programs of other machines: a page may use them, and nothing happens."""
PROGRAM = "import os, sys\nprint(*sys.argv[1:], os.environ.get('RANK', 0))\n"
UNTIL = "until {} 2>&1; do sleep 0.1; done\n"
A_JOB = "JOB=$(gpu-platform submit --total 6 --rank-per gpu -- sleep 600)\n"
RUNNING = A_JOB + UNTIL.format("gpu-platform jobs list --state RUNNING --json | grep $JOB")
ENDED = "JOB=$(gpu-platform submit --gpus 1 --wait -- true)\n"


@dataclass(frozen=True)
class Scene:
    """What a page takes for granted."""

    files: dict[str, str] = field(default_factory=dict)
    """Beside the programs that many pages name."""
    before: str = ""
    """What is typed first."""
    stands_for: dict[str, str] = field(default_factory=dict)
    """What the page writes -> what it means here: an id, or a number of jobs that a test can wait for."""
    ends_with: dict[str, int] = field(default_factory=dict)
    """The beginning of a command -> its exit code, if that is not 0 here."""
    env: dict[str, str] = field(default_factory=dict)


def yaml_of(page: str, number: int = 0) -> str:
    return [block.text for block in pages.blocks(DOCS / "how-to" / page) if block.language == "yaml"][number]


def json_of(page: str) -> str:
    return next(block.text for block in pages.blocks(DOCS / "how-to" / page) if block.language == "json")


SAVES = "from gpu_platform import job\nwith job.save(200) as there:\n    (there / 'state').write_text('1')\n"
SLOW = "name: slow\nsteps:\n  one:\n    command: [sleep, '600']\n"
FAILS_ONCE = "import sys\nsys.exit(sys.argv[-1] == '3')\n"
SLURM_SCRIPT = "#!/bin/bash\n#SBATCH --job-name=train --gres=gpu:1\n#GPU --priority high\npython train.py\n"
WITH_FILES = (
    "JOB=$(gpu-platform submit --total 6 --rank-per gpu --workdir $PWD/experiment"
    " -- sh -c 'echo 1 > results.json; mkdir -p traces; echo 1 > traces/one; sleep 600')\n"
)
MANY = {"0-1999%64": "0-19%8", "0-1999": "0-19", "a-….1999": "$ARRAY.19", "a-…": "$ARRAY"}
SCENES: dict[str, Scene] = {
    "arrays.md": Scene(
        {"params.csv": "lr,seed\n1e-3,1\n1e-4,2\n", "train.py": FAILS_ONCE},
        "ARRAY=$(gpu-platform submit --array 0-19 -- python train.py {index})\n",
        MANY,
        {"gpu-platform jobs wait $ARRAY": 1, "gpu-platform jobs cancel": 4},
    ),
    "audit.md": Scene(stands_for={"/mnt/other-machine": "$PWD"}),
    "checkpoints.md": Scene(
        {"save.py": SAVES},
        "JOB=$(gpu-platform submit --gpus 1 --checkpoints --wait -- python save.py)\n",
        {"j-1jrp3k2h0x4t7za": "$JOB"},
    ),
    "dependencies.md": Scene({"preprocess.py": "import time\ntime.sleep(600)\n"}, stands_for=MANY),
    "environments.md": Scene(
        {"experiment/train.py": PROGRAM},
        ENDED,
        {"--upload .": "--upload experiment", "JOB": "$JOB"},
    ),
    "exec-and-logs.md": Scene(
        {"fix.py": ""},
        RUNNING
        + "gpu-platform jobs preempt $JOB\n"
        + UNTIL.format("gpu-platform jobs logs $JOB --attempt 2")
        + UNTIL.format("gpu-platform jobs exec $JOB -- true"),
        {
            "gpu-platform jobs logs JOB -f": "gpu-platform jobs cancel $JOB; gpu-platform jobs logs $JOB -f",
            "j-1jrp3k2h0x4t7za": "$JOB",
            "JOB": "$JOB",
            "/srv/experiment": "$PWD/experiment",
        },
    ),
    "from-slurm.md": Scene(
        {"job.sh": SLURM_SCRIPT},
        "export HOME=$PWD\n",  # what the page puts into the reader's home
    ),
    "interactive.md": Scene(
        {"evaluate.py": "import sys\nprint(sys.stdin.read())\n", "data": "1\n"},
        "mkdir config\n" + WITH_FILES + UNTIL.format("gpu-platform jobs exec $JOB -- ls traces"),
        {"-r config JOB:/tmp": "-r config $JOB:", "JOB:/tmp/traces": "$JOB:traces", "JOB": "$JOB"},
    ),
    "limits.md": Scene(before=ENDED, stands_for={"j-1jrp3k2h0x4t7za": "$JOB", "18:00": "+6h"}),
    "metrics.md": Scene(
        before=UNTIL.format("gpu-platform metrics dgx-a:3 | grep MEAN") + RUNNING,
        stands_for={"j-1jrp3k2h0x4t7za": "$JOB"},
    ),
    "pipelines.md": Scene(
        {
            "pipeline.yaml": yaml_of("pipelines.md"),
            "slow.yaml": SLOW,
            **{path.name: path.read_text() for path in (ROOT / "examples" / "pipeline").glob("*.py")},
        },
        "PIPELINE=$(gpu-platform pipelines submit slow.yaml)\n",
        {
            "gpu-platform pipelines retry": UNTIL.format("gpu-platform pipelines describe $PIPELINE | grep CANCELLED")
            + "gpu-platform pipelines retry",
            "p-1jrp3k2h0x4t7za": "$PIPELINE",
        },
    ),
    "reservations.md": Scene(
        stands_for={
            "dgx-[1-4]": "dgx-b*",
            "dgx-7": "pcie-d",
            "2026-12-01T14:00": "$(date -u -d '+3 days' +%FT14:00)",
            "2026-12-05T08:00": "$(date -u -d '+7 days' +%FT08:00)",
            "18:00": "+6h",
        }
    ),
    "schedules.md": Scene(
        before="S=$(gpu-platform schedules create --every 6h -- true)\n",
        stands_for={
            "s-1jrp3k2h0x4t7za": "$S",
            "SCHEDULE": "$S",
            "2026-12-01 2026-12-08": "$(date -u -d '13 hours ago' +%FT%T) $(date -u -d '1 hour ago' +%FT%T)",
        },
    ),
    "secrets.md": Scene(
        {"key.txt": "a\n", "client.pem": "b\n"},
        "for name in WANDB_API_KEY old-key; do gpu-platform secrets set $name < key.txt; done\n",
    ),
    "simulate.md": Scene(
        {
            "jobs.jsonl": json_of("simulate.md"),
            "tomorrow.jsonl": json_of("simulate.md"),
            "cluster.yaml": yaml_of("simulate.md"),
            "mine.yaml": yaml_of("simulate.md", 1),
            "tuesday.yaml": yaml_of("simulate.md", 2),
        }
    ),
    "submit.md": Scene(
        {"train.yaml": yaml_of("submit.md")},
        "JOB=$(gpu-platform submit --gpus 1 --wait -- true)\nOTHER=$(gpu-platform submit --gpus 1 -- sleep 600)\n",
        {"JOB": "$JOB", "OTHER": "$OTHER"},
    ),
    "tutorial.md": Scene(
        stands_for={
            "gpu-platform jobs describe $second": UNTIL.format("gpu-platform jobs describe $second | grep 'HELD BY'")
            + "gpu-platform jobs describe $second"
        }
    ),
    "why-a-job-waits.md": Scene(before=A_JOB, stands_for={"JOB": "$JOB"}),
}
PROGRAMS = ("train.py", "preprocess.py", "serve.py", "notebook.py", "sweep.py", "check_data.py")
SCRIPTS = ("nightly.sh", "tell-me.sh", "clean-up.sh")
