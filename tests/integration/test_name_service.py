"""The name service of a host (LDAP for example) does not answer: a real module of the C library that never returns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation import accounts
from gpu_platform.settings import NodeSettings

accounts.NAME_SERVICE_S, accounts._FRESH_S = 0.5, 0.0
hangs, node = Path(sys.argv[1]), NodeSettings(users={"ada": "far", "bob": "nobody"})

def account_of(user):
    began = time.monotonic()
    plan = HostPlan(key=AttemptKey(job_id="j", attempt=1), host="a", user=user, namespace="n", world_size=1, ranks=[],
                    command=["true"], env={}, gpu_uuids=[])
    try:
        print(user, accounts.account_of(node, plan).uid, end=" ")
    except HostUnavailable as error:
        print(user, "unavailable" if "has not answered for 0.5 s" in error.message else error.message, end=" ")
    print("soon" if time.monotonic() - began < 2 else "late")

hangs.touch()
account_of("ada")
account_of("ada")
account_of("bob")
hangs.unlink()
time.sleep(1.5)
account_of("ada")
hangs.touch()
account_of("ada")
account_of("ada")
"""


def test_who_is_asked_for_and_never_told_keeps_no_job_waiting(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("cc") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, a C compiler and unshare")
    source, library = Path(__file__).parents[1] / "support/nss_hang.c", tmp_path / "libnss_hang.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (tmp_path / "nsswitch.conf").write_text("passwd: files hang\ngroup: files\n")
    command = (
        f'mount --bind {tmp_path}/nsswitch.conf /etc/nsswitch.conf && exec {sys.executable} -c "$0" {tmp_path}/hangs'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, SCRIPT],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "NSS_HANGS": f"{tmp_path}/hangs"},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = "ada unavailable soon,ada unavailable soon,bob 65534 soon,ada 4242 soon,ada 4242 soon,ada 4242 soon"
    assert done.stdout.strip().replace("\n", ",") == said
