"""Each job runs as an account of its own: what the kernel counts or checks by account stays inside the job."""

from __future__ import annotations

import os
import pwd
import textwrap
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation import accounts
from gpu_platform.node.isolation.accounts import AccountBook, account_of, configuration_problem, tenant_of
from gpu_platform.node.isolation.furnishing import MAX_TERMINALS
from gpu_platform.node.isolation.isolation import choose_isolation
from gpu_platform.node.system import records
from gpu_platform.settings import NodeSettings
from tests.security.attacks import PRELUDE, PYTHON, attack
from tests.support.hosts_rig import HostRig
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("jails")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostRig]:
    rig = HostRig(tmp_path / "state", isolation="required")
    yield rig
    await rig.aclose()


@pytest.fixture
def book(tmp_path: Path) -> AccountBook:
    return AccountBook(tmp_path / "book")


def rank(host: HostRig, script: str, **changes: Any) -> HostPlan:
    return attack(host, script, gpu=None).model_copy(update=changes)


async def lines_of(host: HostRig, plan: HostPlan) -> list[str]:
    host.launch(plan)
    await host.watch(plan)
    return host.log(plan).splitlines()


def uid_of(host: HostRig, plan: HostPlan) -> int:
    return account_of(host.settings.node, plan).uid


async def test_a_rank_finds_its_name_home_and_groups_as_in_any_login(host: HostRig) -> None:
    script = """
    import getpass, grp, pwd, tempfile
    me = pwd.getpwuid(os.getuid())
    print(os.getuid(), os.getgid(), os.getgroups(), me.pw_name, grp.getgrgid(os.getgid()).gr_name, getpass.getuser())
    print(me.pw_dir == os.environ["HOME"] == os.path.expanduser("~") == os.getcwd(), oct(os.stat(me.pw_dir).st_mode))
    open(os.path.expanduser("~/.cache"), "w").close()
    print(pwd.getpwuid(0).pw_name, os.umask(0o22) == 0o22)
    open(os.environ["GPU_PLATFORM_CHECKPOINT_DIR"] + "/saved", "w").write("x")
    """
    plan = rank(host, script)
    first, second, third = await lines_of(host, plan)
    uid = uid_of(host, plan)
    assert uid in host.settings.node.attempt_uid_range
    assert first == f"{uid} {uid} [{uid}] job-{uid} job-{uid} job-{uid}"
    assert second == "True 0o40700"
    assert third == "root True"
    saved = host.settings.state_dir / "checkpoints" / plan.key.job_id / "1" / "saved"
    assert (saved.stat().st_uid, saved.read_text()) == (uid, "x")


async def test_no_setting_makes_a_rank_root(tmp_path: Path) -> None:
    for isolation in ("required", "auto"):
        root = HostRig(tmp_path / isolation, isolation="required", users={"ada": "root"})
        with pytest.raises(PreflightFailed, match="which is root"):
            root.launch(root.plan("id"))
        await root.aclose()


async def test_one_account_for_all_users_is_ignored_and_said(tmp_path: Path) -> None:
    with capture_logs() as logs:
        rig = HostRig(tmp_path / "state", isolation="required", users={"*": "nobody"})
    [warning] = [entry for entry in logs if entry["event"] == "users.one_account_for_all"]
    assert "remove it" in warning["hint"]
    plan = rank(rig, "print(os.getuid())")
    assert await lines_of(rig, plan) == [str(uid_of(rig, plan))]
    assert uid_of(rig, plan) != pwd.getpwnam("nobody").pw_uid
    await rig.aclose()


async def test_two_jobs_have_two_accounts_and_attempts_of_one_job_have_one(host: HostRig) -> None:
    """The next attempt reads what the one before it saved for itself alone."""
    job = f"job-{uuid.uuid4().hex[:12]}"
    save = "os.umask(0o77); open(os.environ['GPU_PLATFORM_CHECKPOINT_DIR'] + '/saved', 'w').write('mine')"
    first = rank(host, save, key=host.key(1, job))
    await lines_of(host, first)
    await host.stop(first.key)
    again = "print(open(os.environ['GPU_PLATFORM_CHECKPOINT_DIR'] + '/../1/saved').read(), os.getuid())"
    second = rank(host, again, key=host.key(2, job))
    assert await lines_of(host, second) == [f"mine {uid_of(host, first)}"]
    assert uid_of(host, rank(host, "")) != uid_of(host, first)


async def test_inotify_and_terminals_of_one_job_leave_another_its_own(host: HostRig) -> None:
    """One job took all 128 inotify instances of root, and all 3,071 terminals that the host has left."""
    greedy = rank(
        host,
        """
        import pty
        taken = []
        try:
            while len(taken) < 2000:
                fd = libc.inotify_init1(0)
                if fd < 0:
                    raise OSError(ctypes.get_errno(), "inotify")
                taken.append(fd)
        except OSError as error:
            print("inotify", len(taken), errno.errorcode[error.errno])
        terminals = []
        try:
            while len(terminals) < 5000:
                terminals.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        except OSError as error:
            print("terminals", len(terminals), errno.errorcode[error.errno], flush=True)
        time.sleep(600)
        """,
    )
    host.launch(greedy)
    await eventually(lambda: "terminals" in host.log(greedy), "the greedy one's limits")
    inotify, terminals = [line.split() for line in host.log(greedy).splitlines()]
    assert inotify[2] == "EMFILE"
    assert int(terminals[1]) <= MAX_TERMINALS
    modest = rank(
        host,
        """
        fds = [libc.inotify_init1(0) for _ in range(20)]
        print(all(fd >= 0 for fd in fds), len([os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(20)]))
        """,
    )
    assert await lines_of(host, modest) == ["True 20"]
    os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))  # and the host


async def test_signals_memory_files_and_message_queues_do_not_cross(host: HostRig) -> None:
    victim = rank(
        host,
        """
        open("/dev/shm/handle", "w").write("victim")
        open("/tmp/note", "w").write("victim")
        queue = libc.msgget(4711, 0o1666)
        print("up", queue >= 0, flush=True)
        time.sleep(600)
        """,
    )
    pid = host.launch(victim).ranks[0].pid
    await eventually(lambda: "up True" in host.log(victim), "the victim")
    script = f"""
    print(sorted(os.listdir("/dev/shm")), "note" in os.listdir("/tmp"))
    attempt("signal", os.kill, {pid}, 0)
    attempt("queue", call, "msgget", 4711, 0)
    attempt("checkpoint", os.listdir, {str(host.settings.state_dir / "checkpoints" / victim.key.job_id)!r})
    """
    assert await lines_of(host, rank(host, script)) == ["[] False", "signal ESRCH", "queue ENOENT", "checkpoint ENOENT"]


async def test_keys_of_one_job_are_not_those_of_another(host: HostRig) -> None:
    """Keyrings belong to accounts. The calls are refused as well; the kernel shows what an account has."""
    script = "print(sorted(line.split()[5] for line in open('/proc/keys')))"
    first, second = rank(host, script), rank(host, script)
    for plan in (first, second):
        [line] = await lines_of(host, plan)
        other = second if plan is first else first
        assert str(uid_of(host, other)) not in line


async def test_an_account_is_given_back_when_nothing_of_its_job_lives(host: HostRig) -> None:
    plan = rank(host, "time.sleep(600)")
    host.launch(plan)
    book, uid = AccountBook(), uid_of(host, plan)
    assert len(book.users(uid)) == 1
    host.restart()
    assert len(book.users(uid)) == 1, "another node worker, the same book"
    await host.stop(plan.key)
    assert book.users(uid) == []
    assert not (accounts.BOOK / str(uid)).exists()


def test_no_two_tenants_have_one_account_at_a_time(book: AccountBook, tmp_path: Path) -> None:
    node = NodeSettings(attempt_uids="200000-200001")
    living, gone = tmp_path / "living", tmp_path / "gone"
    for directory in (living, gone):
        directory.mkdir()
        (directory / records.PLAN).touch()
    plan = rank_plan("a")
    account = account_of(node, plan)
    book.claim(account, "job/a", "a.1", living)
    book.claim(account, "job/a", "a.1", living)
    book.claim(account, "job/a", "a.2", gone)
    for attempt in ("a.1", "a.2"):
        with pytest.raises(HostUnavailable, match="in use by another job"):
            book.claim(account, "job/b", "b.1", tmp_path)
        book.release(account, attempt)
    book.claim(account, "job/b", "b.1", living)
    (living / records.FINISHED).touch()  # its node worker died before it gave the account back
    book.claim(account, "job/c", "c.1", gone)
    assert book.users(account.uid) == ["c.1"]


def rank_plan(job_id: str, **changes: Any) -> HostPlan:
    values = {
        "key": {"job_id": job_id, "attempt": 1},
        "host": "box",
        "user": "ada",
        "namespace": "n",
        "command": ["true"],
        "ranks": [],
        "gpu_uuids": [],
    }
    return HostPlan.model_validate({**values, **changes})


def test_hosts_of_a_gang_agree_on_the_account_without_asking() -> None:
    here, there = NodeSettings(name="a"), NodeSettings(name="b")
    plan = rank_plan("j-1")
    assert account_of(here, plan) == account_of(there, plan.model_copy(update={"host": "b"}))


def test_jobs_that_share_a_gpu_by_mps_share_their_namespaces_account() -> None:
    """An MPS server serves one account."""
    share = ShareGrant(mode=ShareMode.MPS, percent=30, memory_mib=1000)
    one, two = (rank_plan(job, gpu_uuids=["g"], shares=[share]) for job in ("a", "b"))
    assert tenant_of(one) == tenant_of(two) != tenant_of(one.model_copy(update={"namespace": "other"}))
    assert tenant_of(one) != tenant_of(rank_plan("a"))


def test_a_range_that_belongs_to_others_is_no_range_for_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subuid = tmp_path / "subuid"
    subuid.write_text("# comment\nalice:200000:65536\n")
    monkeypatch.setattr(accounts, "_SUBORDINATE", (str(subuid),))
    taken = NodeSettings(attempt_uids="230000-300000", isolation="required")
    assert "overlaps the ids of alice" in (configuration_problem(taken) or "")
    with pytest.raises(HostUnavailable, match="overlaps the ids of alice"):
        choose_isolation(taken)
    assert configuration_problem(NodeSettings(attempt_uids="300000-400000")) is None
    assert "overlaps" in "".join(choose_isolation(taken.model_copy(update={"isolation": "auto"})).missing)
    for bad in ("1000-2000", "5-4", "root", "70000", "70000-99999999999"):
        with pytest.raises(ValueError, match="is no range of ids"):
            NodeSettings(attempt_uids=bad)


async def test_a_users_own_account_has_its_groups_and_home_and_no_others(host: HostRig) -> None:
    host.settings.node.users["ada"] = "nobody"
    script = "print(os.getuid(), os.getgroups(), os.environ['HOME'], os.environ['USER'])"
    nobody = pwd.getpwnam("nobody")
    groups = sorted(group for group in os.getgrouplist("nobody", nobody.pw_gid) if group)
    assert await lines_of(host, rank(host, script)) == [f"{nobody.pw_uid} {groups} {nobody.pw_dir} nobody"]


async def test_a_gang_on_two_hosts_writes_into_one_checkpoint_directory(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    job = f"job-{uuid.uuid4().hex[:12]}"
    rigs = [
        HostRig(tmp_path / name, name=name, isolation="required", checkpoint_root=shared, workdirs=[]) for name in "ab"
    ]
    script = "open(os.environ['GPU_PLATFORM_CHECKPOINT_DIR'] + '/' + os.environ['GPU_PLATFORM_HOST'], 'w')"
    try:
        for rig in rigs:
            plan = rig.plan(PYTHON, "-c", PRELUDE + textwrap.dedent(script), key=rig.key(1, job))
            rig.launch(plan)
            assert (await rig.watch(plan)).first_failure is None, rig.log(plan)
        assert sorted(path.name for path in (shared / job / "1").iterdir()) == ["a", "b"]
    finally:
        for rig in rigs:
            await rig.aclose()


async def test_a_job_that_requires_isolation_starts_in_a_jail_or_not_at_all(host: HostRig, tmp_path: Path) -> None:
    plan = rank(host, "print('jailed')", require_isolation=True)
    assert await lines_of(host, plan) == ["jailed"]
    plain = HostRig(tmp_path / "plain")
    with pytest.raises(HostUnavailable, match="does not isolate ranks, and the job requires it"):
        plain.launch(plain.plan("true", require_isolation=True))
    await plain.aclose()
