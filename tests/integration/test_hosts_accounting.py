"""What an attempt used is known when it has ended, whatever the threads that measure it do meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.hosts.accounting.accounting import Accountant, read_usage
from gpu_platform.hosts.system import records
from tests.hosts_rig import HostRig


async def test_a_save_that_comes_late_does_not_undo_the_final_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostRig(tmp_path, isolation="plain")
    plan = host.plan("true")
    host.launch(plan)
    await host.watch(plan)
    accountant = Accountant(host.home)
    accountant.prepare(plan)
    [attempt] = accountant.live()
    writing, go_on, write_record = threading.Event(), threading.Event(), records.write_record

    def write_slowly(path: str, value: dict[str, Any], **options: Any) -> None:
        if value.get("final", []) is None:
            writing.set()
            go_on.wait(10)
        write_record(path, value, **options)

    monkeypatch.setattr(records, "write_record", write_slowly)
    late = threading.Thread(target=attempt.save)
    late.start()
    assert writing.wait(10)
    finishing = threading.Thread(target=accountant.finish, args=(plan,))
    finishing.start()
    finishing.join(0.2)
    go_on.set()
    finishing.join()
    late.join()
    assert [usage.rank for usage in read_usage(attempt.directory)] == [0]
    await host.aclose()
