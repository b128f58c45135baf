"""The targets of this configuration, and how a message is sent to one of them."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import BaseModel

from gpu_platform.domain.errors import CannotStart, NotSent
from gpu_platform.domain.jobs.notify import check_address
from gpu_platform.domain.notifications import Message, NotifyDefault, OpenTarget, OpenTargets
from gpu_platform.settings import NotificationSettings
from gpu_platform.settings.notifications import NotificationTarget

_PROCESS = "gpu_platform.notifications.apprise_process"
PATIENCE_S = 50.0
"""The process is killed after this time. Apprise itself gives up earlier."""
MAIL = ("mailto", "mailtos")
_TO = frozenset({"to", "cc", "bcc"})
_CAN_FAIL = (OSError, UnicodeDecodeError)


class _Answer(BaseModel):
    ok: bool
    reason: str


class Targets:
    """The targets of this configuration. Files with addresses are read whenever they are needed."""

    def __init__(self, settings: NotificationSettings) -> None:
        self._targets: Mapping[str, NotificationTarget] = {target.name: target for target in settings.targets}
        self._defaults = settings.defaults

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    async def check(self) -> None:
        """Raise :class:`CannotStart` for the first target whose address Apprise does not understand."""
        for target in self._targets.values():
            url = _url_of(target)
            if target.personal and scheme_of(url) not in MAIL:
                raise CannotStart(
                    f"notifications.targets: {target.name} is personal, but its URL begins with {scheme_of(url)!r}: "
                    f"only mail can be sent to addresses of users ({', '.join(MAIL)})"
                )
            answer = await _run({"url": url})
            if not answer.ok:
                raise CannotStart(
                    f"notifications.targets: {target.name}: {answer.reason}; see https://appriseit.com/services"
                )

    async def send(self, name: str, message: Message, address: str | None = None) -> None:
        """Send the message; ``address``: the recipient, for a personal target. Raises :class:`NotSent`, or ``KeyError``
        for a target that this configuration lacks."""
        target = self._targets[name]
        if target.personal != (address is not None):
            said = "is personal, and nobody says to whom" if target.personal else "is not personal any more"
            raise NotSent(f"notifications.targets: {name} {said}")
        try:
            url = _url_of(target)
            url = url if address is None else addressed(url, check_address(address))
        except (CannotStart, ValueError) as error:
            raise NotSent(str(error)) from error
        answer = await _run({"url": url, **message.model_dump()})
        if not answer.ok:
            raise NotSent(answer.reason)

    def open(self) -> OpenTargets:
        """What users may name. Raises :class:`CannotStart` if an address cannot be read."""
        return OpenTargets(
            targets=[
                OpenTarget(
                    name=target.name,
                    kind=scheme_of(_url_of(target)),
                    namespaces=target.namespaces,
                    personal=target.personal,
                    domains=target.domains,
                    user_domain=target.user_domain,
                )
                for target in self._targets.values()
                if target.namespaces
            ],
            defaults=[
                NotifyDefault(namespaces=one.namespaces, events=tuple(one.events), target=one.target)
                for one in self._defaults
            ],
        )


def scheme_of(url: str) -> str:
    """The scheme of an Apprise URL, which says what it sends."""
    return url.partition("://")[0].lower()[:20]


def addressed(url: str, address: str) -> str:
    """The mail URL with this one recipient. Raises ``ValueError`` if it is not mail."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in MAIL:
        raise ValueError(f"its URL begins with {scheme_of(url)!r}: only mail can be sent to an address")
    # All recipients of the operator's URL go: those of its path, too.
    kept = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key.lower() not in _TO]
    return urlunsplit(parts._replace(path="/", query=urlencode([*kept, ("to", address)])))


def _url_of(target: NotificationTarget) -> str:
    if target.url_file is None:
        assert target.url is not None, "the settings check it"
        return target.url.get_secret_value().strip()
    path = target.url_file
    try:
        mode, text = path.stat().st_mode, path.read_text().strip()
    except _CAN_FAIL as error:
        raise CannotStart(f"notifications.targets: {target.name}: url_file {path} cannot be read: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CannotStart(f"notifications.targets: {target.name}: others may read {path}: chmod 600 {path}")
    return text


async def _run(order: Mapping[str, str]) -> _Answer:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", _PROCESS,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate(json.dumps(order).encode())
    except TimeoutError:
        return _Answer(ok=False, reason=f"no answer within {PATIENCE_S:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        # Its stderr may show the address.
        return _Answer(ok=False, reason=f"the process that sends ended with {process.returncode}")
    return _Answer.model_validate_json(output.splitlines()[-1])
