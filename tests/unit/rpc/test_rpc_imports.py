"""gRPC costs nothing where it is not used: importing it takes as long as a whole command."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

OURS = (
    "gpu_platform.v1",
    "gpu_platform.rpc",
    "service.grpc",
    "grpc_reflection.v1alpha",
    "grpc_health.v1",
    "google.rpc",
)


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("gpu_platform.cli.main", ("grpc", *OURS)),
        ("gpu_platform.client", ("grpc", *OURS)),
        ("workers.service", OURS),  # Temporal's SDK imports gRPC itself
    ],
)
def test_who_does_not_use_grpc_does_not_import_it(module: str, unwanted: tuple[str, ...]) -> None:
    names = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()
    assert module in loaded
    assert [one for one in loaded if one in unwanted or one.startswith(tuple(f"{name}." for name in unwanted))] == []
