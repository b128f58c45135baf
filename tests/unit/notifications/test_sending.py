"""Messages really arrive, and passwords in addresses are shown nowhere."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.errors import CannotStart, NotSent
from gpu_platform.domain.notifications import Message
from gpu_platform.notifications.apprise_process import without_secrets
from gpu_platform.notifications.sending import Targets
from gpu_platform.private_files import write_file
from gpu_platform.settings import NotificationSettings, Settings
from gpu_platform.settings.reading import read_settings
from tests.support.recipients import PASSWORD, TOKEN, mailbox, webhook

pytestmark = pytest.mark.processes

MESSAGE = Message(title="[lab] HostLost firing", body="1 host is LOST\n- über & <b>all</b>", tone="failure")


def targets(*given: dict[str, Any]) -> Targets:
    return Targets(NotificationSettings.model_validate({"targets": given}))


async def test_a_webhook_and_a_mail_server_get_the_message(tmp_path: Path) -> None:
    with webhook() as hook, mailbox() as box:
        write_file(tmp_path / "url", f"{box.url}\n".encode())
        both = targets({"name": "hook", "url": hook.url}, {"name": "mail", "url_file": str(tmp_path / "url")})
        await both.check()
        await both.send("hook", MESSAGE)
        await both.send("mail", MESSAGE)
    [posted] = hook.messages
    assert (posted["title"], posted["message"], posted["type"]) == (MESSAGE.title, MESSAGE.body, "failure")
    [mail] = box.mails
    assert (mail["Subject"], mail["To"]) == (MESSAGE.title, "team@lab.example")
    text = mail.get_body(("plain",)) or mail
    assert MESSAGE.body in text.get_content().replace("\r\n", "\n")


async def test_a_failure_says_why_and_shows_nothing_of_the_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with webhook() as hook, mailbox() as box:
        hook.down = True
        wrong = box.url.replace(PASSWORD, PASSWORD[::-1])
        gone = {"name": "gone", "url": f"json://127.0.0.1:1/{TOKEN}"}
        both = targets({"name": "hook", "url": hook.url}, {"name": "mail", "url": wrong}, gone)
        with pytest.raises(NotSent, match="503") as refused:
            await both.send("hook", MESSAGE)
        with pytest.raises(NotSent, match=r"with url: /\*\*\* .*Connection refused") as away:
            await both.send("gone", MESSAGE)
        with pytest.raises(NotSent, match=r"Connection error.*\(535") as not_signed_in:
            await both.send("mail", MESSAGE)
    said = f"{refused.value!r} {away.value!r} {not_signed_in.value!r} {caplog.text} {both.__dict__}"
    assert not [secret for secret in (TOKEN, PASSWORD[::-1]) if secret in said]


async def test_a_target_that_sends_elsewhere_is_not_followed() -> None:
    with webhook() as hook, webhook() as inside:
        hook.elsewhere = f"http://127.0.0.1:{inside.port}/{TOKEN}"
        with pytest.raises(NotSent, match="307"):
            await targets({"name": "hook", "url": hook.url}).send("hook", MESSAGE)
    assert inside.messages == []


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
async def test_a_target_that_answers_with_gigabytes_takes_no_memory_of_the_control_plane(is_packed: bool) -> None:
    with webhook() as hook:
        hook.answers_with_a_gigabyte = "gzip" if is_packed else "plain"
        with pytest.raises(NotSent, match="no answer to a message"):
            await targets({"name": "hook", "url": hook.url}).send("hook", MESSAGE)


async def test_a_target_that_takes_a_message_and_answers_late_has_it() -> None:
    with webhook() as hook:
        hook.answer_s = 4.5  # Apprise itself waits for 4
        await targets({"name": "hook", "url": hook.url}).send("hook", MESSAGE)
    assert len(hook.messages) == 1


async def test_a_wrong_target_is_named_at_the_start_without_its_address(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"notifications.targets: chat: .*'slack'") as error:
        await targets({"name": "chat", "url": "slack://T0ken-of-slack"}).check()
    assert "T0ken" not in error.value.message
    write_file(tmp_path / "url", b"json://127.0.0.1/", 0o640)
    with pytest.raises(CannotStart, match=f"others may read {tmp_path}/url: chmod 600"):
        await targets({"name": "chat", "url_file": str(tmp_path / "url")}).check()
    with pytest.raises(CannotStart, match=f"url_file {tmp_path}/none cannot be read"):
        await targets({"name": "chat", "url_file": str(tmp_path / "none")}).check()


async def test_mail_to_a_user_goes_to_no_other_recipient_whatever_the_url_and_the_title_say() -> None:
    with mailbox() as box:
        url = box.url.replace(
            "/?", "/first@lab.example/second@lab.example?cc=third@lab.example&bcc=fourth@lab.example&"
        )
        there = targets({"name": "mail", "url": url, "namespaces": ["*"], "personal": True})
        await there.check()
        message = Message(
            title="[lab] x\r\nBcc: all@corp.example\r\n\r\nbody", body=".\r\nQUIT\r\nRCPT TO:<eve@x.example>"
        )
        await there.send("mail", message, "ann+gpu@home.example")
        for wrong in (None, "a@b.example,c@d.example", "a@b.example\r\nRCPT TO:<c@d.example>"):
            with pytest.raises(NotSent):
                await there.send("mail", message, wrong)
    assert box.recipients == [["ann+gpu@home.example"]]
    [mail] = box.mails
    assert mail["Bcc"] is None
    assert mail["Cc"] is None
    assert "eve@x.example" in mail.get_content(), "it is text"


async def test_only_mail_can_be_personal() -> None:
    with pytest.raises(CannotStart, match=r"chat is personal, but its URL begins with 'json': only mail"):
        await targets({"name": "chat", "url": "json://h/S3cret", "namespaces": ["*"], "personal": True}).check()


@pytest.mark.long
@pytest.mark.parametrize("process", ["workers.control", "workers.service"])
def test_no_process_of_the_platform_loads_apprise(process: str) -> None:
    code = f"import sys, {process}; sys.exit('apprise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('[{"name": "a", "url": "json://h/s3cret", "url_file": "/x"}]', "target a: give either url or url_file"),
        ('[{"name": "a"}]', "target a: give either url or url_file"),
        ('[{"name": "A b", "url": "json://h/s3cret"}]', r"notifications.targets.0.name has a wrong value \(not shown"),
        ('[{"name": "a", "url": "json://h/s3cret", "severities": ["page"]}]', "'critical', 'warning' or 'info'"),
        (
            '[{"name": "a", "url": "json://h/s3cret", "personal": true}]',
            "target a is personal, but open to no namespace",
        ),
        (
            '[{"name": "a", "url": "json://h/s3cret", "domains": ["lab.example"]}]',
            "domains and user_domain are for a target with personal: true",
        ),
        (
            '[{"name": "a", "url": "mailto://h/s3cret", "namespaces": ["*"], "personal": true, "user_domain": "a b"}]',
            "is not a mail address",
        ),
        ('["json://h/s3cret"]', r"notifications.targets.0 has a wrong value \(not shown"),
        ('["json://h/s3cret', "notifications.targets: the variable GPU_PLATFORM_NOTIFICATIONS__TARGETS is no JSON"),
        (
            '[{"name": "a", "url": "json://h/s3cret"}, {"name": "a", "url": "json://h/"}]',
            "two targets have the name 'a'",
        ),
    ],
)
def test_wrong_settings_are_named_and_not_shown(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_NOTIFICATIONS__TARGETS", value)
    with pytest.raises(CannotStart, match=said) as error:
        read_settings()
    assert "s3cret" not in error.value.message


def test_settings_that_are_printed_do_not_show_addresses() -> None:
    settings = Settings.model_validate({"notifications": {"targets": [{"name": "a", "url": "json://h/s3cret"}]}})
    assert "s3cret" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("refused by h.example for pw", "mailto://me:pw@h.example?to=a@b", "refused by *** for ***"),
        ("no such token A1B2C3/D4E5", "slack://A1B2C3/D4E5", "no such token ***/***"),
        ("bad key a+b/c", "json://h/?key=a%2Bb%2Fc", "bad key ***"),
        ("error=503 json", "json://h/x", "error=503 json"),
    ],
)
def test_what_apprise_says_is_shown_without_parts_of_the_address(text: str, url: str, shown: str) -> None:
    assert without_secrets(text, url) == shown
