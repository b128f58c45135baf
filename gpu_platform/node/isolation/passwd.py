"""The account that the ranks of an attempt run as, and how programs in the jail find it by its number.

An account out of ``node.attempt_uids`` is in no database of the host, so a jail has an ``/etc/passwd`` and an
``/etc/group`` of its own, with one more line each (passwd(5), group(5)). Standard library only: the spawner imports it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

PRIVATE_HOME = "/tmp/home"
"""The home directory, inside the jail, of an account that has none on the host. It goes with the attempt."""
HOLDER_UID = 65_533
"""The uid of the process that holds a jail's namespaces. No rank has it, so no rank may trace or signal that process.
Debian keeps the number free (Debian Policy 9.2.2), and so does systemd (its "Users, Groups, UIDs and GIDs")."""
_NOT_ALLOWED = (":", "\n", "\0")


class Account(NamedTuple):
    """An account of a jailed attempt. It can be sent as JSON."""

    name: str
    uid: int
    gid: int
    home: str
    groups: list[int]
    """Its supplementary groups."""

    @property
    def is_temporary(self) -> bool:
        """True for an account that exists only as long as its job."""
        return self.home == PRIVATE_HOME

    def is_valid(self) -> bool:
        """False for root and the holder of jails, and for texts that would break the files."""
        texts_fit = not any(bad in text for bad in _NOT_ALLOWED for text in (self.name, self.home))
        return texts_fit and self.uid not in (0, HOLDER_UID) and self.gid > 0 and 0 not in self.groups


def is_account(value: object) -> bool:
    """True for the values of an account, as JSON brings them, that is not root."""
    if not isinstance(value, list) or len(value) != len(Account._fields):
        return False
    name, uid, gid, home, groups = value
    numbers = [uid, gid, *groups] if isinstance(groups, list) else [None]
    typed = isinstance(name, str) and isinstance(home, str) and all(type(number) is int for number in numbers)
    return typed and os.path.isabs(home) and Account(name, uid, gid, home, groups).is_valid()


def account_files(account: Account) -> list[tuple[str, bytes]]:
    """(path, content) of the files that a jail has instead of the host's, so that ``getpwuid`` finds the account."""
    passwd = f"{account.name}:x:{account.uid}:{account.gid}:gpu-platform:{account.home}:/bin/sh"
    group = f"{account.name}:x:{account.gid}:"
    return [
        ("/etc/passwd", _with_line("/etc/passwd", passwd, account.uid)),
        ("/etc/group", _with_line("/etc/group", group, account.gid)),
    ]


def _with_line(path: str, line: str, number: int) -> bytes:
    """The host's file, with ``line`` first unless the file knows ``number`` already."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        text = b""
    known = any(row.split(b":")[2:3] == [str(number).encode()] for row in text.splitlines())
    return text if known else os.fsencode(f"{line}\n") + text
