"""Container images of registries that are away, slow, or hostile: disks stay free, and jobs say what is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_platform.disk_room import Kept
from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.node.environments import container_images, image_pull
from gpu_platform.node.environments.container_images import ContainerImages
from gpu_platform.node.environments.image_pull import GivenUp
from gpu_platform.settings import NodeSettings
from tests.support.hostile_registry import HostileRegistry
from tests.support.waiting import eventually

MIB = 1 << 20
PULL = """
import sys
from pathlib import Path
from gpu_platform.node.environments.image_pull import PullLimits, pull
from gpu_platform.node.environments.registry_way import Registries
registries = Registries((sys.argv[3],), ("internet",))
pull(sys.argv[1], Path(sys.argv[2]), PullLimits(1 << 40, 600, [], lambda: False, registries))
"""
SPELLINGS = (
    *("localhost", "0.0.0.0", "127.1", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "[::1]", "[::ffff:127.0.0.1]"),
    *("[64:ff9b::7f00:1]", "registry@127.0.0.1", "127.0.0.1."),
)
"""Addresses of this host, as a registry may write them."""
Get = Callable[..., Path]


@pytest.fixture(scope="module")
def podman() -> None:
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("needs root and podman")
    if subprocess.run(["podman", "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("podman does not work here")


@pytest.fixture
def get(podman: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Get]:
    """Gets the image of a registry on a host that takes 4 MiB, and returns its files."""
    monkeypatch.setattr(container_images, "PULL_WAITS_S", (0.0, 0.0))
    names: list[str] = []

    with ExitStack() as stack:

        def get(
            registry: HostileRegistry, given_up: GivenUp = lambda: False, image: str | None = None, **settings: float
        ) -> Path:
            monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(stack.enter_context(registry.serve(tmp_path))))
            fields = {"image_max_gib": 4 / 1024, "image_registries": [f"127.0.0.1:{registry.port}"], **settings}
            section = NodeSettings.model_validate(fields)
            images = ContainerImages(tmp_path / "images", "box", section, ["internet"])
            names.append(f"127.0.0.1:{registry.port}/team/{uuid.uuid4().hex[:8]}:1")
            return images.get(f"docker://{image or names[-1]}", given_up).rootfs

        yield get
    left = subprocess.run(["podman", "rmi", "--force", *names], capture_output=True, text=True, check=False).stdout
    assert not list((tmp_path / "images").glob("pull-*")), "what was on its way was removed"
    assert left == "" or "Deleted" in left


def in_store(registry: HostileRegistry) -> bool:
    """True if podman keeps an image of the registry."""
    names = subprocess.run(["podman", "images", "--noheading"], capture_output=True, text=True, check=True).stdout
    return f"127.0.0.1:{registry.port}/" in names


def test_an_image_of_a_registry_is_got_once(get: Get) -> None:
    registry = HostileRegistry()
    assert (get(registry) / "hello").read_bytes() == b"hello"
    assert in_store(registry)


@pytest.mark.parametrize("wrong", ["broken", "digest"])
def test_a_registry_that_is_away_or_damaged_is_the_jobs_failure_after_three_tries(get: Get, wrong: str) -> None:
    registry = HostileRegistry(wrong)  # type: ignore[arg-type]
    with pytest.raises(PreflightFailed) as found:
        get(registry)
    message = found.value.message
    assert "did not get the container image" in message
    assert "from its registry: there is no such image" in message
    assert "load it there" in message
    assert found.value.details == {"kind": "user", "only_here": True}
    assert (registry.asked["manifests"] == 3) is (wrong == "digest")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433", "[::1]", "box.example"])
def test_an_image_of_a_registry_that_is_not_listed_makes_no_connection(get: Get, name: str) -> None:
    """Whether something listens there, and what it says, makes no difference."""
    said = set()
    for inside in (HostileRegistry(), HostileRegistry("broken"), None):
        with contextlib.ExitStack() as stack:
            port = 9 if inside is None else stack.enter_context(served_inside(inside))
            with pytest.raises(PreflightFailed) as found:
                get(HostileRegistry(), image=f"{name}:{port}/team/x:1")
            assert inside is None or not inside.asked
            said.add((re.sub(r":\d+", ":PORT", found.value.message), str(found.value.details)))
    assert len(said) == 1, said
    assert "node.image_registries" in said.pop()[0]


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "where",
    ["127.0.0.1", "own", *(pytest.param(spelling, marks=pytest.mark.long) for spelling in SPELLINGS)],
)
@pytest.mark.parametrize("is_for_a_token", [False, True], ids=["blob", "token"])
def test_a_listed_registry_leads_nowhere_inside(get: Get, where: str, is_for_a_token: bool) -> None:
    """It sends podman on to an address of this host, open or closed: for a blob, or for a token."""
    address = socket.gethostbyname(socket.gethostname()) if where == "own" else where
    inside, said = HostileRegistry(), set()
    with served_inside(inside) as port:
        for at in (port, 9):
            there = f"http://{address}:{at}"
            registry = HostileRegistry(token_at=there) if is_for_a_token else HostileRegistry(sends_to=there)
            with pytest.raises(PreflightFailed) as found:
                get(registry)
            said.add((re.sub(r"127\.0\.0\.1:\d+/team/\w+", "IMAGE", found.value.message), str(found.value.details)))
    assert not inside.asked, "nothing of ours connected"
    assert len(said) == 1, said


@contextlib.contextmanager
def served_inside(registry: HostileRegistry) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as place, registry.serve(Path(place)):
        yield registry.port


def test_a_slow_registry_does_not_hold_gpus_for_long(get: Get) -> None:
    with pytest.raises(PreflightFailed, match=r"within 2 s .node.image_timeout_s.: use a nearer registry") as found:
        get(HostileRegistry("slow"), image_timeout_s=2.0)
    assert found.value.details["only_here"] is True


@pytest.mark.parametrize(
    "registry",
    [
        pytest.param(HostileRegistry("endless"), id="a layer of 100 GiB"),
        pytest.param(HostileRegistry(files=[{"zeros": bytes(16 * MIB)}]), id="a small layer that becomes large"),
        pytest.param(
            HostileRegistry(files=[{f"zeros-{n}": bytes(MIB - n)} for n in range(6)]), id="many layers that are small"
        ),
    ],
)
def test_an_image_that_is_too_large_is_not_kept(get: Get, registry: HostileRegistry) -> None:
    with pytest.raises(PreflightFailed, match=r"larger than 0\.00390625 GiB.*node\.image_max_gib") as found:
        get(registry)
    assert registry.asked["manifests"] == 1, "to try again is no use"
    assert found.value.details == {"kind": "user", "only_here": False}
    assert not in_store(registry)


def test_a_pull_leaves_room_to_others(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is the host's: another host may have room."""
    monkeypatch.setattr(image_pull, "KEPT_BY_PULLS", Kept(1 << 60, least=1 << 60))
    with pytest.raises(HostUnavailable, match=r"has no room for .* is full: make room there \(podman image prune"):
        get(HostileRegistry("endless"), image_max_gib=1)


def test_a_job_that_is_stopped_ends_its_pull(get: Get) -> None:
    registry = HostileRegistry("endless")
    given_up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(get, registry, given_up.is_set, image_max_gib=1)
        while not registry.asked["blobs"]:
            assert not first.done(), first.exception()
        given_up.set()
        with pytest.raises(HostUnavailable, match="its job was stopped meanwhile"):
            first.result(20)


async def test_a_pull_ends_with_its_node_worker(podman: None, tmp_path: Path) -> None:
    """And the next pull removes what it left."""
    registry = HostileRegistry("slow")
    with registry.serve(tmp_path) as file:
        process = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", PULL, f"docker://{registry.address}/team/x:1", str(tmp_path), registry.address],
            env={**os.environ, "CONTAINERS_REGISTRIES_CONF": str(file)},
        )
        try:
            await eventually(lambda: registry.asked.total(), "podman asks")
        finally:
            process.kill()
            process.wait()

        def removed() -> bool:
            image_pull.remove_left_pulls(tmp_path)
            return not list(tmp_path.glob("pull-*"))

        await eventually(removed, "its end", within_s=4)


def test_what_a_killed_pull_left_is_removed_and_what_goes_on_is_not(tmp_path: Path) -> None:
    (tmp_path / "pull-killed").mkdir()
    (tmp_path / "pull-killed" / "lock").touch()
    with image_pull._own_directory(tmp_path) as (place, _):
        image_pull.remove_left_pulls(tmp_path)
        assert [one.name for one in tmp_path.iterdir()] == [place.name]
