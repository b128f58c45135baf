"""Pages that change a machine, or that need programs beside the platform, are followed on machines of their own."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from gpu_platform.private_files import write_file
from tests.real_cluster import binaries
from tests.security.identity_provider import Provider
from tests.support import pages, prometheus
from tests.support.lan import Lan
from tests.support.page_machine import CHECKOUT, PageMachine, page_machine, why_not, with_checkout
from tests.support.pages import DOCS, FOLLOWED, ROOT, RUN, Block
from tests.support.recipients import Mailbox, Webhook, mailbox, webhook

pytestmark = [
    pytest.mark.scale,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

UNTIL = "until {} 2>&1; do sleep 0.2; done\n"
HOST_IS_READY = UNTIL.format("gpu-platform hosts list | grep READY")
HOW_TO = DOCS / "how-to"


class Site:
    """Machines on one switch. They know each other by name. What ``stack`` holds ends with them."""

    hook: Webhook
    box: Mailbox

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.stack = ExitStack()
        lan = Lan()
        self.stack.callback(lan.close)
        links = {name: lan.machine(name) for name in names}
        self.addresses = {name: f"10.1.0.{number}" for number, name in enumerate(names, 1)}
        known = {f"{name}.example": address for name, address in self.addresses.items()}
        self.machines = {
            name: self.stack.enter_context(page_machine(directory / name, link, name, known))
            for name, link in links.items()
        }

    def __getitem__(self, name: str) -> PageMachine:
        return self.machines[name]

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


Does = Callable[[], object]


def follow(
    page: Path,
    site: Site,
    means: Mapping[str, str],
    before: Mapping[str, Does] | None = None,
    after: Mapping[str, Does] | None = None,
    within_s: float = 60,
) -> dict[str, str]:
    """Type what a page shows for machines of their own, in order. Returns what each block printed.

    ``means``: what the page writes -> what it means here. ``before``, ``after``: a part of a block -> what else the
    reader does then, as the text of the page says.
    """
    printed = {}
    unmet = {*(before or {}), *(after or {}), *means}
    for block in on_machines(page):
        if block.machine not in site.machines:
            continue
        text = block.commands
        unmet -= {part for part in unmet if part in text}
        for part, does in (before or {}).items():
            if part in text:
                does()
        typed = text
        for written, meant in means.items():
            typed = re.sub(rf"(?<![\w$-]){re.escape(written)}(?!\w)", lambda _, meant=meant: meant, typed)
        printed[text] = site[str(block.machine)].run(f": {block}\n{typed}", within_s)
        for part, does in (after or {}).items():
            if part in text:
                does()
    assert not unmet, "the page shows these no more"
    return printed


def on_machines(page: Path) -> list[Block]:
    return [block for block in pages.blocks(page) if block.language in RUN and block.machine is not None]


def test_each_page_with_machines_of_its_own_is_followed_here() -> None:
    wanted = {page.name for page in FOLLOWED if on_machines(page)}
    assert wanted == set(re.findall(r'(?:HOW_TO|DOCS) / "([\w-]+\.md)"', Path(__file__).read_text()))


def of_this_tree(machine: PageMachine) -> None:
    """The platform is there without an installation: that of the tests."""
    machine.run(f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}")


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Site]:
    """``gpu-platform up`` in a checkout, with an identity provider, a webhook and a mail server beside it."""
    with Site(tmp_path_factory.mktemp("site"), ["laptop"]) as site:
        machine = site["laptop"]
        with_checkout(machine)
        of_this_tree(machine)
        with machine.network.here():
            site.hook = site.stack.enter_context(webhook())
            site.box = site.stack.enter_context(mailbox())
            provider.url = site.stack.enter_context(served_beside(provider.application()))
        [notifications] = [block.text for block in yaml_blocks("notifications.md") if "targets:" in block.text]
        [access] = [block.text for block in yaml_blocks("oidc.md") if "issuer:" in block.text]
        access = re.sub(r"issuer: \S+", f"issuer: {provider.url}", access)
        directory = machine.path("/etc/gpu-platform")
        directory.mkdir()
        (directory / "gpu-platform.yaml").write_text(notifications + access)
        write_file(directory / "team-a.url", site.hook.url.encode())
        write_file(directory / "mail.url", site.box.url.encode())
        machine.run("export GPU_PLATFORM_CONFIG=/etc/gpu-platform/gpu-platform.yaml")
        up(machine)
        yield site


def up(machine: PageMachine) -> None:
    machine.run("gpu-platform up > up.log 2>&1 & UP=$!")
    machine.run(HOST_IS_READY, within_s=180)


def yaml_blocks(page: str) -> list[Block]:
    return [block for block in pages.blocks(HOW_TO / page) if block.language == "yaml"]


@contextmanager
def served_beside(application: FastAPI) -> Iterator[str]:
    """Serve from a thread, which is on the machine where the caller is. Yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@prometheus.needs("prometheus")
@prometheus.needs("amtool")
def test_prometheus_and_alertmanager_take_the_rules(laptop: Site) -> None:
    machine = laptop["laptop"]

    def alertmanager() -> None:
        """What the text of the page says below its first block."""
        machine.run(
            "cp deploy/prometheus/alertmanager.example.yaml /etc/prometheus/alertmanager.yml\n"
            "amtool check-config /etc/prometheus/alertmanager.yml\n"
            "mkdir -p /etc/prometheus/gpu-platform; touch /etc/prometheus/gpu-platform/smtp-password\n"
            "prometheus-alertmanager --config.file=/etc/prometheus/alertmanager.yml --storage.path=/tmp/alertmanager"
            " --cluster.listen-address= > alertmanager.log 2>&1 &\n"
        )

    follow(
        HOW_TO / "alerts.md",
        laptop,
        means={
            "--storage.tsdb.path=/tmp/prometheus": "--storage.tsdb.path=/tmp/prometheus > /tmp/prometheus.log 2>&1 &"
        },
        after={"promtool check rules": alertmanager},
        within_s=200,
    )
    asked = "curl -sf 'http://127.0.0.1:9090/api/v1/{}'"
    machine.run(UNTIL.format(asked.format("targets") + ' | grep -c \'"health":"up"\''))
    rules = json.loads(machine.run(asked.format("rules")))
    assert len(rules["data"]["groups"]) > 0
    machine.run(UNTIL.format(asked.format("alertmanagers") + " | grep 127.0.0.1:9093"))
    machine.run("amtool --alertmanager.url=http://127.0.0.1:9093 alert add alertname=ProcessDown severity=warning")
    machine.run(UNTIL.format("amtool --alertmanager.url=http://127.0.0.1:9093 alert query | grep ProcessDown"))


def test_people_are_told_of_their_jobs(laptop: Site) -> None:
    laptop["laptop"].run("printf 'import sys; sys.exit(3)' > train.py")
    printed = follow(HOW_TO / "notifications.md", laptop, means={})
    assert "mail: sent" in printed.popitem()[1]
    [to_people] = [laptop.box]
    wait_for(lambda: any("FAILED" in title for title in laptop.hook.titles), "the webhook to be told")
    wait_for(lambda: ["ann@lab.example"] in to_people.recipients, "ann to be told")


def test_a_person_signs_in(laptop: Site, provider: Provider) -> None:
    machine = laptop["laptop"]
    provider.claims = {"sub": "1", "preferred_username": "ada", "groups": ["ml-team"]}
    is_over = threading.Event()

    def person() -> None:
        while not is_over.wait(0.05):
            provider.confirmed |= set(provider.codes.values())

    thread = threading.Thread(target=person)
    thread.start()
    try:
        machine.run("export HOME=$PWD/ada; mkdir ada")
        [printed] = follow(HOW_TO / "oidc.md", laptop, means={}).values()
    finally:
        is_over.set()
        thread.join()
        machine.run("export HOME=/root")
    assert "ada" in printed
    assert f"{provider.url}/activate" in printed


def test_a_copy_of_the_database_is_put_back(laptop: Site) -> None:
    """What the page shows for SQLite. That for PostgreSQL is followed where a cluster is installed."""
    machine = laptop["laptop"]
    before = machine.run("gpu-platform submit --wait -- true").split()[0]
    machine.run("sqlite3 .gpu-platform/platform.db \"VACUUM INTO 'platform-copy.db'\"")
    after = machine.run("gpu-platform submit --wait -- true").split()[0]
    still = machine.run("gpu-platform submit -- sleep 600").split()[0]  # it shows that the copy is older
    machine.run(UNTIL.format(f"gpu-platform jobs describe {still} | grep RUNNING"))
    machine.run("kill -INT $UP; wait $UP || true", within_s=120)
    follow(HOW_TO / "backup.md", laptop, means={})
    up(machine)
    assert machine.run(f"gpu-platform jobs describe {before} | grep COMPLETED")
    machine.run(UNTIL.format(f"gpu-platform jobs describe {after} | grep COMPLETED"))
    machine.run(UNTIL.format(f"gpu-platform jobs describe {still} | grep RUNNING"))
    machine.run(f"gpu-platform jobs kill {still}")


def test_a_killed_process_of_the_platform_comes_back(laptop: Site) -> None:
    machine = laptop["laptop"]
    job = machine.run("gpu-platform submit --gpus 1 -- sleep 15").split()[0]
    machine.run(UNTIL.format(f"gpu-platform jobs describe {job} | grep RUNNING"))
    follow(DOCS / "tutorial.md", laptop, means={})
    assert "COMPLETED" in machine.run(f"gpu-platform jobs wait {job}; gpu-platform jobs describe {job}", within_s=120)


@pytest.mark.parametrize("page", [HOW_TO / "harden-a-host.md", HOW_TO / "limit-a-host.md"], ids=lambda page: page.stem)
def test_packages_are_installed(page: Path, laptop: Site) -> None:
    follow(page, laptop, means={}, within_s=200)


def test_a_history_is_read_and_keys_are_replaced(laptop: Site) -> None:
    machine = laptop["laptop"]
    machine.run("JOB=$(gpu-platform submit --wait -- true)")
    machine.run("export GPU_PLATFORM_KEY_RING=$PWD/.gpu-platform/keys/ring.json")
    before = machine.run("gpu-platform keys list")
    printed = follow(
        HOW_TO / "temporal-encryption.md",
        laptop,
        means={
            "JOB": "$JOB",
            "ID": "$(gpu-platform keys list | awk 'END {print $1}')",
            "python -P -m workers.gateway": (
                "gpu-platform ca init; timeout 15 python -P -m workers.gateway || [ $? = 124 ]"
            ),
        },
    )
    history, rotated, gateway = printed.values()
    assert '"exit_code":0' in history, "its result is opened"
    assert len(rotated.splitlines()) > len(before.splitlines()), "the new key is listed"
    assert "gateway.serves" in gateway
    assert machine.run("gpu-platform keys list") == before, "and removed before it sealed anything"


def test_certificates_are_made_given_and_replaced(tmp_path: Path) -> None:
    with Site(tmp_path, ["gpu-control", "dgx-a"]) as site:
        control, host = site["gpu-control"], site["dgx-a"]
        for machine in (control, host):
            of_this_tree(machine)
            machine.run(
                "mkdir /var/lib/gpu-platform /etc/gpu-platform; export GPU_PLATFORM_STATE_DIR=/var/lib/gpu-platform"
            )
            machine.run(f"export GPU_PLATFORM_TEMPORAL__ADDRESS={site.addresses['gpu-control']}:7233")
        control.run("temporal server start-dev --headless --ip 0.0.0.0 > temporal.log 2>&1 &")
        control.run("gpu-platform keys create")
        [settings] = [block.text for block in yaml_blocks("certificates.md")]
        settings = settings.replace("10.0.0.1}", f"{site.addresses['gpu-control']}}}")

        def serve() -> None:
            control.path("/etc/gpu-platform/gpu-platform.yaml").write_text(settings)
            control.run("export GPU_PLATFORM_CONFIG=/etc/gpu-platform/gpu-platform.yaml")
            control.run("python -P -m workers.service > service.log 2>&1 &")

        def sign_in() -> None:
            control.run("export GPU_PLATFORM_TOKEN=$(gpu-platform tokens create --admin --user ada)", within_s=120)
            control.run(UNTIL.format("gpu-platform whoami"))

        def prepare_the_host() -> None:
            api_url = next(line for line in settings.splitlines() if line.startswith("api_url:"))
            host.path("/etc/gpu-platform/gpu-platform.yaml").write_text(
                f"{api_url}\ntls: {{enabled: true}}\nnode: {{address: {site.addresses['dgx-a']}}}\n"
            )
            host.run("export GPU_PLATFORM_CONFIG=/etc/gpu-platform/gpu-platform.yaml")
            host.run(f"export GPU_PLATFORM_NODE__SIMULATE=dgx-1v JOIN={control.run('echo $JOIN').strip()}")

        follow(
            HOW_TO / "certificates.md",
            site,
            means={
                "gpu-platform hosts enroll dgx-a": "JOIN=$(gpu-platform hosts enroll dgx-a)",
                "gpj_…": "$JOIN",
                "python -P -m workers.node": "python -P -m workers.node > node.log 2>&1 &",
            },
            before={"python -P -m workers.node": prepare_the_host},
            after={
                "ca init": serve,
                "ca show": sign_in,
                "python -P -m workers.node": lambda: control.run(HOST_IS_READY, within_s=180),
            },
        )
        assert control.run("gpu-platform ca show").count("BEGIN CERTIFICATE") == 1, "the old one is retired"


def wait_for(condition: Callable[[], object], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def temporal_programs() -> None:
    if reason := binaries.why_not():
        pytest.skip(reason)


@pytest.mark.usefixtures("temporal_programs")
def test_a_cluster_is_installed(tmp_path: Path) -> None:
    """From an empty machine with Debian to a job that has run on an enrolled host. GPUs are simulated."""
    with Site(tmp_path, ["gpu-control", "dgx-a"]) as site:
        control, host = site["gpu-control"], site["dgx-a"]
        for machine in (control, host):
            with_checkout(machine)
        for program, name in (("server", "temporal-server"), ("sql", "temporal-sql-tool")):
            target = control.path("/usr/local/bin") / name
            subprocess.run(["install", "-m", "0755", binaries.program(program), target], check=True)

        def cluster_of_postgresql() -> None:
            control.run("pg_dropcluster 15 main --stop || true; pg_createcluster 15 main --start")

        def carry_to_the_host() -> None:
            subprocess.run(["cp", "-a", control.path(CHECKOUT / "dgx-a"), host.path(CHECKOUT / "dgx-a")], check=True)

        def adapt(machine: PageMachine, changes: str) -> Callable[[], str]:
            return lambda: machine.run(f"sed -i {changes} /etc/gpu-platform/gpu-platform.yaml")

        follow(
            HOW_TO / "install.md",
            site,
            means={
                "/opt/gpu-platform/.venv/bin/pip install": "online /opt/gpu-platform/.venv/bin/pip install",
                "as_service tokens create --admin --user ada": "TOKEN=$(as_service tokens create --admin --user ada)",
                "gpt_…": "$TOKEN",
            },
            after={
                "apt-get install python3-venv postgresql": cluster_of_postgresql,
                "deploy/gpu-platform.example.yaml": adapt(control, "'s/10.0.0.1$/10.1.0.1/'"),
                "hosts enroll dgx-a": carry_to_the_host,
                "deploy/gpu-platform-node.example.yaml": adapt(
                    host, "-e 's/10.0.0.11/10.1.0.2/; s/users: {.*}/users: {}/; s/^node:/node:\\n  simulate: dgx-h100/'"
                ),
                "--lines 20": lambda: control.run(HOST_IS_READY, within_s=180),
            },
            within_s=600,
        )
        host.run("install -d -m 1777 /scratch")  # where people work there
        control.run("gpu-platform submit --namespace research --gpus 1 --workdir /scratch --wait -- true", within_s=180)


def test_databases_of_postgresql_are_put_back(tmp_path: Path) -> None:
    """As their account, on a server with the three databases of a cluster."""
    with Site(tmp_path, ["gpu-control"]) as site:
        control = site["gpu-control"]
        control.run(
            "apt-get install postgresql; pg_dropcluster 15 main --stop || true; pg_createcluster 15 main --start", 300
        )
        control.run('install -d -o postgres /backup; cd /backup; psql() { runuser -u postgres -- psql --quiet "$@"; }')
        control.run("psql --command='CREATE ROLE gpu_platform LOGIN'")
        for name in ("gpu_platform", "temporal", "temporal_visibility"):
            control.run(f"psql --command='CREATE DATABASE {name} OWNER gpu_platform'")
        control.run("psql gpu_platform --command='CREATE TABLE jobs AS SELECT 42 AS id'")
        programs = ("pg_basebackup", "pg_dump", "dropdb", "createdb", "pg_restore")
        follow(
            HOW_TO / "backup.md",
            site,
            means={name: f"runuser -u postgres -- {name}" for name in programs},
            before={"dropdb": lambda: control.run("psql gpu_platform --command='DROP TABLE jobs'")},
        )
        assert control.run("psql gpu_platform --tuples-only --command='SELECT id FROM jobs'").strip() == "42"
        control.run("ls base/PG_VERSION temporal.dump temporal_visibility.dump")
