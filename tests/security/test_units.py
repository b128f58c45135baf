"""systemd's own judgement of the units in deploy/, read offline, and what a unit must not forbid."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
ALL = [*sorted(UNITS.glob("*.service")), UNITS.parent / "temporal" / "temporal.service"]
PROGRAM = shutil.which("systemd-analyze")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="systemd-analyze is not installed (apt-get install systemd)")


def exposure(unit: Path) -> float:
    command = [str(PROGRAM), "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze judges no unit offline: {done.stderr.strip()[-200:]}")
    return float(found[1])


@pytest.mark.parametrize("name", ["service", "control", "scheduler", "gateway"])
def test_a_unit_of_the_control_plane_is_hardened(name: str) -> None:
    assert exposure(UNITS / f"gpu-platform-{name}.service") < 2.0


def test_the_node_workers_unit_has_only_what_a_jail_needs() -> None:
    unit = UNITS / "gpu-platform-node.service"
    assert exposure(unit) < 7.5
    text = unit.read_text()
    capabilities = set(re.findall(r"CAP_\w+", text))
    assert not capabilities & {"CAP_SYS_MODULE", "CAP_SYS_TIME", "CAP_MAC_ADMIN", "CAP_AUDIT_CONTROL", "CAP_SETFCAP"}
    for forbids in ("RestrictNamespaces", "ProtectControlGroups", "PrivateDevices", "MemoryDenyWriteExecute"):
        assert not re.search(rf"^{forbids}=", text, re.MULTILINE)
        assert forbids in text, "and the unit says why it is not set"


def test_an_unhardened_unit_is_found(tmp_path: Path) -> None:
    text = (UNITS / "gpu-platform-service.service").read_text()
    weak = tmp_path / "gpu-platform-service.service"
    weak.write_text(
        re.sub(r"^(System|Restrict|Protect|Private|Capability|NoNew|UMask|Lock|Memory)\w+=.*$", "", text, flags=re.M)
    )
    assert exposure(weak) > 7.0


def test_temporals_unit_is_hardened() -> None:
    assert exposure(UNITS.parent / "temporal" / "temporal.service") < 2.0


@pytest.mark.parametrize(
    "unit",
    ALL,
    ids=lambda path: path.stem,
)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """Programs of an installation are replaced by one that this machine has."""
    here = tmp_path / unit.name
    text = re.sub(r"/opt/gpu-platform/\.venv/bin/python|/usr/local/bin/temporal-server", "/bin/true", unit.read_text())
    here.write_text(text)
    done = subprocess.run([str(PROGRAM), "verify", str(here)], capture_output=True, text=True, check=False, timeout=20)
    found = [line for line in done.stderr.splitlines() if unit.name in line and "nvidia-modprobe" not in line]
    assert found == []
    programs = re.findall(r"^Exec\w+=[-+]*(\S+)", text, re.MULTILINE)
    assert set(programs) <= {"/bin/true", "/bin/sh", "/usr/bin/nvidia-modprobe"}, "a minimal Debian has no other"


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.stem)
def test_files_of_a_unit_are_its_own(unit: Path) -> None:
    text = unit.read_text()
    assert "\nUMask=0077\n" in text
    assert "\nStateDirectoryMode=0700\n" in text
    assert "\nNoNewPrivileges=yes\n" in text
    ours = unit.stem != "gpu-platform-node"  # ranks inherit its limit, and their users may want dumps of them
    assert ("\nLimitCORE=0\n" in text) is ours


@pytest.mark.parametrize("unit", ALL, ids=lambda path: path.stem)
def test_a_unit_that_fails_again_and_again_is_started_for_ever(unit: Path) -> None:
    """systemd's default gives up after five starts in ten seconds, and says it nowhere but in its own log."""
    head = unit.read_text().partition("[Service]")[0]
    assert "\nStartLimitIntervalSec=0\n" in head
    assert "\nRestart=always\n" in unit.read_text()


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.stem)
def test_a_unit_imports_nothing_from_its_working_directory(unit: Path) -> None:
    assert re.search(
        r"^ExecStart=/opt/gpu-platform/\.venv/bin/python -P -m workers\.\w+$", unit.read_text(), re.MULTILINE
    )
