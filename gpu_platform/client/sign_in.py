"""Sign in at an OpenID Connect provider: the device authorization grant (RFC 8628), and fresh tokens (RFC 6749)."""

from __future__ import annotations

import fcntl
import json
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlencode, urlsplit

from gpu_platform import outgoing
from gpu_platform.client import credentials
from gpu_platform.domain.errors import InvalidRequest, NotSignedIn, PlatformError, Unavailable
from gpu_platform.outgoing import OutgoingReach, place_of
from gpu_platform.private_files import make_private_directory

if TYPE_CHECKING:
    from gpu_platform.domain.access.tokens import LoginInfo

EARLY_S = 30.0
"""A token is refreshed so long before it expires."""
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT_S = 10.0
_PIECE_TIMEOUT_S = 5.0
_PIECE_BYTES = 64 * 1024
_MOST_BYTES = 1 << 20
_OK, _REDIRECT, _SERVER_ERROR = 200, 300, 500
_LEAST_PAUSE_S = 0.1
_LIVES_S = 300.0
"""How long a token lives of which the provider does not say it."""
_LONGEST_S = 365 * 86_400.0
_ADDRESSES = (
    *("jwks_uri", "authorization_endpoint", "token_endpoint", "device_authorization_endpoint"),
    *("revocation_endpoint", "end_session_endpoint"),
)


def discover(issuer: str, reach: OutgoingReach | None = None) -> dict[str, Any]:
    """What the provider says of itself (OpenID Connect Discovery), the addresses that it has as texts.

    ``reach``: see :func:`gpu_platform.outgoing.connect`. Raises :class:`Unavailable` and :class:`InvalidRequest`.
    """
    found = read_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration", reach)
    if not isinstance(found, dict) or found.get("issuer") != issuer:
        raise InvalidRequest(f"{issuer} is not what the identity provider calls itself; set access.oidc.issuer so")
    for name in _ADDRESSES:
        address = found.get(name)
        if address is not None and not _is_private(address, issuer):
            raise InvalidRequest(f"the identity provider's {name} is {str(address)[:200]!r}, which is no https address")
    return {name: value for name, value in found.items() if value is not None}


def read_json(url: str, reach: OutgoingReach | None = None) -> Any:
    """What the provider publishes there. Raises :class:`Unavailable`."""
    status, content = _ask("GET", url, reach)
    found = _json(content)
    if status != _OK or found is None:
        raise Unavailable(f"the identity provider answered {status} at {url}, not what was asked for")
    return found


def sign_in(base_url: str, info: LoginInfo, show: Callable[[str, str], None]) -> None:
    """Sign in with a browser on any machine, and keep the tokens for the service at ``base_url``.

    ``show`` gets an address and a code for the person. Returns when they have confirmed. Raises :class:`NotSignedIn`
    if they refuse, or the code expires.
    """
    if info.issuer is None:
        raise InvalidRequest(
            f"nobody signs in at {base_url} with a browser: access.oidc.issuer is not set. Ask an administrator for a "
            "token, and set GPU_PLATFORM_TOKEN"
        )
    provider = discover(info.issuer)
    if not {"device_authorization_endpoint", "token_endpoint"} <= {*provider}:
        raise InvalidRequest(f"the identity provider {info.issuer} has no device authorization grant (RFC 8628)")
    form = {"client_id": info.client_id, "scope": " ".join(info.scopes)}
    code = post_form(provider["device_authorization_endpoint"], form)
    address = code.get("verification_uri_complete") or code.get("verification_uri")
    if not _is_private(address, info.issuer) or not {"user_code", "device_code"} <= {*code}:
        raise Unavailable(f"the identity provider {info.issuer} does not say where to confirm which code (RFC 8628)")
    show(str(address), str(code["user_code"]))
    found = _confirmed(provider["token_endpoint"], info.client_id, code)
    where = {
        "token_endpoint": provider["token_endpoint"],
        "client_id": info.client_id,
        "issuer": info.issuer,
        "use_id_token": info.use_id_token,
    }
    kept = where | tokens_of(found, info.use_id_token)
    with _alone(base_url):
        credentials.write_note(base_url, kept)


def fresh_token(base_url: str, refused: str | None = None) -> str | None:
    """The token that was kept for the service, refreshed if it is about to expire. None: there is none.

    ``refused``: the service took this one no more. Raises :class:`Unavailable` if the provider, which may give another
    one, is away.
    """
    note = credentials.read_note(base_url)
    if not _wants_refresh(note, refused):
        return note.get("access_token")
    with _alone(base_url):
        # Another command may have refreshed it meanwhile, or signed out.
        note = credentials.read_note(base_url)
        if not _wants_refresh(note, refused):
            return note.get("access_token")
        form = {
            "grant_type": "refresh_token",
            "refresh_token": note["refresh_token"],
            "client_id": note["client_id"],
        }
        try:
            found = post_form(note["token_endpoint"], form)
        except Unavailable as error:
            if note["access_token"] == refused:
                raise Unavailable(
                    f"your sign-in cannot be renewed now: {error.message}; try again in a moment"
                ) from None
            return note["access_token"]
        except PlatformError:
            return note["access_token"]  # the service says what is wrong
        note = note | tokens_of(found, bool(note.get("use_id_token")))
        credentials.write_note(base_url, note)
        return note["access_token"]


def sign_out(base_url: str) -> bool:
    """Forget the tokens that are kept for the service, and end at the provider what refreshes them (RFC 7009).

    False: the provider did not end it. One without revocation, or one that is away, is no error: who signs out is
    signed out on this machine.
    """
    with _alone(base_url):
        note = credentials.read_note(base_url)
        credentials.forget_note(base_url)
    if "refresh_token" not in note:
        return True
    form = {"token": note["refresh_token"], "token_type_hint": "refresh_token", "client_id": note["client_id"]}
    try:
        post_form(discover(note["issuer"])["revocation_endpoint"], form, empty=True)
    except (PlatformError, KeyError):
        return False
    return True


def _confirmed(token_endpoint: str, client_id: str, code: dict[str, Any]) -> dict[str, Any]:
    """Ask until the person has confirmed (RFC 8628, 3.4 and 3.5)."""
    pause = max(_LEAST_PAUSE_S, seconds(code.get("interval"), default=5.0, most=60.0))
    deadline = time.monotonic() + seconds(code.get("expires_in"), default=600.0, most=3600.0)
    form = {"grant_type": _DEVICE_GRANT, "device_code": str(code["device_code"]), "client_id": client_id}
    while time.monotonic() < deadline:
        time.sleep(pause)
        try:
            return post_form(token_endpoint, form)
        except Unavailable:
            pause *= 2
        except NotSignedIn as refusal:
            error = refusal.details.get("error")
            if error == "slow_down":
                pause += 5
            elif error != "authorization_pending":
                raise
    raise NotSignedIn("nobody confirmed in time: run `gpu-platform login` again")


def post_form(
    url: str, form: dict[str, str], reach: OutgoingReach | None = None, *, empty: bool = False
) -> dict[str, Any]:
    """The provider's answer to a form. ``empty``: an answer without a body will do.

    Raises :class:`NotSignedIn` with the provider's ``error`` if it refuses, and :class:`Unavailable` if it is away.
    """
    status, content = _ask("POST", url, reach, form)
    is_success = status < _REDIRECT
    found = {} if empty and is_success else _json(content)
    if not isinstance(found, dict):
        raise Unavailable(f"the identity provider answered {status} at {url}, without an object")
    if status >= _SERVER_ERROR:
        raise Unavailable(f"the identity provider answered {status} at {url}")
    if not is_success:
        error = str(found.get("error", status))
        said = str(found.get("error_description", ""))[:200]
        raise NotSignedIn(f"the identity provider refuses: {error} {said}".rstrip(), error=error)
    return found


def _ask(method: str, url: str, reach: OutgoingReach | None, form: dict[str, str] | None = None) -> tuple[int, bytes]:
    """The status and the body of the provider's answer: as it comes, and no longer than ``_MOST_BYTES``. All of it must
    come within ``_TIMEOUT_S``, however it is cut into pieces. A redirect is an answer as any other: nobody follows it.
    Raises :class:`Unavailable`."""
    deadline, body = time.monotonic() + _TIMEOUT_S, bytearray()
    try:
        parts, (host, port) = urlsplit(url), place_of(url)
        opened = outgoing.connect(host, port, reach, within_s=_TIMEOUT_S)
        with outgoing.closed_at(deadline, opened) as is_late, _http(parts, opened) as http:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
            if form is not None:
                headers["Content-Type"] = "application/x-www-form-urlencoded"
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            http.request(method, target, None if form is None else urlencode(form), headers)
            answer = http.getresponse()
            while piece := answer.read1(_PIECE_BYTES):
                body += piece
                if len(body) > _MOST_BYTES or is_late():
                    raise Unavailable(
                        f"the identity provider answers at {url} with more than {_MOST_BYTES:,} bytes, or takes longer "
                        f"than {_TIMEOUT_S:g} s"
                    )
            return answer.status, bytes(body)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"the identity provider does not answer at {url} ({error})") from None


@contextmanager
def _http(parts: SplitResult, opened: socket.socket) -> Iterator[HTTPConnection]:
    """Speak HTTP on this connection, with TLS if the address says so. It is closed at the end."""
    host, http = parts.hostname or "", HTTPConnection(parts.hostname or "", parts.port)
    with opened:
        opened.settimeout(_PIECE_TIMEOUT_S)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            http = HTTPSConnection(host, parts.port, context=context)
            opened = context.wrap_socket(opened, server_hostname=host)
        with opened:
            http.sock = opened
            yield http


def _json(content: bytes) -> Any:
    """What the provider said. None: no JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def seconds(given: Any, *, default: float, most: float) -> float:
    """A time that the provider says, as a number or a text: at least 0, at most ``most``. ``default``: for none."""
    try:
        found = float(given)
    except (TypeError, ValueError, OverflowError):
        return default
    return default if math.isnan(found) or isinstance(given, bool) else min(max(0.0, found), most)


def tokens_of(found: dict[str, Any], use_id_token: bool) -> dict[str, Any]:
    """What is kept of the provider's answer: ``access_token``, ``expires_at`` (Unix seconds), and ``refresh_token``
    if it gave one."""
    token = found.get("id_token" if use_id_token else "access_token")
    if not isinstance(token, str):
        raise NotSignedIn("the identity provider gave no token of the kind that the service takes")
    lives_s = seconds(found.get("expires_in"), default=_LIVES_S, most=_LONGEST_S)
    kept: dict[str, Any] = {"access_token": token, "expires_at": time.time() + lives_s}
    if isinstance(found.get("refresh_token"), str):
        kept["refresh_token"] = found["refresh_token"]
    return kept


@contextmanager
def _alone(base_url: str) -> Iterator[None]:
    """Providers take a refresh token once, and who signs out must not be signed in again by a command that refreshes at
    that moment: of all commands one changes what is kept."""
    path = Path(f"{credentials.note_path(base_url)}.lock")
    make_private_directory(path.parent)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wants_refresh(note: dict[str, Any], refused: str | None) -> bool:
    if "access_token" not in note or "refresh_token" not in note:
        return False
    return _is_old(note) or note["access_token"] == refused


def _is_old(note: dict[str, Any]) -> bool:
    return time.time() > float(note.get("expires_at", 0)) - EARLY_S


def _is_private(address: Any, issuer: str) -> bool:
    """True for what nobody on the way reads or changes: https, or the place of an issuer that is on this machine."""
    try:
        parts = urlsplit(address)
        return (parts.scheme == "https" and bool(place_of(address))) or (
            parts.scheme == urlsplit(issuer).scheme and place_of(address) == place_of(issuer)
        )
    except (ValueError, TypeError, AttributeError):
        return False
