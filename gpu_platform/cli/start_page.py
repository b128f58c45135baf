"""``gpu-platform`` without a command: is there a service, who am I there, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_platform.cli import session
from gpu_platform.client import access_calls
from gpu_platform.domain.errors import Forbidden, NotSignedIn, PlatformError, Unavailable

if TYPE_CHECKING:
    from gpu_platform.client import Client

_START = ("gpu-platform up", "run the whole platform on this machine")
_ELSEWHERE = ("export GPU_PLATFORM_API_URL=…", "say where your cluster is")
_SIGN_IN = ("gpu-platform login", "sign in; or set GPU_PLATFORM_TOKEN")
_WORK = (
    ("gpu-platform submit --gpus 1 -- python train.py", "submit a job"),
    ("gpu-platform jobs list", "see your jobs"),
    ("gpu-platform status", "see the cluster"),
)
_ALWAYS = (("gpu-platform doctor", "check this machine and its settings"), ("gpu-platform --help", "all commands"))


def show() -> None:
    """Print the page. It asks once, and waits for nobody."""
    with session.service(patience_s=0.0) as client:
        service, you, steps = _state(client)
        address = client.base_url
    lines = [f"service  {address}: {service}", f"you      {you}", "", "Next:"]
    lines += [f"  {command:49} {what}" for command, what in (*steps, *_ALWAYS)]
    session.write("\n".join(lines))


def _state(client: Client) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    try:
        found = client.json(access_calls.who_am_i())
    except (NotSignedIn, Forbidden) as error:
        return "answers", f"not signed in: {error.message}", (_SIGN_IN,)
    except Unavailable as error:
        if isinstance(error.__cause__, Exception):
            return "does not answer", "unknown", (_START, _ELSEWHERE)
        return f"is not ready: {error.message}", "unknown", ()
    except PlatformError as error:
        return f"answers with an error: {error.message}", "unknown", ()
    roles = ", ".join(f"{role} in {'the cluster' if where == '*' else where}" for where, role in found["roles"].items())
    return "answers", f"{found['name']}, {roles or 'without a role: ask an administrator for one'}", _WORK
