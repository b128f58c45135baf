"""Scripts in jails: srun works there, and a file of --output is written where the job may write, and nowhere else."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.steps.environ import LAUNCH, OPTIONS, SCRIPT
from tests.security.hosts_on_lan import Host, logs, start_gang
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.usefixtures("jails")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every account reaches, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="scripts-"))
    path.chmod(0o755)
    (path / "work").mkdir()
    (path / "work").chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def host(tmp_path: Path, place: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", isolation="required", workdirs=["~", str(place)])
    yield rig
    await rig.aclose()


def plan(host: HostRig, place: Path, script: str, **options: Any) -> HostPlan:
    env = {
        SCRIPT: json.dumps(f"#!/bin/sh\n{script}"),
        OPTIONS: json.dumps({"slurm": True, "name": "jailed", **options}),
    }
    return host.plan(*LAUNCH, env=env, workdir=str(place / "work"))


async def test_srun_and_output_work_as_the_jobs_account(host: HostRig, place: Path) -> None:
    asked = plan(host, place, "srun -n2 sh -c 'echo \"$SLURM_PROCID $(id -u)\"' | sort; exit 3", output="%x-%N.out")
    host.launch(asked)
    exits = await host.watch(asked)
    assert [exit.exit_code for exit in exits.exits] == [3], host.log(asked)
    written = place / "work" / "jailed-box.out"
    owner = written.stat().st_uid
    assert owner in host.settings.node.attempt_uid_range
    assert written.read_text().splitlines() == [f"0 {owner}", f"1 {owner}"]
    assert host.log(asked) == written.read_text()


@pytest.mark.parametrize("where", ["outside", "of root", "system", "link"])
async def test_a_hostile_pattern_writes_nowhere_else(host: HostRig, place: Path, where: str) -> None:
    victim = place / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)  # the account could write it, but the jail does not let it
    link = place / "work" / "link.out"
    link.symlink_to(victim)
    pattern = {
        "outside": "../victim",
        "of root": "/root/.bashrc",
        "system": "/etc/cron.d/%x",
        "link": "link.out",
    }[where]
    asked = plan(host, place, "echo hello", output=pattern)
    host.launch(asked)
    exits = await host.watch(asked)
    assert [exit.exit_code for exit in exits.exits] == [0]
    assert "hello" in host.log(asked)
    assert "is not written" in host.log(asked)
    assert victim.read_text() == "precious"
    assert not Path("/etc/cron.d/jailed").exists()


@pytest.mark.usefixtures("networks")
async def test_srun_reaches_the_other_host_of_a_gang_in_its_own_network(hosts: Any) -> None:
    pair: list[Host] = [hosts("a"), hosts("b")]
    script = "srun sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME $WORLD_SIZE' | sort; scontrol show hostnames"
    env = {
        SCRIPT: json.dumps(f"#!/bin/sh\n{script}"),
        OPTIONS: json.dumps({"slurm": True, "name": "gang"}),
    }
    plans = await start_gang(pair, "", command=[*LAUNCH], env=env)
    first, second = await logs(pair, plans)
    names = [host.rig.settings.node.name for host in pair]
    assert first == [f"0 {names[0]} 2", f"1 {names[1]} 2", *names]
    assert second == []
