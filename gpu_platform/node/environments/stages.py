"""The stages of a host that make the environment of a job."""

from __future__ import annotations

from pathlib import Path

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.node.environments.containers import ContainerStage
from gpu_platform.node.environments.outputs import OutputsStage, outputs_root
from gpu_platform.node.environments.uploaded_code import UploadSource, UploadStage
from gpu_platform.node.stages import Stage
from gpu_platform.settings import Settings


def environment_stages(
    settings: Settings, home: Path, inventory: HostInventory, uploads: UploadSource | None
) -> list[Stage]:
    """Code, container and outputs. ``uploads``: asks the service for code; None: there is no service, as in tests."""
    node, jailed, simulated = settings.node, inventory.isolates, inventory.simulated
    return [
        UploadStage(node, home, uploads, jailed=jailed),
        ContainerStage(node, settings.state_dir, home, jailed=jailed, simulated=simulated),
        OutputsStage(outputs_root(settings)),
    ]
