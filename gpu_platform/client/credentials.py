"""Where clients find their token, and how it gets into requests.

In this order: ``GPU_PLATFORM_TOKEN``; the file ``GPU_PLATFORM_TOKEN_FILE``; what is kept for this service in
``~/.config/gpu-platform/credentials`` (``gpu-platform up`` leaves a note there while it runs); and, for a service on
this machine, ``.gpu-platform/token`` in the working directory. Files are read again when the service refuses a token.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from gpu_platform.private_files import make_private_directory, remove_file, write_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_FILE = "token"
"""The name of the file in the state directory of ``gpu-platform up``."""


class TokenAuth(httpx.Auth):
    """Adds the token to each request. After a 401 it looks for a newer one, once."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._base_url = base_url
        self._given = self._token = token
        self._is_refreshed = False
        """The token is kept by ``gpu-platform login``, and lives only some minutes."""
        self._newest()

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Called by httpx for each request of a client without asyncio."""
        used = self._current()
        response = yield self._with(request, used)
        if self._may_be_old(response) and (newer := self._newest()) != used:
            yield self._with(request, newer)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Called by httpx for each request of a client with asyncio."""
        used = await asyncio.to_thread(self._current) if self._is_refreshed else self._current()
        response = yield self._with(request, used)
        if self._may_be_old(response) and (newer := await asyncio.to_thread(self._newest)) != used:
            yield self._with(request, newer)

    def _current(self) -> str | None:
        return self._token if self._token is not None and not self._is_refreshed else self._newest()

    def _newest(self) -> str | None:
        if self._given is None:
            self._token, self._is_refreshed = find_token(self._base_url), is_refreshed(self._base_url)
        return self._token

    def _may_be_old(self, response: httpx.Response) -> bool:
        return response.status_code == httpx.codes.UNAUTHORIZED and self._given is None

    @staticmethod
    def _with(request: httpx.Request, token: str | None) -> httpx.Request:
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return request


def find_token(base_url: str) -> str | None:
    """The token for the service at this address. None: there is none."""
    if token := os.environ.get("GPU_PLATFORM_TOKEN", "").strip():
        return token
    if path := os.environ.get("GPU_PLATFORM_TOKEN_FILE"):
        return _read(Path(path))
    noted = read_note(base_url)
    if "token_file" in noted and (token := _read(Path(noted["token_file"]))):
        return token
    if "access_token" in noted:
        from gpu_platform.client.sign_in import fresh_token  # most clients never need it

        return fresh_token(base_url)
    # A token that lies about is for this machine only: it must not be sent to any address that is asked for.
    return _read(Path.cwd() / ".gpu-platform" / TOKEN_FILE) if _is_loopback(base_url) else None


def is_refreshed(base_url: str) -> bool:
    """True if the token for this service is one that ``gpu-platform login`` keeps and refreshes."""
    given = os.environ.get("GPU_PLATFORM_TOKEN") or os.environ.get("GPU_PLATFORM_TOKEN_FILE")
    return not given and "access_token" in read_note(base_url)


def note_path(base_url: str) -> Path:
    """The file in which the way to the token of one service is kept."""
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    parts = urlsplit(base_url)
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{parts.scheme}_{parts.netloc}{parts.path.rstrip('/')}")
    return Path(config) / "gpu-platform" / "credentials" / f"{name}.json"


def read_note(base_url: str) -> dict[str, Any]:
    """What is kept for the service at this address. Empty: nothing."""
    try:
        found = json.loads(note_path(base_url).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(base_url: str, content: dict[str, Any]) -> None:
    """Keep something for the service at this address, readable for its user alone."""
    path = note_path(base_url)
    make_private_directory(path.parent)
    write_file(path, json.dumps(content).encode())


def forget_note(base_url: str) -> None:
    """Keep nothing for the service at this address."""
    remove_file(note_path(base_url))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _is_loopback(base_url: str) -> bool:
    return urlsplit(base_url).hostname in LOOPBACK
