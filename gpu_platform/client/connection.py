"""Where the service is, who asks, and when to send a request again. Both clients use it."""

from __future__ import annotations

import json
import os
import random
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from urllib.parse import urlsplit

from gpu_platform.client.answer import NoAnswer
from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER, Call
from gpu_platform.client.credentials import LOOPBACK, Token
from gpu_platform.domain.errors import InvalidRequest, Unavailable
from gpu_platform.tracing import trace_headers

Transport = Literal["rest", "grpc"]
TRANSPORT_VARIABLE = "GPU_PLATFORM_TRANSPORT"
DEFAULT_URL = "http://127.0.0.1:8700"
ANSWER_WITHIN_S = 30.0
NEXT_AFTER_S = 5.0
"""How long one of several services may take before the next one is asked. One that stands still accepts connections and
never answers. The last one that is asked may take as long as a single one."""
CONNECT_TIMEOUT_S = 5.0
STREAM_TIMEOUT_S = 30.0
"""The service sends a keep-alive every 15 s. If nothing comes for longer, the connection is dead."""


class Connection:
    """The part that both clients share: the addresses of the services, who asks, and how long to retry."""

    def __init__(
        self,
        base_url: str | Sequence[str] | None,
        token: str | None,
        user: str | None,
        break_glass: str | None,
        retry_for_s: float,
    ) -> None:
        given = [base_url] if isinstance(base_url, str) else base_url
        self.base_urls = [url.rstrip("/") for url in given or _known_services()]
        self.base_url = self.base_urls[0]
        self.current = self.base_url
        """The service that is asked now: the first one, until it does not answer."""
        self.token = Token(self.base_url, token)
        self.user = user or os.environ.get("GPU_PLATFORM_USER")
        self.break_glass = break_glass
        self.retry_for_s = retry_for_s
        # A proxy for the internet cannot reach the loopback of this machine.
        self.may_use_proxy = not all(urlsplit(url).hostname in LOOPBACK for url in self.base_urls)

    def trusted(self) -> ssl.SSLContext:
        """Whom to trust: the authorities in the file ``GPU_PLATFORM_CA_FILE``, else those of the operating system."""
        if not any(url.startswith("https:") for url in self.base_urls):
            # Loading the certificate authorities takes 0.1 s, for nothing when the address is not https.
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        file = os.environ.get("GPU_PLATFORM_CA_FILE")
        try:
            return ssl.create_default_context(cafile=file or None)
        except OSError as error:
            raise InvalidRequest(
                f"GPU_PLATFORM_CA_FILE is {file!r}, which holds no certificates (PEM): {error}"
            ) from error

    def pass_over(self, failed: str) -> None:
        """Ask the next service from now on, unless another request that failed has said so."""
        if failed == self.current:
            self.current = self.base_urls[(self.base_urls.index(failed) + 1) % len(self.base_urls)]

    def gives_up(self, services_asked: int, deadline: float) -> bool:
        """True if a call that failed is not tried again. Each service is asked once, even late."""
        return services_asked >= len(self.base_urls) and time.monotonic() > deadline

    def read_timeout_s(self, call: Call, tries: int) -> float:
        """How long the service may be silent before its answer is complete. ``tries``: how many were asked in vain."""
        is_last = tries + 1 >= len(self.base_urls) or not call.repeatable
        return (ANSWER_WITHIN_S if is_last else NEXT_AFTER_S) + call.patience_s

    def who_asks(self) -> dict[str, str]:
        """The headers of every request."""
        named = ((USER_HEADER, self.user), (BREAK_GLASS_HEADER, self.break_glass))
        return {name: value for name, value in named if value}

    def signed(self, headers: Mapping[str, str], token: str | None) -> dict[str, str]:
        """These headers, those that say who asks, and the token."""
        proof = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {**self.who_asks(), **headers, **proof}

    def headers(self, call: Call) -> dict[str, str]:
        """The headers of this request."""
        headers = {**trace_headers(), **call.headers}
        if call.body is not None or call.method == "POST":
            # Without a body, too: it shows that no page of another site sends this.
            headers.setdefault("Content-Type", "application/json")
        return headers

    def stream_headers(self, last_id: str) -> dict[str, str]:
        """The headers of a request that streams. ``last_id``: the last event that was received, or empty."""
        return {
            "Accept": "text/event-stream",
            "Cache-Control": "no-store",
            **({"Last-Event-ID": last_id} if last_id else {}),
        }

    def unavailable_error(self, error: NoAnswer) -> Unavailable:
        """The error for a request that got no answer."""
        return Unavailable(
            f"no answer from the service at {' or '.join(self.base_urls)} ({error}); "
            "start it with `gpu-platform up`, or say where it is with GPU_PLATFORM_API_URL",
            url=self.base_url,
        )


def _known_services() -> list[str]:
    """``GPU_PLATFORM_API_URL``, and those in ``GPU_PLATFORM_API_URLS``, which are asked when the one before does not
    answer."""
    more = os.environ.get("GPU_PLATFORM_API_URLS") or "[]"
    try:
        urls = json.loads(more)
    except ValueError:
        urls = None
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        raise InvalidRequest(f'GPU_PLATFORM_API_URLS is {more!r}: write a JSON list, e.g. ["https://second:8700"]')
    return [os.environ.get("GPU_PLATFORM_API_URL") or DEFAULT_URL, *urls]


def chosen_transport(given: str | None) -> Transport:
    """``given``, else what ``GPU_PLATFORM_TRANSPORT`` says, else ``rest``. Raises :class:`InvalidRequest`."""
    wanted = given or os.environ.get(TRANSPORT_VARIABLE) or "rest"
    if wanted not in ("rest", "grpc"):
        name = "transport" if given else TRANSPORT_VARIABLE
        raise InvalidRequest(f"{name} is {wanted!r}: write rest or grpc")
    if wanted == "grpc":
        from importlib.util import find_spec  # REST, the default, does not pay for it

        if find_spec("grpc") is None:
            raise InvalidRequest("the transport grpc is not installed here: pip install 'gpu-platform[grpc]'")
    return wanted


def may_repeat(call: Call, error: NoAnswer) -> bool:
    """True if the request may be sent again after this error."""
    return call.repeatable or not error.was_sent


def retry_delays(base_s: float = 0.1, limit_s: float = 2.0) -> Iterator[float]:
    """The seconds to wait between tries: exponential back-off with jitter, without end."""
    delay = base_s
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(limit_s, delay * 2)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The header ``Retry-After`` in seconds (RFC 9110, 10.2.3). None: there is none. The service sends no dates."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdigit() else None


def default_user() -> str:
    """``GPU_PLATFORM_USER`` or the login name, changed so that a job can carry it."""
    import getpass

    try:
        login = os.environ.get("GPU_PLATFORM_USER") or getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in many containers
        login = f"uid-{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", login).strip("._-")[:63].strip("._-") or "anonymous"
