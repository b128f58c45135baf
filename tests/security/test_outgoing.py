"""Where the platform connects: each place whose address a user, a host or a stranger's answer chose is tried with each
kind of address that leads inside."""

from __future__ import annotations

import ast
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_platform import outgoing
from gpu_platform.client.sign_in import post_form, read_json
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.hosts.network import NOT_INTERNET
from gpu_platform.node.environments.registry_way import Proxy, Registries
from gpu_platform.outgoing import OutgoingReach, Unreachable
from gpu_platform.settings import AccessSettings, NodeSettings
from gpu_platform.settings.access import OidcSettings
from gpu_platform.store import Store
from service.access import oidc
from service.operations.reports import check_address, check_url_of_host
from tests.security.identity_provider import Provider
from tests.security.test_oidc import BEGINNING, VERIFIER
from tests.security.tls_cluster import report
from tests.support.api_server import application, bearer, served
from tests.support.examples import few
from tests.unit.node.test_registry_way import FORBIDDEN

ROOT = Path(__file__).parents[2]
PROVIDER = OidcSettings(issuer="https://login.example").reach
REGISTRY = Proxy(Registries(tuple(NodeSettings().image_registries), ("internet",)))
FAR = "203.0.113.7"
"""Where the reports of a host come from."""


# -- every place ----------------------------------------------------------------------------------

_CONNECTS = re.compile(
    r"(httpx\.(Async)?(Client|HTTPTransport)|(http\.client\.)?HTTPS?Connection|urlopen|requests\.\w+|grpc\.(aio\.)?(in)?"
    r"secure_channel|socket\.create_connection|asyncio\.open_connection|Client\.connect|create_engine|psycopg\.connect|"
    r"Apprise|OTLPSpanExporter|outgoing\.connect|connection\.connect|link\.connection\.connect)"
)


def test_every_module_that_connects_is_in_the_table_of_the_page() -> None:
    """A new one is put there with who chose its address. The table also names what is there no more."""
    page = (ROOT / "docs/explanation/security.md").read_text()
    table = page.partition("### Who chooses where we connect")[2].partition("\n#")[0]
    named = {one for line in table.splitlines() for one in re.findall(r"`([a-z_/]+\.py)`", line.rpartition(" | ")[2])}
    found = {
        str(path.relative_to(ROOT))
        for root in ("gpu_platform", "activities", "workflows", "service", "workers")
        for path in (ROOT / root).rglob("*.py")
        if any(_CONNECTS.fullmatch(name) for name in _calls(path))
    }
    assert named == found


def _calls(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not _CONNECTS.search(text):  # to read all modules takes seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


# -- every kind of address ------------------------------------------------------------------------


class Connected(Exception):
    """Instead of a connection."""


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Name -> what name servers answer, one after the other. Nothing connects."""
    known: dict[str, list[list[str]]] = {}
    really = socket.getaddrinfo

    def look_up(host: str, port: int, *given: Any, **options: Any) -> list[Any]:
        if host not in known:
            return really(host, port, *given, **options)
        found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(0, 0, 0, "", (address, port)) for address in found]

    def connect(address: tuple[str, int], *_: object) -> None:
        raise Connected(address[0])

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    return known


def _authority(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _form(host: str) -> None:
    post_form(f"https://{_authority(host)}/token", {"code": "x"}, PROVIDER)


PLACES: dict[str, Callable[[str], Any]] = {
    "a pull of an image, and where its registry sends it": lambda host: REGISTRY.connect(host, 443),
    "the keys of an identity provider": lambda host: read_json(f"https://{_authority(host)}/keys", PROVIDER),
    "tokens of an identity provider": _form,
}


@pytest.mark.parametrize("place", PLACES)
def test_no_name_and_no_spelling_leads_inside(dns: dict[str, list[list[str]]], place: str) -> None:
    said: set[str] = set()
    for address in FORBIDDEN:
        spellings = [address] if address else []
        if not address.startswith("localhost"):
            dns["evil.example"] = [[address]] if address else [[]]
            spellings.append("evil.example")
        for host in spellings:
            with pytest.raises((PlatformError, Unreachable)) as refusal:
                PLACES[place](host)
            said.add(str(refusal.value).replace(_authority(host), "HOST"))
        dns["evil.example"] = [["1.1.1.1", address]]
        with pytest.raises((PlatformError, Unreachable)):
            PLACES[place]("evil.example")
    assert len(said) == 1, "one message for all of them"


_INSIDE = st.sampled_from([ipaddress.IPv4Network(one) for one in NOT_INTERNET]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1]))
)
_WRITTEN: list[Callable[[int], str]] = [
    lambda bits: str(ipaddress.IPv4Address(bits)),
    str,
    hex,
    lambda bits: f"0{bits:o}",
    lambda bits: ".".join(f"{byte:#x}" for byte in bits.to_bytes(4)),
    lambda bits: ".".join(f"0{byte:o}" for byte in bits.to_bytes(4)),
    lambda bits: f"{bits >> 24}.{bits & 0xFFFFFF}",
    lambda bits: f"{bits >> 24}.{bits >> 16 & 0xFF}.{bits & 0xFFFF}",
    lambda bits: f"::ffff:{ipaddress.IPv4Address(bits)}",
    lambda bits: f"0:0:0:0:0:FFFF:{bits >> 16:x}:{bits & 0xFFFF:x}",
    lambda bits: f"64:ff9b::{bits >> 16:x}:{bits & 0xFFFF:x}",
    lambda bits: f"2002:{bits >> 16:x}:{bits & 0xFFFF:x}::1",
    lambda bits: f"2001:0:{bits >> 16:x}:{bits & 0xFFFF:x}::1",
    lambda bits: f"::{bits >> 16:x}:{bits & 0xFFFF:x}",
]


@settings(max_examples=few(300), deadline=None)
@given(_INSIDE, st.sampled_from(_WRITTEN), st.sampled_from([*PLACES]))
def test_no_address_inside_is_connected_to_however_it_is_written(
    bits: int, written: Callable[[int], str], place: str
) -> None:
    """As the machine's own resolver reads it, without name servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", _never)
        with pytest.raises((PlatformError, Unreachable)):
            PLACES[place](written(bits))


def _never(address: tuple[str, int], *_: object) -> None:
    raise Connected(address[0])


@pytest.mark.parametrize("place", PLACES)
def test_what_was_checked_is_what_is_connected_to(dns: dict[str, list[list[str]]], place: str) -> None:
    for address in ("1.1.1.1", "2606:4700:4700::1111"):
        dns["evil.example"] = [[address], ["127.0.0.1"]]
        with pytest.raises(Connected, match=re.escape(address)):
            PLACES[place]("evil.example")


def test_the_place_of_the_issuer_is_trusted_wherever_it_is_and_no_other_port_of_it(
    dns: dict[str, list[list[str]]],
) -> None:
    dns["login.example"] = dns["keys.lab"] = [["10.1.2.3"]]
    reach = OidcSettings(
        issuer="https://LOGIN.example:8443/realms/x", other_hosts=["keys.lab", "tokens.lab:9443"]
    ).reach
    for host, port in (("login.example", 8443), ("Login.Example.", 8443), ("keys.lab", 443)):
        with pytest.raises(Connected, match=r"10\.1\.2\.3"):
            outgoing.connect(host, port, reach, within_s=5)
    for host, port in (("login.example", 443), ("login.example", 22), ("keys.lab", 9443), ("tokens.lab", 443)):
        with pytest.raises(Unreachable):
            outgoing.connect(host, port, reach, within_s=5)


@pytest.mark.parametrize("host", ["a/b", "a b", "user@a", "a:0", "a:99999", "", "[::1", "a#b", "a?b"])
def test_other_hosts_are_hosts(host: str) -> None:
    with pytest.raises(ValidationError):
        OidcSettings(other_hosts=[host])


def test_a_name_server_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(30))
    with pytest.raises(Unreachable):
        outgoing.connect("evil.example", 443, PROVIDER, within_s=0.2)
    monkeypatch.setattr(outgoing, "_look_ups", threading.BoundedSemaphore(1))
    for _ in range(2):  # the second one does not even begin
        with pytest.raises(Unreachable):
            outgoing.connect("evil.example", 443, PROVIDER, within_s=0.2)
    released.set()


def test_behind_a_proxy_of_the_site_names_go_to_it_and_addresses_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    with _listening(asked, b"HTTP/1.1 200 OK\r\n\r\n") as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://us%40er:pw@127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "inside.example")
        outgoing.connect("evil.example", 443, PROVIDER, within_s=5).close()
        outgoing.connect("login.example", 443, PROVIDER, within_s=5).close()
        for host in ("127.0.0.1", "10.0.0.1", "2130706433", "localhost", "[::1]", "127.1"):
            with pytest.raises(Unreachable):
                outgoing.connect(host, 443, PROVIDER, within_s=5)
    assert [one.split(b"\r\n")[0] for one in asked] == [
        b"CONNECT evil.example:443 HTTP/1.1",
        b"CONNECT login.example:443 HTTP/1.1",
    ]
    assert b"Proxy-Authorization: Basic dXNAZXI6cHc=" in asked[0]


def test_a_proxy_that_does_not_answer_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with _listening([], b"HTTP/1.1 200 OK\r\n", drips=True) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(Unreachable):
            outgoing.connect("evil.example", 443, PROVIDER, within_s=0.5)


@contextmanager
def _listening(asked: list[bytes], answer: bytes, *, drips: bool = False) -> Iterator[int]:
    """A server on every address of the loopback that notes what it is asked. ``drips``: its answer never ends."""
    ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                continue
            with client:
                client.settimeout(5)
                asked.append(client.recv(65_536))
                client.sendall(answer)
                while drips and not ended.wait(0.1):
                    try:
                        client.sendall(b"x")
                    except OSError:
                        break

    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_INET6) as other:
        port = one.getsockname()[1]
        listeners = [one]
        try:
            other.bind(("::1", port))
            other.listen()
            listeners.append(other)
        except OSError:
            pass  # this machine has no IPv6
        for listener in listeners:
            listener.settimeout(0.1)
        threads = [threading.Thread(target=serve, args=(listener,)) for listener in listeners]
        for thread in threads:
            thread.start()
        try:
            yield port
        finally:
            ended.set()
            for thread in threads:
                thread.join()


# -- a real provider that was taken over ----------------------------------------------------------

HERE = (
    *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1"),
    *(
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "127.0.0.2",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
    ),
    *("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::1%25lo]", "[fe80::1%25lo]", "user@127.0.0.1"),
    *("login.example@127.0.0.1", "127.0.0.1#@login.example", "127。0。0。1", "①27.0.0.1", "127.0.0.1\\@login.example"),
)


async def test_a_provider_that_was_taken_over_leads_the_service_nowhere(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names each spelling of this machine as the place of its keys and tokens, and redirects there."""
    monkeypatch.setattr(oidc, "FETCH_AT_MOST_S", 0.0)
    asked: list[bytes] = []
    provider = Provider()
    with _listening(asked, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as port:
        monkeypatch.setattr(outgoing, "HTTPS", port)
        async with served(provider.application()) as there:
            provider.url = there
            access = AccessSettings(oidc=OidcSettings(issuer=there))
            async with (
                served(application(sqlite_store, "127.0.0.1:1", access=access)) as url,
                httpx.AsyncClient(base_url=url, trust_env=False) as http,
            ):
                for place in (f"{scheme}://{host}:{port}/" for scheme in ("https", "http") for host in HERE):
                    for says, sends_to in (({"jwks_uri": place}, ""), ({}, place)):
                        provider.says, provider.sends_to = says, sends_to
                        answer = await http.get("/v1/whoami", headers=bearer(provider.token()))
                        assert answer.status_code == 503, (place, answer.text)
                provider.says, provider.sends_to = {}, ""
                assert (await http.get("/v1/whoami", headers=bearer(provider.token()))).status_code == 200
    assert asked == []


async def test_whatever_is_at_the_place_of_the_tokens_the_page_hears_one_sentence(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, said = Provider(), set[tuple[int, str]]()
    with _listening([], b"SSH-2.0-OpenSSH_9.2\r\n") as ssh, socket.create_server(("127.0.0.1", 0)) as silent:
        closed = silent.getsockname()[1]
        silent.close()
        async with served(provider.application()) as there:
            provider.url = there
            for port in (ssh, closed, 443):
                for host in ("localhost", "127.0.0.1", "10.255.255.1", "169.254.169.254", "nothing.invalid", "[::1]"):
                    provider.says = {"token_endpoint": f"https://{host}:{port}/"}
                    access = AccessSettings(oidc=OidcSettings(issuer=there))
                    app = application(sqlite_store, "127.0.0.1:1", access=access)
                    transport = httpx.ASGITransport(app)
                    async with (
                        app.router.lifespan_context(app),
                        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as http,
                    ):
                        body = {"code": "x", "verifier": VERIFIER}
                        answer = await http.post(
                            "/sign-in/code", json=body, headers={"Origin": "http://127.0.0.1:8700"}
                        )
                        said.add((answer.status_code, answer.json()["detail"]))
    [(status, detail)] = said
    assert status == 503
    assert "does not answer as one" in detail


async def test_a_page_is_sent_to_no_address_that_is_no_https(sqlite_store: Store) -> None:
    provider = Provider()
    wrong: list[Any] = [
        "http://evil.example/",
        "javascript:alert(1)",
        "//evil.example",
        "file:///etc/passwd",
        7,
        ["x"],
        "",
    ]
    async with served(provider.application()) as there:
        provider.url = there
        for address in wrong:
            for name in ("authorization_endpoint", "end_session_endpoint", "token_endpoint", "revocation_endpoint"):
                provider.says = {name: address}
                access = AccessSettings(oidc=OidcSettings(issuer=there))
                app = application(sqlite_store, "127.0.0.1:1", access=access)
                async with (
                    app.router.lifespan_context(app),
                    httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8700") as http,
                ):
                    answer = await http.post(
                        "/sign-in/begin", json=BEGINNING, headers={"Origin": "http://127.0.0.1:8700"}
                    )
                    assert answer.status_code == 422, (name, address, answer.text)


# -- what a host names ----------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [True, False])
def test_a_host_leads_the_service_to_no_other_machine(sqlite_store: Store, tls: bool) -> None:
    scheme = "https://" if tls else "http://service:t@"
    check_url_of_host(sqlite_store, _report(f"{scheme}{FAR}:8701", FAR), FAR, tls=tls)
    for host in (*FORBIDDEN, *HERE, "1.1.1.1", "evil.example", "203.0.113.8", f"::ffff:{FAR}", f"{FAR}."):
        if host and "%" not in host and host.isascii():
            with pytest.raises(InvalidRequest):
                check_url_of_host(
                    sqlite_store, _report(f"{scheme}{_authority(host.strip('[]'))}:8701", FAR), FAR, tls=tls
                )


def test_a_host_names_no_address_that_no_host_has(sqlite_store: Store) -> None:
    """Ranks of a gang connect there."""
    good = ("10.1.2.3", "172.16.0.9", "2001:db8::7", "fd00::7", "gpu-7.lab", "gpu-7")
    for address in good:
        check_address(sqlite_store, _report(f"https://{FAR}:8701", address), FAR)
    for address in ("2001:DB8::7", "2001:db8:0::7", "fd00:0:0::7", "::ffff:10.1.2.3"):  # another host's, in disguise
        with pytest.raises(InvalidRequest):
            check_address(sqlite_store, _report(f"https://{FAR}:8701", address), FAR)
    for address in FORBIDDEN:
        private = address.startswith(("10.", "172.", "192.168.", "100.64.", "198.18.", "192.0.2.", "fc00", "fd00"))
        if address and not private and address not in ("localhost", "2001:db8::1"):
            with pytest.raises(InvalidRequest):
                check_address(sqlite_store, _report(f"https://{FAR}:8701", address), FAR)


def _report(worker_url: str, address: str) -> HostReport:
    return HostReport.model_validate(report("a", worker_url, address=address))


def test_nothing_is_allowed_where_nothing_is() -> None:
    for host in ("1.1.1.1", "127.0.0.1"):
        with pytest.raises(Unreachable):
            outgoing.connect(host, 443, OutgoingReach(targets=()), within_s=5)
