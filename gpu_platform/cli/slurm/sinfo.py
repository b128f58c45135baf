"""``sinfo``: hosts by partition and state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_platform.cli import session
from gpu_platform.cli.slurm import host_rows
from gpu_platform.cli.slurm.formats import Column, letters, lines, long_names
from gpu_platform.cli.slurm.host_rows import Node
from gpu_platform.cli.slurm.list_options import interval_s, read_options
from gpu_platform.slurm.getopt import WrongOption, table
from gpu_platform.slurm.hostlists import compress, expand

OPTIONS = table(
    "Node|N long|l format|o= Format|O= noheader|h partition|p= nodes|n= states|t= summarize|s list-reasons|R exact|e "
    "responding|r dead|d iterate|i= all|a version|V help sort|S= verbose|v clusters|M= hide local "
    "federation json? yaml? "
    "usage reservation|T"
)
DEFAULT = "%#P %.5a %.10l %.6D %.6t %N"
LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
BY_NODE = "%#N %.6D %#P %6t"
BY_NODE_LONG = "%#N %.6D %#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
SUMMARY = "%#P %.5a %.10l %.16F  %N"
REASONS = "%20E %9u %19H %N"


def _first(row: Any) -> Node:
    return row["nodes"][0]


def _one(values: Iterable[str]) -> str:
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else f"{found[0]}+" if found else ""


def _counts(row: Any) -> str:
    nodes: Sequence[Node] = row["nodes"]
    used = sum(node.state in ("allocated", "mixed") for node in nodes)
    idle = sum(node.state == "idle" for node in nodes)
    return f"{used}/{idle}/{len(nodes) - used - idle}/{len(nodes)}"


_PARTITION = Column("PARTITION", lambda row: row["partition"])
LETTERS: dict[str, Column] = {
    "P": _PARTITION,
    "R": _PARTITION,
    "a": Column("AVAIL", lambda row: "up"),
    "l": Column("TIMELIMIT", lambda row: "infinite"),
    "L": Column("DEFAULTTIME", lambda row: "n/a"),
    "D": Column("NODES", lambda row: str(len(row["nodes"]))),
    "t": Column("STATE", lambda row: host_rows.COMPACT[_first(row).state]),
    "T": Column("STATE", lambda row: _first(row).state),
    "N": Column("NODELIST", lambda row: compress(node.name for node in row["nodes"])),
    "n": Column("HOSTNAMES", lambda row: compress(node.name for node in row["nodes"])),
    "o": Column("NODE_ADDR", lambda row: _one(node.host["address"] for node in row["nodes"])),
    "G": Column("GRES", lambda row: _one(node.gres for node in row["nodes"])),
    "E": Column("REASON", lambda row: _one(node.reason for node in row["nodes"])),
    "F": Column("NODES(A/I/O/T)", _counts),
    "A": Column("NODES(A/I)", lambda row: "/".join(_counts(row).split("/")[:2])),
    "f": Column("AVAIL_FEATURES", lambda row: _one(node.features for node in row["nodes"])),
    "b": Column("ACTIVE_FEATURES", lambda row: _one(node.features for node in row["nodes"])),
    "u": Column("USER", lambda row: "Unknown"),
    "H": Column("TIMESTAMP", lambda row: "Unknown"),
    "c": Column("CPUS", lambda row: "n/a"),
    "C": Column("CPUS(A/I/O/T)", lambda row: "n/a"),
    "m": Column("MEMORY", lambda row: "n/a"),
    "e": Column("FREE_MEM", lambda row: "n/a"),
    "O": Column("CPU_LOAD", lambda row: "n/a"),
    "d": Column("TMP_DISK", lambda row: "0"),
    "w": Column("WEIGHT", lambda row: "1"),
    "z": Column("S:C:T", lambda row: "n/a"),
    "s": Column("JOB_SIZE", lambda row: "1-infinite"),
    "r": Column("ROOT", lambda row: "no"),
    "h": Column("OVERSUBS", lambda row: "YES"),
    "g": Column("GROUPS", lambda row: "all"),
    "p": Column("PRIORITY_TIER", lambda row: "1"),
}
NAMES: dict[str, Column] = {
    "Partition": _PARTITION,
    "PartitionName": _PARTITION,
    "Available": LETTERS["a"],
    "Time": LETTERS["l"],
    "Nodes": LETTERS["D"],
    "StateCompact": LETTERS["t"],
    "StateLong": LETTERS["T"],
    "State": LETTERS["T"],
    "NodeList": LETTERS["N"],
    "NodeHost": LETTERS["n"],
    "NodeAddr": LETTERS["o"],
    "Gres": LETTERS["G"],
    "GresUsed": Column("GRES_USED", lambda row: _one(node.gres_used for node in row["nodes"])),
    "Reason": LETTERS["E"],
    "NodeAIOT": LETTERS["F"],
    "NodeAI": LETTERS["A"],
    "Features": LETTERS["f"],
}

USAGE = "Usage: sinfo [-N] [-l] [-s] [-R] [-o FORMAT | -O FIELDS] [-h] [-p PARTITION] [-n HOSTS] [-t STATES]"


def run(words: list[str]) -> int:
    """Print the hosts. Returns the exit code."""
    if (asked := read_options(OPTIONS, words, USAGE)) is None:
        return 0
    for name in ("json", "yaml"):
        if name in asked:
            raise WrongOption(f"--{name}: gpu-platform hosts list --output {name} prints it")
    if "reservation" in asked:
        raise WrongOption("--reservation: gpu-platform reservations list prints them")
    every_s = interval_s(asked.get("iterate", "1"))
    while True:
        _print(asked)
        if "iterate" not in asked:
            return 0
        time.sleep(every_s)


def _print(asked: dict[str, str]) -> None:
    with session.service() as client:
        nodes = [node for node in host_rows.nodes(client) if _is_wanted(node, asked)]
    rows = _rows(nodes, asked)
    by_name = "Format" in asked
    cells = long_names(asked["Format"], NAMES) if by_name else letters(_format(asked, rows), LETTERS)
    shown = lines(cells, rows, header="noheader" not in asked)
    session.write_lines(shown if by_name else map(str.rstrip, shown))


def _format(asked: dict[str, str], rows: list[dict[str, Any]]) -> str:
    if "format" in asked:
        return asked["format"]
    if "list-reasons" in asked:
        text = REASONS
    elif "summarize" in asked:
        text = SUMMARY
    elif "Node" in asked:
        text = BY_NODE_LONG if "long" in asked else BY_NODE
    else:
        text = LONG if "long" in asked else DEFAULT
    # Slurm makes these two as wide as their longest value.
    for letter, head in (("P", "PARTITION"), ("N", "NODELIST")):
        widest = max([len(head), *(len(LETTERS[letter].value(row)) for row in rows)])
        text = text.replace(f"%#{letter}", f"%{widest}{letter}")
    return text


def _rows(nodes: list[Node], asked: dict[str, str]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        if "list-reasons" in asked and node.reason == "none":
            continue
        key = (node.partition,)
        if "summarize" not in asked:
            key += (node.name,) if "Node" in asked or "%n" in asked.get("format", "") else (node.state,)
        if "list-reasons" in asked:
            key += (node.reason,)
        groups.setdefault(key, []).append(node)
    return [{"partition": key[0], "nodes": group} for key, group in sorted(groups.items(), key=lambda one: one[0])]


def _is_wanted(node: Node, asked: dict[str, str]) -> bool:
    if "partition" in asked and node.partition not in asked["partition"].split(","):
        return False
    if "nodes" in asked and node.name not in expand(asked["nodes"]):
        return False
    if "responding" in asked and node.state == "down":
        return False
    if "dead" in asked and node.state != "down":
        return False
    if "states" not in asked:
        return True
    wanted = {one.strip().lower() for one in asked["states"].split(",")}
    names = {node.state, host_rows.COMPACT[node.state], "all"}
    if node.state in ("drained", "draining"):
        names |= {"drain"}
    return bool(wanted & names)
