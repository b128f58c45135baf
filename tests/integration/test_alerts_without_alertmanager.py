"""A real Prometheus, the platform as processes, a webhook and a mail server: an alert arrives, and so does its end."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client import start_http_server

from gpu_platform.alerting.rules import rules
from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import CLUSTER, Permission, Role
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.domain.errors import Forbidden
from gpu_platform.node.system.ports import free_port
from gpu_platform.private_files import write_file
from gpu_platform.settings import Settings
from tests.support import command_line, prometheus
from tests.support.lines import whole_lines
from tests.support.recipients import PASSWORD, TOKEN, Mailbox, Webhook, mailbox, webhook
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster

GROUP_WAIT_S = 4
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "alerts.md"


def config_of(tmp_path: Path, hook: Webhook, box: Mailbox) -> ClusterConfig:
    write_file(tmp_path / "mail.url", box.url.encode())
    targets = [{"name": "hook", "url": hook.url}, {"name": "mail", "url_file": str(tmp_path / "mail.url")}]
    settings = {
        "GPU_PLATFORM_NOTIFICATIONS__TARGETS": json.dumps(targets),
        "GPU_PLATFORM_NOTIFICATIONS__GROUP_WAIT_S": str(GROUP_WAIT_S),
        "GPU_PLATFORM_LOG_LEVEL": "DEBUG",
    }
    return ClusterConfig(state_dir=tmp_path / "state", nodes=(), ui=False, schedulers=1, settings=settings)


@contextmanager
def running_prometheus(folder: Path, service: str, token: str, scraped: str) -> Iterator[None]:
    """Prometheus with our rules, but without the wait of ``ProcessDown``, and with what the how-to says of alerts."""
    document = yaml.safe_load(rules(Settings()))
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s" if rule["alert"] == "ProcessDown" else "1h"
    folder.mkdir()
    (folder / "alerts.yaml").write_text(yaml.safe_dump(document))
    [written] = re.findall(r"```yaml\n(alerting:.*?)```", HOW_TO.read_text(), re.DOTALL)
    alerting = yaml.safe_load(written)
    [receiver] = alerting["alerting"]["alertmanagers"]
    receiver["scheme"] = "http"
    del receiver["tls_config"]
    write_file(folder / "token", token.encode())
    receiver["authorization"]["credentials_file"] = str(folder / "token")
    receiver["static_configs"] = [{"targets": [service]}]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yaml"],
        **alerting,
        "scrape_configs": [
            {"job_name": "gpu-platform-gateway", "static_configs": [{"targets": [scraped]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    program = prometheus.tool("prometheus")
    assert program is not None
    arguments = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def token_of_prometheus(client: AsyncClient) -> str:
    """As the how-to makes it."""
    scopes = [Permission.METRICS_READ, Permission.ALERTS_SEND]
    request = TokenRequest(user="prometheus", roles={CLUSTER: Role.OPERATOR}, scopes=scopes)
    return (await client.create_token(request)).token


def log_of(cluster: LocalCluster, event: str) -> list[dict[str, object]]:
    files = [child.log_file for child in (*cluster.services, *cluster.controls)]
    lines = [json.loads(line) for file in files for line in whole_lines(file) if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


@pytest.mark.chaos
@pytest.mark.timeout(180)
@prometheus.needs("prometheus")
async def test_prometheus_fires_and_people_are_told_although_the_control_worker_is_killed(tmp_path: Path) -> None:
    port = free_port()
    with webhook() as hook, mailbox() as box:
        config = config_of(tmp_path, hook, box)
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
            service, scraped = cluster.api_url.removeprefix("http://"), f"127.0.0.1:{port}"
            token = await token_of_prometheus(client)
            with running_prometheus(tmp_path / "prometheus", service, token, scraped):
                await eventually(lambda: log_of(cluster, "alerts.taken"), "the service to take the alert", 60)
                [control] = cluster.controls
                await control.kill()
                assert not hook.messages, "the group wait is not over"
                await control.start()
                await eventually(lambda: hook.messages and box.mails, "both to be told", 60)
                server, thread = start_http_server(port, addr="127.0.0.1")
                try:
                    await eventually(lambda: len(hook.messages) + len(box.mails) == 4, "both to hear of the end", 60)
                    await eventually(lambda: len(log_of(cluster, "notification.sent")) == 4, "the log to say so")
                    sent = {line["target"] for line in log_of(cluster, "notification.sent")}
                    metrics = metrics_of(cluster)
                finally:
                    server.shutdown()
                    server.server_close()
                    thread.join()
    expected = ["[gpu-platform] ProcessDown firing", "[gpu-platform] ProcessDown resolved"]
    assert hook.titles == box.subjects == expected
    assert (
        f"gpu-platform-gateway at {scraped} does not answer Prometheus (warning, since " in hook.messages[0]["message"]
    )
    assert "Look at its unit or container and its log." in hook.messages[0]["message"]
    assert sent == {"hook", "mail"}
    assert 'gpu_platform_notifications_total{result="sent",target="hook"} 2.0' in metrics
    assert 'gpu_platform_notifications_total{result="failed",target="mail"} 0.0' in metrics
    assert leaks(tmp_path / "state", PASSWORD, TOKEN) == []


def metrics_of(cluster: LocalCluster) -> str:
    port = [line["port"] for line in log_of(cluster, "metrics.served") if line["process"] == "control"][-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def leaks(folder: Path, *secrets: str) -> list[Path]:
    """Files below the folder that hold one of the secrets."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".log"], "there are logs"
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


@pytest.mark.long
async def test_a_test_of_targets_says_what_came_of_each_and_a_wrong_target_keeps_control_from_starting(
    tmp_path: Path,
) -> None:
    with webhook() as hook, mailbox() as box:
        config = config_of(tmp_path, hook, box)
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
            ran = await command_line.run("alerts", "test", url=cluster.api_url)
            assert (ran.out, ran.code) == ("hook: sent\nmail: sent\n", 0)
            assert "tests whether messages arrive" in hook.messages[0]["message"]
            hook.down = True
            ran = await command_line.run("alerts", "test", "--target", "hook", url=cluster.api_url)
            assert ran.out.startswith("hook: not sent: ")
            assert "503" in ran.out
            assert ran.code == 1
            ran = await command_line.run("alerts", "test", "--target", "none", "--json", url=cluster.api_url)
            assert json.loads(ran.out)[0]["sent"] is False
            assert len(box.mails) == 1
            viewer = TokenRequest(user="eve", roles={CLUSTER: Role.VIEWER})
            async with AsyncClient(cluster.api_url, token=(await client.create_token(viewer)).token) as eve:
                with pytest.raises(Forbidden):
                    await eve.test_notifications()

            [control] = cluster.controls
            await control.kill()
            write_file(tmp_path / "mail.url", b"mailtoo://nobody:S3cret@mail.example")
            await control.start()
            [refused] = await eventually(lambda: log_of(cluster, "process.cannot_start"), "it to refuse the start")
            await control.stop()
    assert "notifications.targets: mail: Apprise does not understand the URL" in str(refused["error"])
    assert leaks(tmp_path / "state", PASSWORD, TOKEN, "S3cret") == []
