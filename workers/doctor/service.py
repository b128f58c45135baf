"""Checks of the service, as a client sees it: whether it answers, its release, its clock, and its hosts."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx
from pydantic import ValidationError

from gpu_platform.client import Client
from gpu_platform.client.connection import Connection
from gpu_platform.client.http_async import httpx_options
from gpu_platform.client.wire import CheckpointRoot, Health, problem_of_response
from gpu_platform.clock_difference import ClockDifference, compare
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.domain.states import HostState
from gpu_platform.domain.texts import moment
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.settings import Settings
from workers.doctor.clocks import judge, judge_others
from workers.doctor.results import Part, Result
from workers.doctor.roles import Roles

LATE = 5 / 6
"""The part of its life after which a certificate should have been renewed (after two thirds)."""
_MOST_NAMES = 5
_WHOSE = "the service's"


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """The checks of this part. The hosts are asked for by the first service that answers."""
    part = Part("service")
    answering: str | None = None
    for url in dict.fromkeys(url.rstrip("/") for url in (settings.api_url, *settings.api_urls)):
        answer, results = _ask(part, settings, url)
        yield from results
        if answer is not None and answering is None:
            answering = url
    if answering is None:
        yield part.skipped("hosts", "no service answers")
        return
    yield from part.guarded(_hosts(part, settings, answering))


def _ask(part: Part, settings: Settings, url: str) -> tuple[httpx.Response | None, list[Result]]:
    started = time.monotonic()
    try:
        with httpx.Client(**_options(settings, url)) as http, http.stream("GET", "/readyz") as answer:
            shown = _shown_certificate(answer)
            answer.read()
            took_s = time.monotonic() - started
            clock = _clock(part, http)
    except PlatformError as error:
        return None, [part.failed("reachable", f"{url}: {error.message}", "mend what the message names")]
    except httpx.TransportError as error:
        return None, [part.failed("reachable", f"{url}: {error or type(error).__name__}", _advice(error))]
    results = [part.ok("reachable", f"{url}, in {took_s * 1000:.0f} ms")]
    results += [] if shown is None else [_certificate(part, shown)]
    results += [_readiness(part, answer), _release(part, answer), clock]
    return answer, results


def _options(settings: Settings, url: str) -> dict[str, Any]:
    """As a client of the service. A machine of the deployment trusts those whom its processes trust, too."""
    connection = Connection(url, None, None, None, 0.0)
    options = httpx_options(connection)
    options["headers"] = connection.signed({}, connection.token.current())
    trusted = CertificateFiles.of(settings.tls, settings.state_dir, "service").trusted
    if url.startswith("https:") and trusted.exists():
        context: ssl.SSLContext = options["verify"]
        context.load_verify_locations(trusted)
    return options


def _advice(error: httpx.TransportError) -> str:
    text = str(error)
    if "certificate has expired" in text:
        return "the certificate of the service has expired: restart the service, and read its log (certificate.…)"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "trust its authorities: GPU_PLATFORM_CA_FILE=ca.pem, made by `gpu-platform ca show`; if a name does not "
            "match, add it to tls.names of the service"
        )
    if "SSL" in text or "disconnected" in text:
        return "one side speaks TLS and the other does not: compare api_url (http or https) with tls.enabled"
    return "start the service, open its port in the firewall, or set api_url (GPU_PLATFORM_API_URL)"


def _shown_certificate(answer: httpx.Response) -> dict[str, Any] | None:
    """What the service showed. None: plain HTTP."""
    tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert()


def _certificate(part: Part, shown: dict[str, Any]) -> Result:
    """The client has verified the chain, the name and the dates."""
    begin, end = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    found = f"valid until {moment(datetime.fromtimestamp(end, UTC))}, for {_some(names)}"
    if time.time() > begin + LATE * (end - begin):
        return part.warning("certificate", found, "it should have been renewed: read the log of the service")
    return part.ok("certificate", found)


def _readiness(part: Part, answer: httpx.Response) -> Result:
    health = _health(answer)
    if health is not None:
        if health.status != "ok":
            found = "; ".join(health.warnings) or "no scheduler leads, or the leader stands still: nothing is placed"
            return part.failed("ready", found, "docs/how-to/runbooks.md#noleader")
        if health.warnings:
            return part.warning("ready", "; ".join(health.warnings), "see docs/explanation/faults.md")
        return part.ok("ready", "database and Temporal answer the service")
    if answer.is_success:
        advice = "another program answers at this address: set api_url (GPU_PLATFORM_API_URL)"
        return part.failed("ready", "the answer is not the service's", advice)
    detail = problem_of_response(answer.status_code, answer.headers, answer.content).detail
    advice = "run `gpu-platform doctor` on the machine of the service: it checks database and Temporal"
    return part.failed("ready", detail, advice)


def _release(part: Part, answer: httpx.Response) -> Result:
    health, here = _health(answer), version("gpu-platform")
    if health is None or health.version is None:
        return part.skipped("release", "the service tells it to who may read the cluster: set GPU_PLATFORM_TOKEN")
    if health.version != here:
        advice = "install the same release on all machines; the service first"
        return part.warning("release", f"the service has {health.version}, this machine {here}", advice)
    return part.ok("release", here)


def _clock(part: Part, http: httpx.Client) -> Result:
    """Compare this machine's clock with the service's."""
    try:
        difference = _difference(http)
    except httpx.TransportError as error:
        return part.skipped("clock", f"it was not asked: {error or type(error).__name__}")
    return part.skipped("clock", "the answer has no time") if difference is None else judge(part, difference, _WHOSE)


def _difference(http: httpx.Client) -> ClockDifference | None:
    def read() -> float:
        return Health.model_validate_json(http.get("/healthz").content).now or 0.0

    health = _health(http.get("/healthz"))
    return None if health is None or health.now is None else compare(read)


def _health(answer: httpx.Response) -> Health | None:
    """The answer. None: it is an error, or not the service's."""
    if not answer.is_success or not answer.content.startswith(b'{"status":'):
        return None
    try:
        return Health.model_validate_json(answer.content)
    except ValidationError:
        return None


def _hosts(part: Part, settings: Settings, url: str) -> Iterator[Result]:
    with Client(url, retry_for_s=0.0, verify=_options(settings, url)["verify"]) as client:
        try:
            hosts = list(client.hosts())
        except (PlatformError, ValidationError) as error:
            why = error.message if isinstance(error, PlatformError) else "it answers as another program does"
            yield part.skipped("hosts", f"the service does not show them: {why}")
            return
        yield _leases(part, hosts)
        yield from _refused(part, hosts)
        if not hosts:
            return
        try:
            roots, clocks = client.check_checkpoint_roots(), client.clocks()
        except PlatformError as error:
            yield part.skipped("node agents", f"only operators may ask them: {error.message}")
            return
    yield from judge_others(part, clocks)
    yield _agents(part, roots)
    yield _checkpoints(part, roots)


def _refused(part: Part, hosts: list[Host]) -> Iterator[Result]:
    for host in hosts:
        if host.refused_gpus:
            owners = ", ".join(sorted(set(host.refused_gpus.values())))
            found = f"{host.name} reports {len(host.refused_gpus)} GPUs that belong to {owners}"
            advice = "moved, two node workers on one machine, or a lie: docs/explanation/hosts-that-lie.md"
            yield part.warning("GPUs", found, advice)


def _leases(part: Part, hosts: list[Host]) -> Result:
    lost = [host.name for host in hosts if host.state is HostState.LOST]
    if not hosts:
        return part.warning("hosts", "none has registered", "start a node worker: docs/how-to/install.md")
    if lost:
        advice = "look at the log of their node workers; `gpu-platform hosts remove` removes one that is gone for ever"
        return part.failed("hosts", f"{len(lost)} of {len(hosts)} are LOST: {_some(lost)}", advice)
    return part.ok("hosts", f"{len(hosts)} report to the service")


def _agents(part: Part, roots: list[CheckpointRoot]) -> Result:
    silent = [name for root in roots for name in root.silent]
    problems = [root.problem for root in roots if root.problem]
    asked = [name for root in roots for name in root.hosts]
    advice = (
        "the service must reach node.address and node.agent_port of each host: open that port, and mend "
        "node.advertised_url behind a proxy"
    )
    if silent or problems:
        found = f"no answer from {_some(silent)}" if silent else _some(problems)
        return part.failed("node agents", found, advice)
    return part.ok("node agents", f"{len(asked)} answer the service")


def _checkpoints(part: Part, roots: list[CheckpointRoot]) -> Result:
    groups = [root for root in roots if root.hosts]
    if len(groups) < 2:
        return part.ok("checkpoint root", "all hosts share one" if groups else "no host is alive")
    shown = "; ".join(_some(root.hosts) for root in groups[:_MOST_NAMES])
    return part.warning(
        "checkpoint root",
        f"{len(groups)} groups of hosts have roots of their own: {shown}",
        "let node.checkpoint_root be one file system on all hosts: a job that moves finds its checkpoints then",
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
