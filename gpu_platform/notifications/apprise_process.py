"""Sends one message with Apprise: ``python -m gpu_platform.notifications.apprise_process``, the order on stdin.

It is a process of its own, so that Apprise's memory and its log, which may show passwords, do not come into a control
worker, and a server that never answers can be ended. The address comes through stdin, because everybody may see the
arguments of a process.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import sys
from typing import Any
from urllib.parse import unquote

PATIENCE_S = 40.0
ANSWER_S = 30.0
"""How long a server may take for one answer, unless the URL says it (``cto``, ``rto``). Apprise's own 4 s are too
short: a message that was taken, and answered later, is sent again."""
_MOST_MEMORY = 512 << 20
"""Bytes. Apprise keeps the whole answer of a server, however large that is."""
_SHORTEST_SECRET = 4
_LONGEST_REASON = 400
_HIDDEN = "***"


def main() -> None:
    """Read the order (JSON: ``url``, and ``title``, ``body`` and ``tone`` unless the URL is only checked), obey it, and
    print an answer (JSON: ``ok``, ``reason``)."""
    order = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    reason = _reason(order)
    print(json.dumps({"ok": reason is None, "reason": without_secrets(reason or "", order["url"])}))


def without_secrets(text: str, url: str) -> str:
    """The text with every part of the URL hidden that may be a password or a token: everything but its scheme."""
    scheme, _, rest = url.partition("://")
    password = re.match(r"[^/@]*:([^/@]+)@", rest)
    parts = {part for part in re.split(r"[/:@?&=#,;+\s]+", rest) if len(part) >= _SHORTEST_SECRET and part != scheme}
    parts |= {password[1]} if password else set()
    for part in sorted(parts | {unquote(part) for part in parts}, key=len, reverse=True):
        # A short one is hidden as a whole word only: it may be a part of any word.
        pattern = re.escape(part) if len(part) >= _SHORTEST_SECRET else rf"(?<!\w){re.escape(part)}(?!\w)"
        text = re.sub(pattern, _HIDDEN, text)
    return text


def _reason(order: dict[str, Any]) -> str | None:
    """Why the order was not carried out. None: it was."""
    from apprise import Apprise, AppriseAsset
    from apprise.url import URLBase

    URLBase.socket_read_timeout = ANSWER_S
    URLBase.socket_connect_timeout = ANSWER_S  # for mail it counts for every answer
    logging.getLogger("apprise").setLevel(logging.DEBUG)  # where it says what the server answered
    asset = AppriseAsset(
        app_id="gpu-platform",
        app_desc="gpu-platform",
        app_url="",
        async_mode=False,
        secure_logging=True,
        # A target would send the message to a place that the operator did not choose, also inside the network.
        http_redirects=False,
    )
    service = Apprise.instantiate(order["url"], asset=asset, suppress_exceptions=True)
    if service is None:
        return f"Apprise does not understand the URL, which begins with {order['url'].partition('://')[0][:20]!r}"
    if "body" not in order:
        return None
    apprise = Apprise(asset=asset)
    apprise.add(service)
    result = apprise.notify(
        title=order["title"],
        body=order["body"],
        notify_type=order["tone"],
        body_format="text",
        timeout=PATIENCE_S,
        log_level=logging.DEBUG,
    )
    if result:
        return None
    said = [entry.message for entry in result.logs() if entry.level != "DEBUG" or "Exception:" in entry.message]
    if said and said[-1].rstrip().endswith("Exception:"):  # a MemoryError has no text
        said.append(f"its answer is no answer to a message, or has more than {_MOST_MEMORY >> 21} MiB")
    return "; ".join(said)[-_LONGEST_REASON:] or f"Apprise says {result.status.name}"


if __name__ == "__main__":
    main()
