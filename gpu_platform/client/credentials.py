"""Where clients find their token, and when they look for a newer one.

In this order: ``GPU_PLATFORM_TOKEN``; the file ``GPU_PLATFORM_TOKEN_FILE``; what is kept for this service in
``~/.config/gpu-platform/credentials`` (``gpu-platform up`` leaves a note there while it runs); and, for a service on
this machine, ``.gpu-platform/token`` in the working directory, if it is this account's. Files are read again when the
service refuses a token.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_platform.private_files import is_ours, make_private_directory, remove_file, write_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_FILE = "token"
"""The name of the file in the state directory of ``gpu-platform up``."""


class Token:
    """The token for the service at ``base_url``: the one that is given, else the one that this machine keeps for it."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self._base_url = base_url
        self._given = self._token = token
        self.is_refreshed = False
        """The token is kept by ``gpu-platform login``, and lives only some minutes."""
        self.newest()

    @property
    def kept(self) -> str | None:
        """The token, if it is known and lasts. None: ask :meth:`current`, which may read files."""
        return None if self.is_refreshed else self._token

    def current(self) -> str | None:
        """The token for the next request. None: there is none."""
        return self.kept or self.newest()

    def newest(self, refused: str | None = None) -> str | None:
        """The token, read again. ``refused``: the service took this one no more. Raises :class:`Unavailable` if there
        may be another one, and who gives it is away."""
        if self._given is None:
            self._token, self.is_refreshed = find_token(self._base_url, refused), is_refreshed(self._base_url)
        return self._token

    def may_be_old(self, status: int) -> bool:
        """True if an answer with this status may mean that there is a newer token."""
        return status == 401 and self._given is None


def find_token(base_url: str, refused: str | None = None) -> str | None:
    """The token for the service at this address. None: there is none. ``refused``: see :meth:`Token.newest`."""
    if token := os.environ.get("GPU_PLATFORM_TOKEN", "").strip():
        return token
    if path := os.environ.get("GPU_PLATFORM_TOKEN_FILE"):
        return _read(Path(path))
    noted = read_note(base_url)
    if "token_file" in noted and (token := _read(Path(noted["token_file"]))):
        return token
    if "access_token" in noted:
        from gpu_platform.client.sign_in import fresh_token  # most clients never need it

        return fresh_token(base_url, refused)
    # A token that lies about is for this machine only: it must not be sent to any address that is asked for.
    return _of_working_directory() if _is_loopback(base_url) else None


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


def _of_working_directory() -> str | None:
    """The token that ``gpu-platform up`` left here. Somebody else may have put one here, to let us act as another user,
    or a link to a file of ours, which would be sent to whoever listens on that port."""
    directory = os.path.join(os.curdir, ".gpu-platform")
    try:
        if os.lstat(directory).st_uid not in (0, os.geteuid()) or not is_ours(os.stat(directory)):
            return None
        descriptor = os.open(os.path.join(directory, TOKEN_FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8") as file:
            found = os.fstat(descriptor)
            return (file.read().strip() or None) if stat.S_ISREG(found.st_mode) and is_ours(found) else None
    except (OSError, UnicodeDecodeError):
        return None


def _is_loopback(base_url: str) -> bool:
    return urlsplit(base_url).hostname in LOOPBACK
