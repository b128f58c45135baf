"""Tools that a host runs for itself: nobody waits longer for one than its time limit, whatever it hangs at."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import gpu_platform.node
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.system.tools import NotEnded, run, run_tool
from tests.support.hanging_disk import hanging_disk

pytestmark = pytest.mark.processes

STEPS = {"step_process.py", "squashfs.py", "retention.py", "registry_way.py", "spawner_client.py", "mpi_gang.py"}
"""Files of steps, of programs that run inside one, and of the spawner: these may start processes otherwise."""


def test_what_a_tool_wrote_and_said_is_told_apart() -> None:
    ended = run(["sh", "-c", "cat; echo oops >&2; exit 3"], say="told")
    assert (ended.code, ended.output, ended.said) == (3, "told", "oops\n")
    assert run_tool(["sh", "-c", "echo a; echo b >&2; sleep 600 &"]) == "a\nb", "a daemon keeps nobody waiting"
    with pytest.raises(HostUnavailable, match="sh -c exit 4 ended with 4"):
        run_tool(["sh", "-c", "exit 4"])
    with pytest.raises(HostUnavailable, match="no-such-tool is not installed"):
        run_tool(["no-such-tool"])


def test_a_tool_ends_when_nobody_waits_for_it() -> None:
    began = time.monotonic()
    with pytest.raises(NotEnded, match="nobody waits for it any more"):
        run(["sleep", "60"], given_up=lambda: time.monotonic() > began + 0.5)
    assert time.monotonic() - began < 2


def test_nobody_waits_for_a_tool_that_hangs_in_the_kernel(tmp_path: Path) -> None:
    with hanging_disk(tmp_path) as disk:
        command = ["touch", str(disk.path / "device")]
        with disk.hangs():
            for most_s, why in ((4, "did not end within 0.5 s"), (0.3, r"hangs in the kernel \(process \d+\)")):
                began = time.monotonic()
                with pytest.raises(NotEnded, match=why):
                    run(command, timeout_s=0.5)
                assert time.monotonic() - began < most_s, "it is not started again"
            assert run(["cat", "/dev/null"]).code == 0
        time.sleep(0.5)
        assert run(command).code == 0, "it has ended"


def test_a_host_starts_tools_by_no_other_way() -> None:
    """``subprocess.run`` waits for ever for a process that SIGKILL does not end."""
    found = [
        path.name
        for path in Path(gpu_platform.node.__path__[0]).rglob("*.py")
        if re.search(r"subprocess\.(run|Popen|call|check_)", path.read_text())
    ]
    assert set(found) - STEPS == {"tools.py"}


def test_a_tool_gets_no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_NODE__JOIN_TOKEN", "gpj_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    said = run(["env"]).output
    assert "gpj_secret" not in said
    assert "HTTPS_PROXY=http://proxy:3128" in said
