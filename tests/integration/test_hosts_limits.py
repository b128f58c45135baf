"""Limits that the host enforces on real processes: hang, idle and wall clock; and what they used."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import FaultReport, HostPlan, RankLimits, RankSpec
from gpu_platform.domain.jobs.blame import FailureCause
from gpu_platform.domain.texts import moment
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.attempt_watch import AttemptWatch
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.system import paths
from tests.fake_nvml import FakeNvml, has_compiler
from tests.support.hosts_rig import HostRig, kill, parent_of
from tests.support.waiting import eventually


class Looked:
    """A simulated host with everything that looks after attempts."""

    def __init__(self, state_dir: Path, **node: Any) -> None:
        home = paths.node_dir(state_dir.resolve(), "box")
        self.accountant = Accountant(home)
        self.stages: list[Any] = [self.accountant]
        self.host = HostRig(state_dir, stages=self.stages, accounting_interval_s=0.05, **node)
        self.faults: list[FaultReport] = []
        self.monitor = self._observed()
        self.watch = self._watch()

    def _observed(self) -> HealthMonitor:
        monitor = self.host.monitor(lambda fault: None)
        monitor.observe_with(self.accountant)
        return monitor

    def _watch(self) -> AttemptWatch:
        return AttemptWatch(
            self.host.settings.node,
            self.host.nvml,
            self.host.home,
            self.accountant,
            FaultPolicy.load("platform"),
            self.faults.append,
            {gpu.uuid: gpu.index for gpu in self.host.inventory.gpus},
        )

    def restart(self) -> None:
        """As a node worker that was killed and started again."""
        self.monitor.stop()
        self.accountant = Accountant(self.host.home)
        self.stages[0] = self.accountant
        self.host.restart()
        self.monitor = self._observed()
        self.watch = self._watch()

    async def until_told(self, plan: HostPlan, count: int = 1) -> list[FaultReport]:
        def told() -> bool:
            self.monitor.poll_once()
            self.watch.sample()
            return len(self.faults) >= count

        await eventually(told, f"{count} reports about {plan.key}")
        return self.faults


@pytest.fixture
async def looked(tmp_path: Path) -> AsyncIterator[Looked]:
    rig = Looked(tmp_path, time_limit_slack_s=0.5)
    yield rig
    rig.monitor.stop()
    await rig.host.aclose()


def _on_the_second_gpu(looked: Looked, plan: HostPlan) -> HostPlan:
    """The plan there; that GPU does nothing."""
    second = [looked.host.inventory.gpus[1].uuid]
    looked.host.strike(1, utilization_percent=0)
    return plan.model_copy(update={"gpu_uuids": second, "ranks": [RankSpec(rank=0, local_rank=0, gpu_uuids=second)]})


async def test_a_job_that_stands_still_is_reported_once_with_what_was_watched(looked: Looked) -> None:
    looked.host.strike(0, utilization_percent=0)
    plan = looked.host.plan("sleep", "600", limits=RankLimits(hang_limit_s=1))
    looked.host.launch(plan)
    [fault] = await looked.until_told(plan)
    assert (fault.action, fault.attempt, fault.gpu_index) == ("retry_job", plan.key, 0)
    assert "hangs: for 1 s its 1 GPU stood at 0 %" in fault.message
    assert "1 rank used no CPU time" in fault.message
    assert "(hang limit 1 s)" in fault.message
    assert f"gpu-platform: {fault.message}\n" == looked.host.log(plan)
    for _ in range(3):
        looked.monitor.poll_once()
        looked.watch.sample()
    assert len(looked.faults) == 1


@pytest.mark.parametrize(
    ("script", "utilization"),
    [
        ("while :; do :; done", 0),
        ("while :; do echo step; sleep 0.2; done", 0),
        ("while :; do head -c 100000 /dev/zero >/dev/null; sleep 0.1; done", 0),
        ("sleep 600", 1),
    ],
    ids=["computes", "prints", "reads", "its GPU works"],
)
async def test_a_job_that_moves_in_any_way_does_not_hang(looked: Looked, script: str, utilization: int) -> None:
    looked.host.strike(0, utilization_percent=utilization)
    moving = looked.host.plan("sh", "-c", script, limits=RankLimits(hang_limit_s=1))
    looked.host.launch(moving)
    still = _on_the_second_gpu(looked, looked.host.plan("sleep", "600", limits=RankLimits(hang_limit_s=1)))
    looked.host.launch(still)
    # It began later: when its limit is over, so is that of the one that moves.
    faults = await looked.until_told(still)
    looked.monitor.poll_once()
    looked.watch.sample()
    assert [fault.attempt for fault in faults] == [still.key]


async def test_idle_gpus_are_warned_of_and_then_end_the_job_though_it_computes(looked: Looked) -> None:
    looked.host.strike(0, utilization_percent=0)
    plan = looked.host.plan("sh", "-c", "while :; do :; done", limits=RankLimits(idle_limit_s=2))
    looked.host.launch(plan)
    warning, end = await looked.until_told(plan, 2)
    assert (warning.action, end.action) == ("watch", "fail_job")
    assert "it is ended when they have been idle for 2 s" in warning.message
    assert "left its 1 GPU idle for 2 s (idle limit 2 s)" in end.message
    assert warning.message in looked.host.log(plan)


async def test_a_gpu_that_does_not_answer_makes_no_job_hang(looked: Looked) -> None:
    plan = looked.host.plan("sleep", "600", limits=RankLimits(hang_limit_s=1))
    looked.host.launch(plan)
    looked.host.strike(0, lost=True)
    # It began later: when its limit is over, so is that of the one whose GPU is silent.
    heard = _on_the_second_gpu(looked, looked.host.plan("sleep", "600", limits=RankLimits(hang_limit_s=1)))
    looked.host.launch(heard)
    faults = await looked.until_told(heard)
    looked.monitor.poll_once()
    looked.watch.sample()
    assert [fault.attempt for fault in faults] == [heard.key]


async def test_the_warning_reaches_the_program_alone_if_the_job_says_so(looked: Looked) -> None:
    loop = "while :; do sleep 0.05; done"
    script = f"sh -c 'trap \"echo child\" USR1; {loop}' & trap 'echo program' USR1; {loop}"
    limits = RankLimits(time_limit_s=2, warn_before_s=1, warn_program_only=True, grace_s=0)
    plan = looked.host.plan("sh", "-c", script, limits=limits)
    looked.host.launch(plan)
    watching = asyncio.create_task(looked.watch.run(looked.host.worker))
    await looked.host.watch(plan)
    watching.cancel()
    log = looked.host.log(plan).splitlines()
    assert ("program" in log, "child" in log) == (True, False)


async def test_the_warning_reaches_those_who_can_take_it_and_the_host_ends_what_is_overdue(looked: Looked) -> None:
    script = "sleep 600 & trap 'echo warned' USR1; echo ready; while :; do sleep 0.05; done"
    limits = RankLimits(time_limit_s=2, warn_before_s=1, grace_s=0.2)
    plan = looked.host.plan("sh", "-c", script, limits=limits)
    looked.host.launch(plan)
    watching = asyncio.create_task(looked.watch.run(looked.host.worker))
    exits = await looked.host.watch(plan)
    watching.cancel()
    log = looked.host.log(plan).splitlines()
    assert log.count("warned") == 1
    [told] = [line for line in log if line.startswith("gpu-platform")]
    assert "the time limit of 2 s ends in 1 s; SIGUSR1 went to 1 process with a handler for it" in told
    [report] = looked.faults
    assert (report.action, report.attempt) == ("watch", plan.key)
    assert exits.first_failure is not None
    assert exits.first_failure.exit_code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    await eventually(lambda: looked.host.worker.attempts() == [], "the attempt is stopped")
    message = "ran longer than its limit of 2 s; ask for more with --time"
    assert looked.host.worker.overdue(plan.key) == (FailureCause.TIME_LIMIT, message)


@pytest.mark.parametrize("time_limit_s", [None, 600])
async def test_the_host_ends_what_runs_at_its_deadline(looked: Looked, time_limit_s: int | None) -> None:
    script = "sleep 600 & trap 'echo warned' USR1; echo ready; while :; do sleep 0.05; done"
    deadline = datetime.now(UTC) + timedelta(seconds=2)
    limits = RankLimits(time_limit_s=time_limit_s, deadline_at=deadline.timestamp(), warn_before_s=1, grace_s=0.2)
    plan = looked.host.plan("sh", "-c", script, limits=limits)
    looked.host.launch(plan)
    watching = asyncio.create_task(looked.watch.run(looked.host.worker))
    exits = await looked.host.watch(plan)
    watching.cancel()
    assert exits.first_failure is not None
    assert exits.first_failure.ended_at_ms / 1000 >= deadline.timestamp()
    log = looked.host.log(plan).splitlines()
    assert log.count("warned") == 1
    [told] = [line for line in log if line.startswith("gpu-platform")]
    assert f"the time until the deadline {moment(deadline)} ends in 1 s; SIGUSR1 went to 1 process" in told
    await eventually(lambda: looked.host.worker.attempts() == [], "the attempt is stopped")
    message = f"it had not ended by its deadline {moment(deadline)}"
    assert looked.host.worker.overdue(plan.key) == (FailureCause.DEADLINE, message)


async def test_usage_is_measured_and_survives_restarts_and_goes_with_the_stop(looked: Looked) -> None:
    host = looked.host
    script = "python3 -c 'import time\nx = bytearray(64 << 20)\nwhile time.process_time() < 0.5: pass'; sleep 600"
    plan = host.plan("sh", "-c", script, ranks=2)
    host.launch(plan)
    looked.host.strike(0, corrected_ecc=5)
    looked.monitor.poll_once()
    # Two ranks use 0.5 s each. The kernel tells user and system time of each process in whole ticks of 10 ms, cut off.
    await eventually(lambda: _sample(looked) and _cpu_s(looked, plan) >= 0.9, "CPU time is seen")
    looked.host.strike(0, corrected_ecc=8, clock_reasons=0x40)
    looked.monitor.poll_once()
    _sample(looked)
    before = looked.accountant.live()[0].usage()
    looked.restart()
    assert looked.accountant.live()[0].usage()[0].energy_j == pytest.approx(before[0].energy_j, abs=1)
    looked.monitor.poll_once()
    stopped = await host.stop(plan.key)
    assert looked.accountant.live() == []
    first, second = stopped.usage
    assert (first.rank, first.host, second.rank) == (0, "box", 1)
    assert first.gpu_seconds == pytest.approx(first.seconds, abs=0.01)
    assert first.seconds > 0.5
    assert first.energy_j > before[0].energy_j > 0
    assert (first.ecc_errors, second.ecc_errors) == (3, 0)
    assert first.throttled_s > 0 == second.throttled_s
    assert first.mean_utilization_percent == pytest.approx(97, abs=2)
    assert first.peak_gpu_memory_mib is not None
    assert first.peak_gpu_memory_mib > 40_000
    assert first.cpu_s >= 0.4 <= second.cpu_s
    assert first.peak_memory_mib >= 64
    assert (await host.stop(plan.key)).usage == stopped.usage


async def test_a_short_job_and_one_whose_supervisor_died_have_a_usage_too(looked: Looked) -> None:
    host = looked.host
    short = host.plan("python3", "-c", "import time\nx = bytearray(64 << 20)\nwhile time.process_time() < 0.2: pass")
    host.launch(short)
    await host.watch(short)
    [usage] = (await host.stop(short.key)).usage
    assert usage.cpu_s >= 0.2
    assert usage.peak_memory_mib >= 64
    assert usage.mean_utilization_percent is None
    orphan = host.plan("sleep", "600")
    [rank] = host.launch(orphan).ranks
    _sample(looked)
    kill(parent_of(rank.pid))
    [usage] = (await host.stop(orphan.key)).usage
    assert usage.gpu_seconds > 0


def _sample(looked: Looked) -> bool:
    looked.monitor.poll_once()
    looked.watch.sample()
    return True


def _cpu_s(looked: Looked, plan: HostPlan) -> float:
    [attempt] = [attempt for attempt in looked.accountant.live() if attempt.key == plan.key]
    return sum(counters.cpu_s for counters in attempt.counters.values())


@pytest.fixture
async def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Looked, FakeNvml]]:
    """A host whose GPUs tell what each process does on them."""
    if not has_compiler():
        pytest.skip("no C compiler (Debian: apt-get install gcc libc6-dev)")
    fake = FakeNvml(tmp_path / "fake")
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake.state_file))
    rig = Looked(tmp_path / "state", nvml=fake.load(), isolation="plain")
    yield rig, fake
    rig.monitor.stop()
    await rig.host.aclose()


def _half(host: HostRig, mode: ShareMode, limits: RankLimits) -> HostPlan:
    grant = ShareGrant(mode=mode, percent=50, memory_mib=40_000)
    return host.plan("sleep", "600", shares=[grant], limits=limits)


async def test_beside_a_busy_neighbour_an_idle_job_is_idle_and_each_has_its_own_figures(
    shared: tuple[Looked, FakeNvml],
) -> None:
    looked, fake = shared
    busy = _half(looked.host, ShareMode.TIME_SLICE, RankLimits(hang_limit_s=1, idle_limit_s=1))
    idle = _half(looked.host, ShareMode.TIME_SLICE, RankLimits(hang_limit_s=1))
    pids = [looked.host.launch(plan).ranks[0].pid for plan in (busy, idle)]
    fake.set(
        gpu__0__utilization=97,
        gpu__0__memory_used_mib=31_000,
        gpu__0__process__0=f"{pids[0]} 20000 90",
        gpu__0__process__1=f"{pids[1]} 10000 0",
    )
    faults = await looked.until_told(idle)
    assert [(fault.attempt, fault.action) for fault in faults] == [(idle.key, "retry_job")], faults
    [fault] = faults
    assert "1 GPU stood at 0 % with unchanged memory" in fault.message
    [rank] = (await looked.host.stop(busy.key)).usage
    assert (rank.peak_utilization_percent, rank.peak_gpu_memory_mib) == (90, 20_000)
    [rank] = (await looked.host.stop(idle.key)).usage
    assert (rank.peak_utilization_percent, rank.peak_gpu_memory_mib) == (0, 10_000)


async def test_where_nobody_can_tell_what_a_job_computes_it_hangs_only_if_the_operator_allows_that(
    shared: tuple[Looked, FakeNvml],
) -> None:
    looked, fake = shared
    plan = _half(looked.host, ShareMode.MIG, RankLimits(hang_limit_s=2, idle_limit_s=2))
    pid = looked.host.launch(plan).ranks[0].pid
    fake.set(gpu__0__mig=1, gpu__0__gi__3="9 0 4 0", gpu__0__process__0=f"{pid} 5000 0 3")
    looked.monitor.poll_once()
    looked.watch.sample()
    [attempt] = looked.accountant.live()

    async def stands_still() -> bool:
        before = attempt.counters[0]
        await asyncio.sleep(0.1)
        looked.monitor.poll_once()
        looked.watch.sample()
        return attempt.counters[0] == before

    await eventually(stands_still, "the program to have started")
    await asyncio.sleep(2.2)  # its limit passes, as the report that comes at once proves
    looked.monitor.poll_once()
    looked.watch.sample()
    assert looked.faults == []
    looked.host.settings.node.hang_without_utilization = True
    looked.watch.sample()
    [fault] = looked.faults
    assert fault.attempt == plan.key
    assert "its 1 GPU (whose utilisation NVML does not report) had unchanged memory" in fault.message
    [rank] = (await looked.host.stop(plan.key)).usage
    assert (rank.peak_utilization_percent, rank.peak_gpu_memory_mib) == (None, 5000)


async def test_a_hosts_own_hang_limit_spares_who_reads_and_ends_who_stands_still(tmp_path: Path) -> None:
    looked = Looked(tmp_path, hang_limit_s=1)
    looked.host.strike(0, utilization_percent=0)
    moving = looked.host.plan("sh", "-c", "while :; do head -c 100000 /dev/zero >/dev/null; sleep 0.5; done")
    looked.host.launch(moving)
    looked.monitor.poll_once()
    looked.watch.sample()
    [attempt] = looked.accountant.live()
    before = attempt.counters[0].io_bytes
    still = _on_the_second_gpu(looked, looked.host.plan("sleep", "600"))
    try:
        await eventually(lambda: (looked.watch.sample(), attempt.counters[0].io_bytes > before)[1], "it reads")
        looked.host.launch(still)
        [fault] = await looked.until_told(still)
        assert (fault.attempt, fault.action) == (still.key, "retry_job")
        assert "(hang limit 1 s)" in fault.message
    finally:
        await looked.host.aclose()


async def test_processes_of_a_jailed_job_are_found_on_its_part_of_a_gpu(looked: Looked) -> None:
    one, other = (_half(looked.host, ShareMode.TIME_SLICE, RankLimits()) for _ in range(2))
    for plan in (one, other):
        looked.host.launch(plan)
    looked.watch.sample()
    for _ in range(2):
        looked.monitor.poll_once()
    for plan in (one, other):
        [rank] = (await looked.host.stop(plan.key)).usage
        assert rank.peak_utilization_percent in (48, 97)  # the other one may have been stopped already
