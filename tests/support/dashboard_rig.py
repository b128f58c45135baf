"""A running platform with simulated hosts, and a real browser that looks at its dashboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, async_playwright

from gpu_platform.client import AsyncClient
from gpu_platform.client.credentials import TOKEN_FILE
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.store import Store
from tests.security.identity_provider import Provider
from tests.support.api_server import served, sign_in
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY_NOT = None if CHROMIUM else "there is no Chromium here (Debian: apt-get install chromium)"
PHONE, DESK = (390, 844), (1280, 900)
KEY = "gpu-platform-token"
BUSY = "busy"
"""The name of a job that runs all the time."""


@dataclass
class Dashboard:
    """The platform, a client of it, and the browser."""

    cluster: LocalCluster
    client: AsyncClient
    browser: Browser
    provider: Provider
    """People may sign in there, too."""
    problems: list[str] = field(default_factory=list)
    """What pages wrote to the console as errors: broken scripts, and what the policy of the page refused."""

    @property
    def state_dir(self) -> Path:
        return self.cluster.config.state_dir

    @property
    def token(self) -> str:
        return (self.state_dir / TOKEN_FILE).read_text().strip()

    def token_of(self, name: str, **roles: Role) -> str:
        """A token of a person with these roles."""
        token, store = f"gpt_{name}".ljust(47, "0"), Store(self.cluster.database_url)
        sign_in(store, token, name, {key.replace("everywhere", "*"): role for key, role in roles.items()})
        store.close()
        return token

    @asynccontextmanager
    async def page(
        self, path: str = "/", *, token: str | None = "", size: tuple[int, int] = DESK, theme: Any = "light"
    ) -> AsyncIterator[Page]:
        """A page of the dashboard in a browser of its own. ``token``: "" the administrator's, None: nobody's."""
        context = await self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=theme, base_url=self.cluster.api_url
        )
        context.set_default_timeout(15_000)
        page = await context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        if token is not None:
            await page.add_init_script(
                f"sessionStorage.getItem('{KEY}') ?? sessionStorage.setItem('{KEY}', '{token or self.token}')"
            )
        await page.goto(path)
        yield page
        await context.close()

    async def see(self, path: str, *, needs: str) -> None:
        """Look at a page once ``needs`` is there."""
        async with self.page(path) as page:
            await page.locator(needs).first.wait_for()
            await self.findings(page, path)

    async def findings(self, page: Page, where: str) -> None:
        """In both themes, on a desk and on a phone: nothing is wrong for a screen reader, and nothing is wider than the
        screen. Afterwards the page is as it was before."""
        for width, height in (PHONE, DESK):
            await page.set_viewport_size({"width": width, "height": height})
            # Only colours differ between the themes.
            await page.emulate_media(color_scheme="dark")
            await no_findings(page, f"{where}, {width} pixels, dark", only="color-contrast")
            await page.emulate_media(color_scheme="light")
            await no_findings(page, f"{where}, {width} pixels, light")
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{where} is {wide} pixels wide on a screen of {width}"

    def _heard(self, message: ConsoleMessage) -> None:
        refused_by_service = "Failed to load resource" in message.text
        if message.type == "error" and not refused_by_service:
            self.problems.append(message.text)


async def no_findings(page: Page, where: str, only: str | None = None) -> None:
    """axe (the rules of WCAG, or ``only`` one) finds nothing serious on the page."""
    rules = {"resultTypes": ["violations"], "preload": False, "iframes": False} | ({"runOnly": [only]} if only else {})
    found = (await Axe().run(page, options=rules)).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    told = [
        f"{one['id']}: {one['help']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for one in serious
        for node in one["nodes"][:3]
    ]
    assert not serious, f"{where}\n" + "\n".join(told)


def job(*command: str, gpus: int = 2, gpu_model: str = "H100", **more: object) -> JobSpec:
    asked = ResourceRequest(gpus_per_host=gpus, model=gpu_model)
    return JobSpec(command=list(command), workdir="/tmp", gpus=asked, grace_s=1, **more)  # type: ignore[arg-type]


async def running(board: Dashboard, spec: JobSpec) -> Job:
    submitted = await board.client.submit(spec)

    async def runs() -> Job | None:
        found = await board.client.get(submitted.id)
        return found if found.state is JobState.RUNNING else None

    return await eventually(runs, f"{submitted.id} to run")


def strike(state_dir: Path, host: str, gpu: int, xid: int, fail_resets: int | None = None) -> None:
    inject_fault(control_dir(node_dir(state_dir, host)), gpu, xid=xid, fail_resets=fail_resets)


def panel(page: Page, title: str) -> Locator:
    return page.locator("section", has=page.get_by_role("heading", name=title, exact=True))


@asynccontextmanager
async def dashboard(state_dir: Path) -> AsyncIterator[Dashboard]:
    """Two hosts of one leaf, one without NVLink, and a browser."""
    nodes = (
        NodeSpec("dgx-a", "dgx-h100", leaf="leaf-1", spine="spine-1"),
        NodeSpec("dgx1-c", "dgx-1v", leaf="leaf-1", spine="spine-1"),
        NodeSpec("pcie-d", "l40s-4x-dual-socket", leaf="leaf-2", spine="spine-1"),
    )
    policy = {"backfill": "conservative", "quotas": {"namespaces": [{"name": "default", "limit_gpus": 64}]}}
    provider = Provider()
    async with AsyncExitStack() as stack:
        provider.url = await stack.enter_async_context(served(provider.application()))
        oidc = {"issuer": provider.url, "roles": {"ml": {"default": "user"}, "ops": {"*": "operator"}}}
        settings = {"GPU_PLATFORM_SCHEDULER__POLICY": json.dumps(policy), "GPU_PLATFORM_ACCESS__OIDC": json.dumps(oidc)}
        config = ClusterConfig(state_dir=state_dir, nodes=nodes, schedulers=1, settings=settings)
        cluster = await stack.enter_async_context(LocalCluster(config))
        client = await stack.enter_async_context(AsyncClient(cluster.api_url, retry_for_s=30))
        playwright = await stack.enter_async_context(async_playwright())
        provider.returns_to.add(f"{cluster.api_url}/sign-in")
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield Dashboard(cluster, client, browser, provider)
        finally:
            await browser.close()
