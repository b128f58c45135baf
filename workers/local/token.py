"""The token of ``gpu-platform up``: random, in a file that only its user can read, as Jupyter does it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gpu_platform.client import credentials
from gpu_platform.client.connection import default_user
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.private_files import write_file
from gpu_platform.store import Store
from gpu_platform.store.access import tokens

log = structlog.get_logger(__name__)


def local_token(store: Store, state_dir: Path) -> str:
    """The token in ``state_dir``, of whoever runs this, who may do everything. A new one unless it is valid."""
    path = state_dir / credentials.TOKEN_FILE
    now = datetime.now(UTC)
    with suppress(OSError, UnicodeDecodeError):
        token = path.read_text().strip()
        found = tokens.find_token(store, token)
        if found is not None and found.is_valid(now) and found.principal().has(Role.ADMIN, CLUSTER):
            path.chmod(0o600)
            return token
    token = tokens.new_token()
    user = default_user()
    request = TokenRequest(user=user, note="gpu-platform up")
    tokens.add_token(store, token, request, roles=tokens.cluster_admin(), actor=user, now=now)
    write_file(path, token.encode())
    return token


def note_token(api_url: str, state_dir: Path) -> None:
    """Let clients of this user find the token of the service at this address, wherever they are started."""
    try:
        credentials.write_note(api_url, {"token_file": str(state_dir.resolve() / credentials.TOKEN_FILE)})
    except (OSError, RuntimeError) as error:  # no home directory, or not writable
        log.warning("token.note_not_written", only_in=str(state_dir), error=str(error))


def forget_token(api_url: str, state_dir: Path) -> None:
    """Remove the note, unless another cluster has written its own meanwhile."""
    with suppress(OSError, RuntimeError):
        if credentials.read_note(api_url).get("token_file") == str(state_dir.resolve() / credentials.TOKEN_FILE):
            credentials.forget_note(api_url)
