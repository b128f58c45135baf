"""Which account the ranks of an attempt run as: the user's own (``node.users``), or one that only their job has.

The number of a temporary account follows from the job's id. So all hosts of a gang, which may write into one checkpoint
directory, and all attempts of a job, which read each other's checkpoints, agree without asking. That no two jobs on
this machine have one account at a time is a matter of a book on disk: it is right after a crash too, and every platform
on this machine uses the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.share import ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.lanes import LastKnown
from gpu_platform.node.isolation.passwd import PRIVATE_HOME, Account
from gpu_platform.node.system import records
from gpu_platform.settings import NodeSettings

BOOK = Path("/run/gpu-platform/accounts")
"""One file for each temporary account in use. It ends with the boot, as every process does."""
EVERYBODY = "*"
NAME_SERVICE_S = 5.0
"""How long a name service (LDAP for example) may take. After that what it said last counts."""
_FRESH_S = 1.0
_PASSWD = "/etc/passwd"
_SUBORDINATE = ("/etc/subuid", "/etc/subgid")


def account_of(node: NodeSettings, plan: HostPlan) -> Account:
    """The account of the plan's jailed ranks. It is never root.

    Raises :class:`PreflightFailed` if the user's own account does not exist here, or is root, and
    :class:`HostUnavailable` if the name service (nsswitch.conf(5)) does not answer and has never told of it.
    """
    name = node.users.get(plan.user)
    if name is None:
        return _temporary(node, tenant_of(plan))
    try:
        account = _looked_up(name)
    except KeyError:
        raise PreflightFailed(
            f"user {plan.user!r} runs as the account {name!r} on {node.name}, which does not exist there",
            kind=blame(FailureCause.REQUEST),
        ) from None
    if account is None:
        raise HostUnavailable(
            f"user {plan.user!r} runs as the account {name!r} on {node.name}, and its name service has not answered "
            f"for {NAME_SERVICE_S:g} s: look at nsswitch.conf, sssd or the LDAP server there"
        )
    if not account.is_valid():
        raise PreflightFailed(
            f"user {plan.user!r} would run as the account {name!r} on {node.name}, which is root, in root's group, or "
            "the holder's of jails: name another account (node.users)",
            kind=blame(FailureCause.REQUEST),
        )
    return account


def tenant_of(plan: HostPlan) -> str:
    """Who may share a temporary account: the attempts of one job. Jobs that share a GPU by MPS share one for their
    namespace, because an MPS server serves one account."""
    if any(grant.mode is ShareMode.MPS for grant in plan.shares):
        return f"mps/{plan.namespace}"
    return f"job/{plan.key.job_id}"


def configuration_problem(node: NodeSettings) -> str | None:
    """Why ranks cannot have accounts of their own as this host is configured. None: they can."""
    uids = node.attempt_uid_range
    # Of a name service that does not answer nothing is known, and ranks that run already need this node worker now.
    listed = LastKnown[list[tuple[str, int]]](_accounts_in(_PASSWD), "accounts", patience_s=NAME_SERVICE_S)
    for name, uid in listed.read(lambda: [(account.pw_name, account.pw_uid) for account in pwd.getpwall()]):
        if uid in uids:
            return f"node.attempt_uids ({node.attempt_uids}) contains the account {name} ({uid})"
    for path in _SUBORDINATE:
        for owner, first, count in _subordinate_ids(path):
            if first < uids.stop and uids.start < first + count:
                return f"node.attempt_uids ({node.attempt_uids}) overlaps the ids of {owner} in {path}"
    return None


class AccountBook:
    """The temporary accounts in use on this machine, and which attempts use each of them."""

    def __init__(self, directory: Path = BOOK) -> None:
        self._directory = directory

    def claim(self, account: Account, tenant: str, name: str, attempt_dir: Path) -> None:
        """Note that the attempt uses the account, until :meth:`release`. It may be repeated.

        ``name``: the attempt, unique on this machine. Raises :class:`HostUnavailable` if another tenant uses the
        account.
        """
        with self._locked():
            entry = self._living(account.uid)
            if entry["attempts"] and entry["tenant"] != tenant:
                raise HostUnavailable(
                    f"the account {account.uid} is in use by another job on this host (node.attempt_uids is small)"
                )
            attempts = {**entry["attempts"], name: str(attempt_dir)}
            self._write(account.uid, {"tenant": tenant, "attempts": attempts})

    def release(self, account: Account, name: str) -> None:
        """Note that nothing of the attempt lives. It may be repeated."""
        with self._locked():
            entry = self._living(account.uid)
            attempts = {other: path for other, path in entry["attempts"].items() if other != name}
            if attempts:
                self._write(account.uid, {**entry, "attempts": attempts})
            else:
                self._path(account.uid).unlink(missing_ok=True)

    def users(self, uid: int) -> list[str]:
        """The attempts that use the account now."""
        with self._locked():
            return sorted(self._living(uid)["attempts"])

    def _living(self, uid: int) -> dict[str, Any]:
        entry = records.read_record(str(self._path(uid))) or {"tenant": "", "attempts": {}}
        living = {name: path for name, path in entry["attempts"].items() if _may_live(Path(path))}
        return {**entry, "attempts": living}

    def _write(self, uid: int, entry: dict[str, Any]) -> None:
        records.write_record(str(self._path(uid)), entry, durable=False)

    def _path(self, uid: int) -> Path:
        return self._directory / str(uid)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._directory.mkdir(records.PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        fd = os.open(self._directory / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, records.PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _may_live(attempt_dir: Path) -> bool:
    """False for an attempt that is finished, or whose records are gone: its platform did not come back."""
    return (attempt_dir / records.PLAN).exists() and not (attempt_dir / records.FINISHED).exists()


_accounts: dict[str, LastKnown[Account | None]] = {}


def _looked_up(name: str) -> Account | None:
    """An account of this host, as its name service says, or said last. None: it has not answered yet.

    Raises ``KeyError`` if there is no such account.
    """
    known = _accounts.setdefault(name, LastKnown(None, "accounts", patience_s=NAME_SERVICE_S, fresh_s=_FRESH_S))
    account = known.read(lambda: _look_up(name))
    while account is None and 0.0 < known.hangs_s() < NAME_SERVICE_S:  # somebody else asked first
        time.sleep(0.01)
        account = known.read(lambda: _look_up(name))
    return account


def _look_up(name: str) -> Account:
    found = pwd.getpwnam(name)
    groups = [group for group in os.getgrouplist(name, found.pw_gid) if group]
    return Account(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir, groups)


def _temporary(node: NodeSettings, tenant: str) -> Account:
    uids = node.attempt_uid_range
    digest = hashlib.sha256(tenant.encode()).digest()
    uid = uids.start + int.from_bytes(digest[:8]) % len(uids)
    return Account(f"job-{uid}", uid, uid, PRIVATE_HOME, [uid])


def _accounts_in(path: str) -> list[tuple[str, int]]:
    """Name and uid of each line; see passwd(5)."""
    with open(path) as file:
        lines = [line.split(":") for line in file]
    return [(fields[0], int(fields[2])) for fields in lines if len(fields) > 2 and fields[2].isdecimal()]


def _subordinate_ids(path: str) -> Iterator[tuple[str, int, int]]:
    """(owner, first id, count) of each line; see subuid(5)."""
    try:
        with open(path) as file:
            lines = [line.strip().split(":") for line in file]
    except FileNotFoundError:
        return
    for fields in lines:
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            yield fields[0], int(fields[1]), int(fields[2])
