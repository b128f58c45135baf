"""A job in a container goes where its kind of container can run, waits with words, or is refused when none can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_platform.domain.hosts.gpu import ISOLATED
from gpu_platform.domain.jobs.environment import DOCKER_LABEL, SQUASHFS_LABEL, JobEnvironment, containers_of
from gpu_platform.domain.jobs.placement import ReasonCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.store import Store
from service.operations.dry_runs import dry_run
from tests.builders import cluster
from tests.support.store_cluster import Cluster, inventory

DOCKER, SQUASHFS = {DOCKER_LABEL: "podman"}, {SQUASHFS_LABEL: "unsquashfs"}


def spec(container: str, **fields: object) -> JobSpec:
    given = {"command": ["true"], "gpus": {"gpus_per_host": 1}, "environment": {"container": container}, **fields}
    return JobSpec.model_validate(given)


def request(container: str, **fields: object) -> PlacementRequest:
    return PlacementRequest.from_spec(spec(container, **fields), "j", 1, 0.0).with_class_key()


def hosts() -> cluster:
    """``plain`` has the tools and no jail, ``bare`` a jail and no tools, ``full`` all of it."""
    machines = cluster().host("plain", "dgx-h100").host("bare", "dgx-h100").host("full", "dgx-h100")
    facts = {
        "plain": ("plain-process", {**DOCKER, **SQUASHFS}),
        "bare": (ISOLATED, {}),
        "full": (ISOLATED, {**DOCKER, **SQUASHFS}),
    }
    for name, (isolation, labels) in facts.items():
        row = machines.host_rows[name]
        found = row.inventory.model_copy(update={"isolation": isolation, "labels": labels})
        machines.host_rows[name] = replace(row, inventory=found)
    return machines


@pytest.mark.parametrize("container", ["docker://a/b:1", "/img/a.sqsh", "/img/a.SIF"])
def test_an_image_goes_where_its_tool_and_a_jail_are(container: str) -> None:
    scheduler = hosts().scheduler()
    scheduler.add(request(container))
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["full"]
    scheduler = hosts().busy("full").scheduler()
    scheduler.add(request(container))
    [reason] = scheduler.decide(0.0).reasons.values()
    codes = {count.code for count in reason.counts}
    assert {ReasonCode.NOT_ISOLATED, ReasonCode.LABEL, ReasonCode.BUSY} <= codes, reason.message


def test_a_directory_needs_only_a_jail() -> None:
    scheduler = hosts().busy("full").scheduler()
    scheduler.add(request("/srv/rootfs"))
    [(_, placement)] = scheduler.decide(0.0).placements
    assert placement.hosts == ["bare"]


def test_the_jobs_own_constraints_hold_too_in_each_group() -> None:
    group = {"gpus": {"gpus_per_host": 1, "constraints": ["zone=a"]}}
    found = request("docker://a/b", gpus={}, groups=[{"name": "x", **group}, {"name": "y", **group}])
    assert [one.constraints for one in found.requests] == [("zone=a", f"{DOCKER_LABEL}=podman")] * 2


def test_what_no_host_of_the_cluster_can_run_is_refused(store: Store) -> None:
    isolated = inventory("a", 1).model_copy(update={"isolation": ISOLATED, "labels": SQUASHFS})
    Cluster(store).host("a", inventory=isolated).host("b", gpus=1)
    assert dry_run(store, spec("/srv/rootfs")).accepted
    assert dry_run(store, spec("/srv/a.sqsh")).accepted
    refused = dry_run(store, spec("docker://a/b:1"))
    assert not refused.accepted
    assert "container-docker=podman" in refused.message
    assert containers_of(isolated.labels) == ["directory", "squashfs"]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"container": "rootfs"}, "write docker://IMAGE, or the absolute path"),
        ({"container": "docker://--privileged"}, "write docker://IMAGE"),
        ({"container": "docker://a b"}, "write docker://IMAGE"),
        ({"container": "docker-archive:/etc/shadow"}, "write docker://IMAGE"),
        ({"container": "/img", "modules": ["cuda"]}, "leave modules or container out"),
        ({"modules": ["-x"]}, "is not the name of a module"),
        ({"modules": ["a; rm -rf /"]}, "is not the name of a module"),
        ({"venv": "env"}, "is not an absolute path"),
        ({"outputs": "../x"}, "is not a name"),
        ({"upload": "abc"}, "String should match pattern"),
        ({"image": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_what_makes_no_sense_is_refused(environment: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        JobEnvironment.model_validate(environment)


def test_cuda_of_the_host_and_a_container_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="a container brings its own"):
        spec("docker://a/b", gpus={"gpus_per_host": 1, "cuda": "12"})
