"""The process of a fleet: many simulated hosts in one event loop, with one connection to Temporal.

Each host registers, reports, gets its steps on its own task queue, and carries them out with the code of the node
worker. Faults come through each host's control directory, as those of any simulated host do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
from collections.abc import Sequence

import structlog

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity.signing import PinnedKeys
from gpu_platform.node.fleet.register import note_hosts
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.nvml import fault_injection
from gpu_platform.node.system.watch_directory import DirectoryWatch
from gpu_platform.observability import bound, configure_logging, measure_for
from gpu_platform.state_dir import keep_private
from gpu_platform.temporal.payloads.converter import ring_of
from workers.fleet.ballots import Ballots
from workers.fleet.host import FleetHost, Shared
from workers.fleet.http import FleetHttp
from workers.fleet.spec import FleetSpec
from workers.node.members import MemberLists
from workers.process import connect
from workers.starting import settings_of

log = structlog.get_logger()

START_PAUSE_S = 0.002
"""At least so long between the starts of two hosts, so that their reports are spread over time."""
STARTING_AT_ONCE = 16
"""So many hosts may wait for their first lease. More would only wait longer."""
START_PATIENCE_S = 5.0
LOOK_EVERY_S = 1.0
"""How often the GPUs of hosts are read that work or that are not in perfect condition."""


class Fleet:
    """The hosts of this process, and whether each has power."""

    def __init__(self, hosts: Sequence[FleetHost]) -> None:
        self._hosts = {host.control_dir: host for host in hosts}
        self._lives: dict[FleetHost, asyncio.Task[None]] = {}
        self._to_look_at: set[FleetHost] = set()

    async def run(self) -> None:
        """Start all hosts, and follow what happens to them, until cancelled."""
        watch = DirectoryWatch()
        loop = asyncio.get_running_loop()
        loop.add_reader(watch.fileno(), lambda: self._changed(watch))
        try:
            for control in self._hosts:
                fault_injection.events_dir(control).mkdir(parents=True, exist_ok=True)
                watch.add(control)
                watch.add(fault_injection.events_dir(control))
            await self._start_all()
            log.info("fleet.started", hosts=len(self._hosts))
            await self._look_for_ever()
        finally:
            loop.remove_reader(watch.fileno())
            watch.close()
            lives, self._lives = self._lives, {}
            for life in lives.values():
                life.cancel()
            await asyncio.gather(*lives.values(), return_exceptions=True)

    async def _start_all(self) -> None:
        starting = asyncio.Semaphore(STARTING_AT_ONCE)

        async def registered(host: FleetHost) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(START_PATIENCE_S):
                    await host.registered.wait()
            starting.release()

        async with asyncio.TaskGroup() as group:
            for host in self._hosts.values():
                await starting.acquire()
                self._switch(host)
                group.create_task(registered(host))
                await asyncio.sleep(START_PAUSE_S)

    def _changed(self, watch: DirectoryWatch) -> None:
        for directory in watch.take():
            host = self._hosts.get(directory) or self._hosts[directory.parent]
            self._switch(host)
            self._to_look_at.add(host)

    def _switch(self, host: FleetHost) -> None:
        """Give the host power, or take it, as its control directory says."""
        life = self._lives.get(host)
        runs = life is not None and not life.done()
        if fault_injection.has_power(host.control_dir) == runs:
            return
        if life is not None and runs:
            log.warning("fleet.host_off", host=host.name)
            life.cancel()
            return
        self._lives[host] = asyncio.create_task(self._live(host))

    async def _live(self, host: FleetHost) -> None:
        try:
            with bound(host=host.name):
                await host.run(lambda: self._to_look_at.add(host))
        except Exception:
            log.exception("fleet.host_failed", host=host.name)
        finally:
            # It may have got power again while it was switched off.
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._switch_again, host)

    def _switch_again(self, host: FleetHost) -> None:
        if self._lives:
            self._switch(host)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            looked_at, self._to_look_at = self._to_look_at, set()
            for host in looked_at:
                try:
                    is_perfect = host.look()
                except Exception:
                    log.exception("fleet.look_failed", host=host.name)
                    is_perfect = False
                if not is_perfect:
                    self._to_look_at.add(host)
                await asyncio.sleep(0)


async def main(argv: Sequence[str]) -> None:
    """Run some hosts of a fleet until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m workers.fleet", description=__doc__)
    parser.add_argument("fleet", help="PATTERN=MACHINE:COUNT")
    parser.add_argument("--first", type=int, default=0, help="the index of the first host of this process")
    parser.add_argument("--before", type=int, help="the index after the last one")
    arguments = parser.parse_args(argv)
    spec = FleetSpec.parse(arguments.fleet)
    settings = settings_of("fleet")
    cluster = settings.cluster.name
    configure_logging(f"fleet/{spec.name}", cluster=cluster, level=settings.log_level, json=settings.log_json)
    measure_for(cluster)
    if settings.tls.enabled:
        raise CannotStart("a fleet has no certificates: start it in a cluster without TLS")
    keep_private(settings.state_dir, make=True)
    _allow_many_files()
    specs = list(spec.hosts())[arguments.first : arguments.before]
    (settings.node.checkpoint_root or settings.state_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    shared = Shared(
        settings=settings,
        client=await connect(settings),
        keys=ring_of(settings),
        order_keys=None if settings.node.order_keys is None else PinnedKeys(settings.node.order_keys),
        policy=FaultPolicy.load(settings.node.fault_policy),
        members=MemberLists(),
        ballots=Ballots(),
    )
    server = FleetHttp()
    hosts = [FleetHost(shared, one, spec.machine, server.add_host()) for one in specs]
    note_hosts(settings.state_dir, f"{spec.name}-{arguments.first}", {one.name: one.leaf for one in specs})
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        group.create_task(Fleet(hosts).run())


def _allow_many_files() -> None:
    """A port for each host, and more: the usual soft limit of 1,024 is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
