"""The secrets of an attempt on its host: a few files in memory (tmpfs), never on a disk.

In a jail they are in its own ``/run``, which goes with the jail. Values of variables are in a file of the
platform's own, from which the supervisor of each rank, and each command beside a rank, reads them: so they are in no
record. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any, NamedTuple

TOKEN = "token"
_ENVIRON = "environ"


class SecretDirs(NamedTuple):
    """Where the secrets of an attempt are."""

    files: str
    """Files of the job. The account of the ranks reads them."""
    own: str
    """The job token, and the values of variables, which only the platform reads."""

    @property
    def environ(self) -> str:
        """The file with the values of variables."""
        return os.path.join(self.own, _ENVIRON)

    @property
    def token(self) -> str:
        """The file with the job token."""
        return os.path.join(self.own, TOKEN)


IN_JAIL = SecretDirs("/run/secrets", "/run/gpu-platform")


class SecretFiles(NamedTuple):
    """What an attempt gets. It can be sent as JSON, and is never written down as it is."""

    environ: dict[str, str]
    files: dict[str, bytes]
    token: str | None

    def __repr__(self) -> str:
        return f"SecretFiles({sorted(self.environ)}, {sorted(self.files)}, …)"

    def to_json(self) -> list[Any]:
        """The values as they are sent."""
        files = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return [self.environ, files, self.token]

    @classmethod
    def parse(cls, value: object) -> SecretFiles:
        """Read what :meth:`to_json` made. Raises ``ValueError``, with no value in it."""
        if not isinstance(value, list) or len(value) != 3:
            raise ValueError("secrets are [variables, files, token]")
        environ, files, token = value
        if not _are_texts(environ) or any("\0" in text or not name or "=" in name for name, text in environ.items()):
            raise ValueError("the secrets for variables are not an object of texts")
        if not _are_texts(files) or any(not is_file_name(name) for name in files):
            raise ValueError("the secrets for files are not an object of texts, or a name has a slash")
        if token is not None and not isinstance(token, str):
            raise ValueError("the job token is no text")
        try:
            contents = {name: base64.b64decode(text, validate=True) for name, text in files.items()}
        except (binascii.Error, ValueError):
            raise ValueError("a secret for a file is not base64") from None
        return cls(environ, contents, token)


def is_file_name(name: str) -> bool:
    """True if a file of this name is in its directory."""
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")


def write_secrets(secrets: SecretFiles, where: SecretDirs, uid: int, gid: int) -> None:
    """Write the files, for this account to read. Files that are there are replaced. Raises ``OSError``."""
    for directory in (where.own, where.files):
        os.makedirs(directory, 0o755, exist_ok=True)
    for name, content in secrets.files.items():
        _write(os.path.join(where.files, name), content, uid, gid)
    if secrets.token is not None:
        _write(where.token, secrets.token.encode(), uid, gid)
    _write(where.environ, json.dumps(secrets.environ).encode(), os.geteuid(), os.getegid())


def read_environ(path: str) -> dict[str, str]:
    """The values of variables. Raises ``OSError``."""
    with open(path, "rb") as file:
        return json.loads(file.read())


def _write(path: str, content: bytes, uid: int, gid: int) -> None:
    draft = f"{path}.{os.getpid()}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.chown(draft, uid, gid)
        os.rename(draft, path)
    except OSError:
        os.unlink(draft)
        raise


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)
