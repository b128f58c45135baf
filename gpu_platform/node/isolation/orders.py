"""Orders from the node worker to the processes that start ranks: typed here, JSON between the two.

The node worker builds them and :meth:`to_json` writes them. The privileged side (spawner, supervisor, helper of
``jobs exec``) reads them with :meth:`parse`, which refuses a field that is missing, unknown or of another type, and a
path or a cgroup outside the attempt. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from gpu_platform.node.isolation.cgroups.cgroup import CGROUP_ROOT, Hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits
from gpu_platform.node.isolation.filters.device_filter import Device
from gpu_platform.node.isolation.filters.port_filter import Ports, are_ports
from gpu_platform.node.isolation.order_fields import (
    BadOrder,
    Fields,
    is_count,
    is_counts,
    is_environ,
    is_int,
    is_list,
    is_object,
    is_or_null,
    is_path,
    is_text,
)
from gpu_platform.node.isolation.passwd import Account, is_account
from gpu_platform.node.isolation.sandbox import Mounts, are_files
from gpu_platform.node.isolation.secret_files import SecretFiles
from gpu_platform.node.isolation.workdirs import AS_ACCOUNT, Directory, is_directory
from gpu_platform.node.network.links import NetworkOrder, is_network

_MOUNTS = "[4 lists of absolute paths, a size, a path, 2 sizes, pairs of paths or null]"


class LeaseTerms(NamedTuple):
    """The lease under which a rank starts and runs; see ``lease_file``."""

    path: str
    term: int
    ends_rank: bool
    """The rank ends when the lease ends. False for jobs with ``fencing: relaxed``."""

    def to_json(self) -> dict[str, Any]:
        """The values as they are sent."""
        return self._asdict()

    @classmethod
    def parse(cls, value: object) -> LeaseTerms:
        """Read what :meth:`to_json` made. Raises :class:`BadOrder`."""
        fields = Fields("the lease of a rank", value)
        terms = cls(
            path=fields.path("path"), term=fields.take("term", is_int, "a number"), ends_rank=fields.flag("ends_rank")
        )
        fields.refuse_others()
        return terms


class RankJailOrder(NamedTuple):
    """How the jail of one rank looks: the limits of its cgroup, and the account that it runs as."""

    rank: int
    limits: Limits
    uid: int | None
    """None: the node worker's own account."""
    gid: int | None
    memlock_bytes: int | None = None
    """Memory that each process may lock. None: any amount."""

    def to_json(self) -> dict[str, Any]:
        """The values as they are sent."""
        return {**self._asdict(), "limits": list(self.limits)}

    @classmethod
    def parse(cls, value: object) -> RankJailOrder:
        """Read what :meth:`to_json` made. Raises :class:`BadOrder`."""
        fields = Fields("the jail of a rank", value)
        order = cls(
            rank=fields.count("rank"),
            limits=_limits(fields),
            uid=fields.maybe_count("uid"),
            gid=fields.maybe_count("gid"),
            memlock_bytes=fields.maybe_count("memlock_bytes"),
        )
        fields.refuse_others()
        return order


class RankOrder(NamedTuple):
    """Start one rank, and supervise it to its end. The privileged side checks it again, with the standard library."""

    rank_dir: str
    attempt_dir: str
    argv: list[str]
    env: dict[str, str]
    workdir: str | None
    host: str
    log_file_bytes: int
    """The log is cut into files of this size."""
    log_files: int
    """How many files of the log are kept."""
    lease: LeaseTerms | None = None
    """None: the rank runs without a lease."""
    jail: RankJailOrder | None = None
    """None: the rank is a plain process."""
    cpus: list[int] | None = None
    """CPUs that a plain process is bound to. None: all."""
    secrets: str | None = None
    """The file with the values of secret variables: of this host, or, for a jailed rank, in its jail. None: it has
    none."""

    def to_json(self) -> dict[str, Any]:
        """The values as they are sent, and kept in ``order.json``."""
        return {
            "kind": "rank",
            **self._asdict(),
            "lease": None if self.lease is None else self.lease.to_json(),
            "jail": None if self.jail is None else self.jail.to_json(),
        }

    @classmethod
    def parse(cls, value: object) -> RankOrder:
        """Read what :meth:`to_json` made. Raises :class:`BadOrder`."""
        fields = Fields("the order of a rank", value)
        fields.kind("rank")
        attempt_dir = fields.path("attempt_dir")
        rank_dir = fields.path("rank_dir")
        if os.path.dirname(rank_dir) != attempt_dir:
            raise BadOrder(f"rank_dir {rank_dir!r} is not in the attempt's directory {attempt_dir!r}")
        order = cls(
            rank_dir=rank_dir,
            attempt_dir=attempt_dir,
            argv=fields.take("argv", lambda found: is_list(found, is_text) and bool(found), "a list of texts"),
            env=fields.take("env", is_environ, "an object of texts"),
            workdir=fields.maybe("workdir", fields.text),
            host=fields.text("host"),
            log_file_bytes=fields.count("log_file_bytes"),
            log_files=fields.count("log_files"),
            lease=fields.maybe("lease", lambda name: LeaseTerms.parse(fields.take(name, is_object, "an object"))),
            jail=fields.maybe("jail", lambda name: RankJailOrder.parse(fields.take(name, is_object, "an object"))),
            cpus=fields.maybe("cpus", lambda name: fields.take(name, is_counts, "a list of numbers")),
            secrets=fields.maybe("secrets", fields.path),
        )
        fields.refuse_others()
        return order

    @classmethod
    def read(cls, record: dict[str, Any]) -> RankOrder:
        """Read ``order.json``, which another release may have written: unknown fields are ignored.

        Raises :class:`BadOrder`.
        """
        return cls.parse({"kind": "rank", **{name: record[name] for name in cls._fields if name in record}})


class JailOrder(NamedTuple):
    """Make the jail of one attempt on this host, before any of its ranks starts."""

    attempt_dir: str
    hierarchies: Hierarchies
    cgroup: str
    """Name of the cgroup, below :data:`CGROUP_ROOT`."""
    devices: list[Device]
    mounts: Mounts
    limits: Limits
    """The limits of all ranks together."""
    account: Account
    """The account of all ranks. Never root."""
    directories: list[Directory]
    """Directories that the job names or writes."""
    network: NetworkOrder | None = None
    """None: the host's network."""
    ports: Ports | None = None
    """What the ranks may bind. None: any port."""
    secrets: SecretFiles | None = None
    root: Directory | None = None
    """The root file system of a container, opened with the rights of the account. None: the host's is shown."""

    def to_json(self) -> dict[str, Any]:
        """The values as they are sent."""
        return {
            "kind": "jail",
            "attempt_dir": self.attempt_dir,
            "hierarchies": list(self.hierarchies),
            "cgroup": self.cgroup,
            "devices": [list(device) for device in self.devices],
            "mounts": list(self.mounts),
            "limits": list(self.limits),
            "account": list(self.account),
            "directories": [list(directory) for directory in self.directories],
            "network": None if self.network is None else self.network.to_json(),
            "ports": None if self.ports is None else list(self.ports),
            "secrets": None if self.secrets is None else self.secrets.to_json(),
            "root": None if self.root is None else list(self.root),
        }

    @classmethod
    def parse(cls, value: object) -> JailOrder:
        """Read what :meth:`to_json` made. Raises :class:`BadOrder`."""
        fields = Fields("the order of a jail", value)
        fields.kind("jail")
        devices = fields.take("devices", lambda found: is_list(found, _is_device), "a list of [major, minor]")
        cgroup = fields.text("cgroup")
        if os.path.normpath(cgroup) != cgroup or not cgroup.startswith(f"{CGROUP_ROOT}/"):
            raise BadOrder(f"cgroup {cgroup!r} of the order of a jail is not below {CGROUP_ROOT!r}")
        order = cls(
            attempt_dir=fields.path("attempt_dir"),
            hierarchies=Hierarchies(*fields.take("hierarchies", _is_hierarchies, "[mount point, list, object]")),
            cgroup=cgroup,
            devices=[Device(*device) for device in devices],
            mounts=Mounts(*fields.take("mounts", _is_mounts, _MOUNTS)),
            limits=_limits(fields),
            account=Account(*fields.take("account", is_account, "an account other than root's")),
            directories=[
                Directory(*one)
                for one in fields.take("directories", _are_directories, "a list of directories outside the system's")
            ],
            network=fields.maybe("network", lambda name: NetworkOrder.parse(fields.take(name, is_network, "links"))),
            ports=fields.maybe("ports", lambda name: Ports(*fields.take(name, are_ports, "ranges of ports"))),
            secrets=fields.maybe("secrets", lambda name: fields.parsed(name, SecretFiles.parse)),
            root=fields.maybe(
                "root", lambda name: Directory(*fields.take(name, _is_root, "a directory outside the system's"))
            ),
        )
        fields.refuse_others()
        return order


class ExecOrder(NamedTuple):
    """Run one program beside a rank (``jobs exec``), or open connections to a port of it (``jobs forward``)."""

    id: str
    rank_dir: str
    attempt_dir: str
    argv: list[str]
    tty: bool
    rows: int
    columns: int
    term: str | None
    """The variable ``TERM`` of the program. None: that of the rank."""
    jailed: bool
    """This host starts every rank in a jail. Then the program runs in one or not at all, whatever a record says."""
    port: int | None = None
    """Instead of a program: the TCP port of the rank. ``argv`` is empty then."""

    def to_json(self) -> dict[str, Any]:
        """The values as they are sent."""
        return self._asdict()

    @classmethod
    def parse(cls, value: object) -> ExecOrder:
        """Read what :meth:`to_json` made. Raises :class:`BadOrder`."""
        fields = Fields("the order of a command", value)
        name = fields.text("id")
        if not name.isalnum():
            raise BadOrder(f"id {name!r} of the order of a command has other characters than letters and digits")
        order = cls(
            id=name,
            rank_dir=fields.path("rank_dir"),
            attempt_dir=fields.path("attempt_dir"),
            argv=fields.take("argv", lambda found: is_list(found, is_text), "a list of texts"),
            tty=fields.flag("tty"),
            rows=fields.count("rows"),
            columns=fields.count("columns"),
            term=fields.maybe("term", fields.text),
            jailed=fields.flag("jailed"),
            port=fields.maybe("port", fields.count),
        )
        fields.refuse_others()
        if bool(order.argv) == (order.port is not None):
            raise BadOrder("the order of a command names either a program or a port")
        if order.port is not None and not 0 < order.port < 65_536:
            raise BadOrder(f"port {order.port} of the order of a command is not from 1 to 65535")
        return order


def parse_order(value: object) -> RankOrder | JailOrder:
    """Read an order to the spawner. Raises :class:`BadOrder`."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind == "rank":
        order = RankOrder.parse(value)
        if order.jail is not None and not (order.jail.uid and order.jail.gid):
            raise BadOrder("a rank in a jail runs as an account other than root's: its uid and gid are missing or 0")
        return order
    if kind == "jail":
        return JailOrder.parse(value)
    raise BadOrder(f"an order is of the kind 'rank' or 'jail', not {kind!r}")


def _limits(fields: Fields) -> Limits:
    return Limits(*fields.take("limits", _is_limits, "[bytes, tasks, CPUs, NUMA nodes, weights, rate], each or null"))


def _is_device(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and is_count(value[0]) and is_or_null(value[1], is_count)


def _is_limits(value: object) -> bool:
    checks = (is_count, is_count, is_text, is_text, is_count, is_count, is_count)
    return (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(is_or_null(one, check) for one, check in zip(value, checks, strict=True))
    )


def _is_hierarchies(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and is_or_null(value[0], is_path)
        and is_list(value[1], is_text)
        and isinstance(value[2], dict)
        and all(is_text(name) and is_path(path) for name, path in value[2].items())
    )


def _is_root(value: object) -> bool:
    """True for a directory that is opened with the account's rights: a container shows nothing that it may not see."""
    return is_directory(value) and Directory(*value).access == AS_ACCOUNT  # type: ignore[misc]


def _are_directories(value: object) -> bool:
    return is_list(value, is_directory)


def _is_mounts(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 9
        and all(is_list(paths, is_path) for paths in value[:4])
        and is_count(value[4])
        and is_or_null(value[5], is_path)
        and all(is_or_null(size, is_count) for size in value[6:8])
        and is_or_null(value[8], are_files)
    )
