"""Hosts on machines of their own: each machine is a network namespace of this kernel, joined to others by a switch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest, Prepared
from tests.security.attacks import attack
from tests.support.hosts_rig import HostRig
from tests.support.lan import Machine
from tests.support.waiting import eventually
from workflows.attempts.launching import with_gang

NET = """
import json, socket, struct, array

def tcp(where, port):
    with socket.create_connection((where, port), 3) as link:
        print("   ", link.recv(100).decode(), flush=True)

def abstract(name):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\\0" + name)

def quickly(what, function, *args):
    began = time.monotonic()
    attempt(what, function, *args)
    if time.monotonic() - began > 1:
        print(what, "was SLOW", flush=True)

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
"""


class Host:
    """A host on a machine of its own: its node worker runs there."""

    def __init__(self, machine: Machine, state: Path, **node: Any) -> None:
        self.machine = machine
        address = machine.run("ip", "-o", "-4", "addr", "show", "eth0").split()[3].split("/")[0]
        work = state / "work"
        work.mkdir(parents=True)
        self.work = work
        with machine.here():
            self.rig = HostRig(
                state, name=machine.name, isolation="required", address=address,
                writable_paths=[Path(sys.prefix), work], rank_memory_mib=96, rank_tmp_mib=16, **node,
            )  # fmt: skip

    def plan(self, script: str, **changes: Any) -> HostPlan:
        return attack(self.rig, NET + script, None).model_copy(update=changes)

    def launch(self, plan: HostPlan, rendezvous: Prepared | None = None) -> None:
        with self.machine.here():
            self.rig.worker.launch(LaunchRequest(plan=plan, rendezvous=rendezvous))

    async def run(self, script: str) -> list[str]:
        """What a rank prints that runs the script to its end."""
        plan = self.plan(script)
        self.launch(plan)
        exits = await self.rig.watch(plan)
        lines = self.rig.log(plan).splitlines()
        assert exits.first_failure is None, lines
        return lines

    async def start(self, script: str, **changes: Any) -> HostPlan:
        """Start a rank, and wait until it says ``ready``."""
        plan = self.plan(script, **changes)
        self.launch(plan)
        await eventually(lambda: "ready" in self.rig.log(plan), "the rank is ready")
        return plan

    def table(self) -> str:
        return self.firewall.table

    @property
    def firewall(self) -> Any:
        return self.rig.worker._launcher._jail_planner.network.firewall

    async def aclose(self) -> None:
        await self.rig.aclose()


async def start_gang(pair: list[Host], script: str, **changes: Any) -> list[HostPlan]:
    """Start one rank on each host, as the workflow does: prepare all, then launch all."""
    key = AttemptKey(job_id=f"gang-{os.urandom(4).hex()}", attempt=1)
    plans: list[HostPlan] = []
    prepared: list[Prepared] = []
    for number, host in enumerate(pair):
        plan = host.plan(script, **changes, key=key, world_size=len(pair), node_rank=number)
        plans.append(plan.model_copy(update={"ranks": [plan.ranks[0].model_copy(update={"rank": number})]}))
        host.rig.keys.append(key)
        with host.machine.here():
            prepared.append(host.rig.worker.prepare(plans[-1]))
    for host, plan in zip(pair, plans, strict=True):
        host.launch(plan, with_gang(prepared))
    return plans


async def logs(pair: list[Host], plans: list[HostPlan]) -> list[list[str]]:
    for host, plan in zip(pair, plans, strict=True):
        assert (await host.rig.watch(plan)).first_failure is None, host.rig.log(plan, plan.ranks[0].rank)
    return [host.rig.log(plan, plan.ranks[0].rank).splitlines() for host, plan in zip(pair, plans, strict=True)]
