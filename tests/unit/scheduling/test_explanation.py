from __future__ import annotations

from gpu_platform.domain.jobs.placement import Reason, ReasonCode
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job


def why(scheduler: Scheduler, *jobs: job) -> Reason:
    """Why the last of ``jobs`` waits."""
    for waiting in jobs:
        scheduler.add(waiting.row)
    decision = scheduler.decide(0.0)
    row = scheduler.queue.get(jobs[-1].row.job_id)
    assert row is not None, "it was placed"
    return decision.reasons[row.class_key]


def counts(reason: Reason) -> dict[ReasonCode, tuple[int, str, str]]:
    return {count.code: (count.hosts, count.asked, count.available) for count in reason.counts}


def test_every_host_is_counted_under_the_first_filter_that_refused_it() -> None:
    machines = cluster().hosts(5).host("volta", "dgx-1v")
    machines.busy("dgx-h100-0", 0, 1, 2).busy("dgx-h100-1").broken("dgx-h100-2", 4).draining("dgx-h100-3")
    machines.lost("dgx-h100-4")
    reason = why(machines.scheduler(), job(8).needs(model="H100"))
    assert reason.code == "waiting_for_gpus"
    assert counts(reason) == {
        ReasonCode.HOST_NOT_READY: (2, "a ready host", "1 draining, 1 lost"),
        ReasonCode.OTHER_MODEL: (1, "H100", "Tesla V100-SXM2-32GB"),
        ReasonCode.UNHEALTHY: (1, "8 GPUs", "7 GPUs"),
        ReasonCode.BUSY: (2, "8 GPUs", "5 GPUs"),
    }
    assert reason.message == (
        "needs 8 GPUs (H100) of one NVLink island or socket: 6 hosts; 2 not ready (1 draining, 1 lost), "
        "1 other model, 1 unhealthy or drained (best has 7 GPUs working), 2 busy (best has 5 free)"
    )
    assert reason.next_step == "running jobs must free 3 more GPUs on a host"


def test_facts_say_what_there_is() -> None:
    machines = cluster().hosts(2, "dgx-1v").busy("dgx-1v-0")
    assert counts(why(machines.scheduler(), job().needs(memory_gib=64))) == {
        ReasonCode.TOO_LITTLE_MEMORY: (2, "65536 MiB", "32502 MiB")
    }
    assert counts(why(machines.scheduler(), job().needs(capability="8.0"))) == {
        ReasonCode.COMPUTE_CAPABILITY: (2, "8.0", "7.0")
    }


def test_more_than_any_host_has_never_fits_and_says_what_would() -> None:
    reason = why(cluster().hosts(2).scheduler(), job(9))
    assert reason.code == "never_fits"
    assert "ask for at most 8 GPUs per host" in reason.next_step


def test_too_much_bandwidth_never_fits_and_says_how_much_there_is() -> None:
    reason = why(cluster().hosts(2, "dgx-1v").scheduler(), job(4).min_bandwidth(100))
    assert reason.code == "never_fits"
    assert reason.next_step == (
        "asked for 4 GPUs (>= 100 GB/s between GPUs); 4 GPUs of one host have at most 25 GB/s between them: "
        "ask for fewer GPUs per host, or for at most 25 GB/s (min_bandwidth_gb_s, --min-bandwidth)"
    )
    reason = why(cluster().hosts(3).scheduler(), job(8, hosts=2).min_bandwidth(100))
    assert reason.code == "never_fits"
    assert reason.next_step.endswith(
        "of one NVLink domain; of 3 such hosts, at most 1 is in one NVLink domain: "
        "ask for at most 1 host, or for at most 12 GB/s (min_bandwidth_gb_s, --min-bandwidth)"
    )
    reason = why(cluster().hosts(3).scheduler(), job().total(16).min_bandwidth(100))
    assert reason.code == "never_fits"
    assert "--min-bandwidth" in reason.next_step


def test_models_that_are_asked_for_and_not_wanted_are_told() -> None:
    reason = why(cluster().host("a").host("b", "dgx-1v").scheduler(), job(1).needs(model="A100|T4").without_models("V"))
    assert counts(reason)[ReasonCode.OTHER_MODEL][:2] == (2, "A100|T4, not V")


def test_no_ring_and_no_socket_never_fits_without_crossing() -> None:
    reason = why(cluster().hosts(1, "rtx4090-8x-all-sys").scheduler(), job(8))
    assert reason.code == "never_fits"
    assert "allow_cross_numa" in reason.next_step
    assert counts(reason) == {ReasonCode.TOPOLOGY: (1, "8 GPUs together", "8 GPUs")}


def test_free_gpus_that_are_apart_are_told_from_busy_ones() -> None:
    machines = cluster().hosts(1, "rtx4090-8x-all-sys").busy("rtx4090-8x-all-sys-0", 0, 1, 4, 5)
    reason = why(machines.scheduler(), job(3))
    assert counts(reason) == {ReasonCode.TOPOLOGY: (1, "3 GPUs together", "4 GPUs")}
    assert reason.next_step == "running jobs must free GPUs that are connected on a host"


def test_a_job_behind_another_is_told_so() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0", 0)
    reason = why(machines.scheduler(), job(8, hosts=2, name="gang"), job(1))
    assert reason.code == "behind_higher_priority"
    assert counts(reason) == {ReasonCode.KEPT: (2, "1 GPU", "gang")}
    assert "gang" in reason.next_step


def test_an_empty_cluster_asks_for_hosts() -> None:
    assert why(Scheduler(), job()).code == "no_hosts"
    assert why(cluster().hosts(1).lost("dgx-h100-0").scheduler(), job()).code == "no_hosts"


def test_unhealthy_gpus_must_come_back() -> None:
    machines = cluster().hosts(1).broken("dgx-h100-0", 0).host("ada", "l40s-4x-dual-socket")
    assert why(machines.scheduler(), job(8)).next_step == "GPUs must come back to health (or online, if drained)"


def test_exclusions_are_the_platforms_and_never_called_impossible() -> None:
    reason = why(cluster().hosts(1).scheduler(), job(8).avoiding(hosts=["dgx-h100-0"]))
    assert reason.code == "waiting_for_gpus"
    assert reason.next_step.startswith("other GPUs than those that the earlier attempt failed on")
    assert "its last failure says what is wrong there" in reason.next_step


def test_a_gpu_that_is_being_reset_is_named_with_what_to_expect() -> None:
    machines = cluster().hosts(1).resetting("dgx-h100-0", 3)
    reason = why(machines.scheduler(), job(8))
    assert reason.next_step.startswith("1 GPU (dgx-h100-0:3) is being reset: usable again as soon as")


def test_a_reason_is_told_once_until_it_changes() -> None:
    machines = cluster().hosts(1).busy("dgx-h100-0", 0, 1)
    scheduler = machines.scheduler()
    first = why(scheduler, job(8))
    machines.free("dgx-h100-0", 1).busy("dgx-h100-0", 2).tell(scheduler)
    assert scheduler.decide(0.0).reasons == {}, "other GPUs, the same reason"
    machines.free("dgx-h100-0", 2).tell(scheduler)
    (second,) = scheduler.decide(0.0).reasons.values()
    assert first.message != second.message


def test_jobs_of_one_class_share_one_reason() -> None:
    scheduler = cluster().hosts(1).busy("dgx-h100-0").scheduler()
    for _ in range(100):
        scheduler.add(job(1).row)
    assert len(scheduler.decide(0.0).reasons) == 1


def test_what_passes_is_no_reason_to_say_never() -> None:
    machines = cluster().hosts(2).busy("dgx-h100-0").lost("dgx-h100-1")
    assert why(machines.scheduler(), job(8, hosts=2)).code != "never_fits"
    assert why(machines.scheduler(), job(8, hosts=3)).code == "never_fits"
