"""A user asks to be told of a job, and is, by a real mail server, although the control worker is killed between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.private_files import write_file
from tests.integration.test_alerts_without_alertmanager import leaks, log_of
from tests.support import command_line
from tests.support.recipients import PASSWORD, TOKEN, mailbox, webhook
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

JOB_WAIT_S = 3


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_a_user_is_told_of_a_job_although_the_control_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as hook, mailbox() as box:
        write_file(tmp_path / "mail.url", box.url.encode())
        targets = [
            {"name": "team", "url": hook.url, "namespaces": ["default"]},
            {"name": "other", "url": hook.url, "namespaces": ["other"]},
            {
                "name": "mail",
                "url_file": str(tmp_path / "mail.url"),
                "namespaces": ["*"],
                "personal": True,
                "user_domain": "lab.example",
            },
        ]
        settings = {
            "GPU_PLATFORM_NOTIFICATIONS__TARGETS": json.dumps(targets),
            "GPU_PLATFORM_NOTIFICATIONS__JOB_WAIT_S": str(JOB_WAIT_S),
            "GPU_PLATFORM_LOG_LEVEL": "DEBUG",
        }
        config = ClusterConfig(
            state_dir=tmp_path / "state", nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1, settings=settings
        )
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as admin:
            made = await admin.create_token(TokenRequest(user="ada", roles={"default": Role.USER}))
            monkeypatch.setenv("GPU_PLATFORM_TOKEN", made.token)
            await eventually(lambda: log_of(cluster, "notices.followed"), "the targets to be known", 60)
            listed = await command_line.run("notifications", "list", "-o", "csv", url=cluster.api_url)
            tested = await command_line.run("notifications", "test", "mail", url=cluster.api_url)
            wrong = await command_line.run("submit", "--notify", "end:other", "--", "true", url=cluster.api_url)
            ran = await command_line.run(
                *("submit", "--wait", "--name", "hello", "--notify", "fail:mail", "--notify", "end:team"),
                *("--", "sh", "-c", "exit 7"),
                url=cluster.api_url,
            )
            monkeypatch.delenv("GPU_PLATFORM_TOKEN")
            assert ran.code == 7, ran.err
            job_id = ran.out.split()[0]
            await eventually(lambda: log_of(cluster, "notices.taken"), "it to be taken", 60)
            [control] = cluster.controls
            await control.kill()
            assert (len(box.mails), hook.messages) == (1, []), "only the test has come"
            await control.start()
            await eventually(lambda: hook.messages and len(box.mails) == 2, "both to be told", 60)
            await eventually(lambda: len(log_of(cluster, "notification.sent")) == 3, "the log to say so")
    assert [line.split(",")[0] for line in listed.out.splitlines()] == ["target", "team", "mail"]
    assert "ada@lab.example" in listed.out
    assert (tested.out, tested.code) == ("mail: sent\n", 0)
    assert wrong.code != 0
    assert "there is no target 'other' for jobs of namespace default; there are: team, mail" in wrong.err
    assert [mail["To"].addresses[0].addr_spec for mail in box.mails] == ["ada@lab.example"] * 2
    [told] = hook.messages
    assert box.subjects[1] == told["title"]
    assert told["title"].startswith(f"[gpu-platform] hello ({job_id}) is FAILED after ")
    assert "Where: a (" in told["message"]
    assert leaks(tmp_path / "state", PASSWORD, TOKEN) == []
