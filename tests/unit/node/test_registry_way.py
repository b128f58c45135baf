"""Where a pull of an image may lead: which images are taken, and which addresses are connected to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gpu_platform.domain.hosts.network import is_allowed, is_public, parse_target
from gpu_platform.node.environments.registry_way import Proxy, Registries
from gpu_platform.outgoing import Unreachable
from gpu_platform.settings import NodeSettings

FORBIDDEN = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.31.0.1"),
    *("192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
    *(
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "fe80::1",
        "fc00::1",
    ),
    *(
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::1",
    ),
    *("2002:a9fe:a9fe::", "2001:0:7f00:1::", "2001:db8::1", "ff02::1", "::ffff:0:127.0.0.1", "100::1"),
    *("127.1", "2130706433", "0177.0.0.1", "0x7f.1", "localhost", "", "1.1.1.1%lo", "fe80::1%eth0"),
)
"""Also spellings that are no address: they are never taken as one."""
PUBLIC = ("1.1.1.1", "151.101.1.140", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::1")
DEFAULTS = tuple(NodeSettings().image_registries)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_no_address_inside_is_public_however_it_is_written(address: str) -> None:
    assert not is_public(address)
    assert not is_allowed(address, 443, [None])


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are(address: str) -> None:
    assert is_public(address)
    assert not is_allowed(address, 443, []), "unless nothing is allowed"


@pytest.mark.parametrize(
    ("image", "taken"),
    [
        ("pytorch/pytorch:2.5", True),
        ("python", True),
        ("docker.io/library/python@sha256:" + "0" * 64, True),
        ("nvcr.io/nvidia/pytorch:24.01-py3", True),
        ("127.0.0.1:5000/x", False),
        ("localhost/x", False),
        ("localhost:5000/x", False),
        ("docker.io:8080/x/y", False),
        ("evil.example/docker.io/x", False),
        ("docker.io.evil.example/x", False),
        ("DOCKER.IO/x", False),
        ("docker.io@127.0.0.1:80/x", True),  # podman reads it as a digest of Docker's
        ("2130706433:80/x", False),
        ("10.1/x", False),
        ("registry.lab:5000/team/x:1", False),
    ],
)
def test_images_come_from_the_registries_that_are_listed(image: str, taken: bool) -> None:
    assert Registries(DEFAULTS, ()).have(image) is taken


def test_a_repository_may_be_listed_alone() -> None:
    some = Registries(("ghcr.io/lab", "registry.lab:5000"), ())
    assert some.have("ghcr.io/lab/x:1")
    assert some.have("registry.lab:5000/any/x")
    assert not some.have("ghcr.io/lab2/x")
    assert not some.have("ghcr.io/evil/lab/x")
    assert not some.have("registry.lab/any/x")
    assert not some.have("python")


class Connected(Exception):
    """Instead of a connection."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Name -> what DNS answers, one after the other."""
    known: dict[str, list[list[str]]] = {}

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(0, 0, 0, "", (address, port)) for address in found]

    def connect(address: tuple[str, int], *_: object) -> None:
        raise Connected(address[0])

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    return known


@pytest.mark.parametrize("address", FORBIDDEN[:31])
def test_a_name_that_leads_inside_is_refused_also_beside_a_public_address(
    answers: dict[str, list[list[str]]], address: str
) -> None:
    for found in ([address], ["1.1.1.1", address]):
        answers["ghcr.io"] = [found]
        with pytest.raises(Unreachable):
            Proxy(Registries(DEFAULTS, ("internet",))).connect("ghcr.io", 443)


def test_what_was_looked_up_is_what_is_connected_to(answers: dict[str, list[list[str]]]) -> None:
    """A name whose next answer is another one gains nothing."""
    answers["ghcr.io"] = [["1.1.1.1"], ["127.0.0.1"]]
    with pytest.raises(Connected, match=r"1\.1\.1\.1"):
        Proxy(Registries(DEFAULTS, ("internet",))).connect("ghcr.io", 443)


def test_ports_and_networks_are_those_that_the_operator_names(answers: dict[str, list[list[str]]]) -> None:
    answers["ghcr.io"] = answers["cdn.example"] = [["1.1.1.1"]]
    answers["registry.lab"] = [["10.1.2.3"]]
    some = Registries((*DEFAULTS, "registry.lab:5000"), ("internet",))
    for host, port in (("ghcr.io", 80), ("cdn.example", 8443), ("registry.lab", 5000), ("registry.lab", 443)):
        with pytest.raises(Unreachable):
            Proxy(some).connect(host, port)
    with pytest.raises(Connected):
        Proxy(some).connect("cdn.example", 443)
    for allow in ("10.0.0.0/8", "10.1.2.3:5000", "registry.lab:5000"):
        with pytest.raises(Connected, match=r"10\.1\.2\.3"):
            Proxy(Registries(some.names, (allow,))).connect("registry.lab", 5000)
    answers["registry.lab"] = [["169.254.169.254"]]
    with pytest.raises(Unreachable):
        Proxy(Registries(some.names, ("registry.lab:5000", "0.0.0.0/0"))).connect("registry.lab", 5000)


def test_an_entry_for_a_network_opens_no_loopback_and_no_link() -> None:
    everything = [parse_target("0.0.0.0/0")]
    assert is_allowed("10.0.0.1", 443, everything)
    for address in ("127.0.0.1", "169.254.169.254", "0.0.0.0"):
        assert not is_allowed(address, 443, everything)
