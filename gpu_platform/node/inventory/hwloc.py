"""NUMA nodes of PCI devices from hwloc, for machines whose firmware does not give them to the kernel.

hwloc has corrections for such machines, and takes an operator's (``HWLOC_PCI_LOCALITY``; hwloc manual,
*Environment Variables*). Its XML is that of ``hwloc2.dtd``: a device is below the object that it is next to.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence

import structlog

from gpu_platform.node.system.tools import NotEnded, run

log = structlog.get_logger(__name__)

PROGRAMS = ("lstopo-no-graphics", "hwloc-ls", "lstopo")
"""The names that distributions give to the same program."""
_TIMEOUT_S = 5.0


def numa_nodes(programs: Sequence[str] = PROGRAMS) -> dict[str, int]:
    """PCI bus id -> NUMA node, for devices that are next to one node only. Empty if hwloc is not installed."""
    for program in programs:
        command = [program, "--of", "xml", "--whole-io"]
        try:
            return dict(_devices(ElementTree.fromstring(run(command, timeout_s=_TIMEOUT_S).output), None))
        except FileNotFoundError:
            continue
        except (OSError, NotEnded, ElementTree.ParseError) as error:
            log.warning("inventory.hwloc_failed", program=program, error=str(error))
    return {}


def _devices(element: ElementTree.Element, nodeset: str | None) -> Iterator[tuple[str, int]]:
    for child in element.findall("object"):
        near = child.get("nodeset", nodeset)  # bridges and devices have no nodeset of their own
        node = _only_node(near or "")
        if child.get("type") == "PCIDev" and node is not None:
            yield child.get("pci_busid", ""), node
        yield from _devices(child, near)


def _only_node(nodeset: str) -> int | None:
    """The node, if the set has only one. Sets are hexadecimal words of 32 bits, e.g. ``0x00000001,0x00000000``."""
    try:
        bits = int("".join(word.removeprefix("0x").zfill(8) for word in nodeset.split(",")), 16)
    except ValueError:  # empty, or "0xf...f" for all nodes
        return None
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None
