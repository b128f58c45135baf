"""Machine descriptions in files: what is written is read again, and a captured host is what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import machine_of
from gpu_platform.topology.machine_file import find_machine, machine_of_host, read_machine, to_yaml


@pytest.mark.parametrize("name", machine_ids())
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(to_yaml(load_description(name)))
    assert read_machine(file) == load_description(name)
    assert find_machine(str(file)) == find_machine(name)


@pytest.mark.parametrize("name", machine_ids())
def test_a_captured_host_has_the_topology_that_it_registered(name: str, tmp_path: Path) -> None:
    inventory = load_description(name).inventory("host").model_copy(update={"cpus": 96, "ram_mib": 1024})
    (tmp_path / "my.yaml").write_text(to_yaml(machine_of_host(inventory, "mine", "as host is")))
    again = read_machine(tmp_path / "my.yaml").inventory("host")
    assert machine_of(again) is machine_of(inventory)
    assert (again.cpus, again.ram_mib) == (96, 1024)


def test_a_host_with_two_models_or_none_cannot_be_captured() -> None:
    inventory = load_description("dgx-h100").inventory("host")
    first, *others = inventory.gpus
    mixed = inventory.model_copy(update={"gpus": [first.model_copy(update={"model": "NVIDIA T4"}), *others]})
    with pytest.raises(InvalidRequest, match=r"GPUs of 2 models \(NVIDIA H100 80GB HBM3, NVIDIA T4\)"):
        machine_of_host(mixed, "mine", "box")
    with pytest.raises(InvalidRequest, match="no GPU"):
        machine_of_host(inventory.model_copy(update={"gpus": []}), "mine", "box")
