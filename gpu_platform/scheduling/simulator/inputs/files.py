"""The simulator's files on disk. Everything that is read is YAML, CSV or JSON, plain or gzipped."""

from __future__ import annotations

import copy
import gzip
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TextIO, get_args, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError

from gpu_platform.domain.documents import wrong_fields, yaml_mapping
from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.domain.placing.window import WindowRow
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.scheduling.simulator.inputs.cluster_file import ClusterFile, read_nodes
from gpu_platform.scheduling.simulator.inputs.failures import Outage, read_failures
from gpu_platform.scheduling.simulator.inputs.readers import read_trace
from gpu_platform.scheduling.simulator.inputs.trace import Trace
from gpu_platform.scheduling.simulator.inputs.window_file import read_windows
from gpu_platform.topology.machine_file import is_machine_file, read_machine


def load_trace(path: Path, host_size: int = 8) -> Trace:
    """Read a trace. Raises NotFound and InvalidRequest."""
    with _open(path) as file:
        return read_trace(path.name, file, host_size)


def load_cluster(path: Path) -> list[HostRow]:
    """Read a :class:`ClusterFile` in YAML, or a published table of hosts (``.csv``). Raises NotFound and
    InvalidRequest."""
    with _open(path) as file:
        if ".csv" in path.suffixes:
            return read_nodes(path.name, file)
        try:
            return ClusterFile.model_validate(_with_machines(yaml_mapping(file.read(), path.name), path.parent)).rows()
        except ValidationError as error:
            raise InvalidRequest(f"{path.name} is no cluster: {wrong_fields(error)}") from error


def _with_machines(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Replace the names of files in ``machine`` by what is in them. They are beside the cluster file."""
    groups = content.get("hosts")
    for group in groups if isinstance(groups, list) else ():
        machine = group.get("machine") if isinstance(group, dict) else None
        if isinstance(machine, str) and is_machine_file(machine):
            group["machine"] = read_machine(folder / machine)
    return content


def load_state(path: Path) -> ClusterState:
    """Read what ``gpu-platform snapshot`` wrote. Raises NotFound and InvalidRequest."""
    with _open(path) as file:
        try:
            return ClusterState.model_validate_json(file.read())
        except ValidationError as error:
            raise InvalidRequest(f"{path.name} is no snapshot of a cluster: {wrong_fields(error)}") from error


def load_windows(
    path: Path, hosts: Sequence[HostRow], state: ClusterState | None = None, margin_s: float = 60.0
) -> list[WindowRow]:
    """Read advance reservations and maintenance windows: see :mod:`window_file`. Raises NotFound and InvalidRequest."""
    with _open(path) as file:
        return read_windows(path.name, yaml_mapping(file.read(), path.name), hosts, state, margin_s)


def load_failures(path: Path, hosts: Sequence[HostRow]) -> list[Outage]:
    """Read failures. Raises NotFound and InvalidRequest."""
    with _open(path) as file:
        return read_failures(path.name, file, hosts)


def load_policy(
    name: str,
    overrides: Iterable[str] = (),
    default: Mapping[str, Any] | None = None,
    called: str | None = None,
) -> tuple[str, Policy]:
    """Return (its name, policy) from a YAML file of :class:`Policy`'s fields, or from the name of a queue order.

    ``default``: the fields of the policy with that name; another queue order replaces its order. ``overrides``:
    ``key=value`` or ``weights.topology=3``, values in YAML. ``called``: another name for the result. Raises NotFound
    and InvalidRequest.
    """
    path = Path(name)
    if path.is_file():
        with _open(path) as file:
            content = yaml_mapping(file.read(), path.name)
        label = path.stem
    else:
        content, label = copy.deepcopy(dict(default or {})) | ({} if name == "default" else {"order": name}), name
    for override in overrides:
        _override(content, override)
    label = called or label
    refuse_unknown_settings(content, f"policy {label}")
    try:
        policy = read_policy(content, f"policy {label}")
    except InvalidRequest as error:
        if path.is_file() or called:
            raise
        raise InvalidRequest(f"{error.message} (and there is no file {name})") from error
    return label, policy


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidRequest(f"{text!r} sets nothing: write key=value, e.g. order=fcfs or weights.topology=3")
    *above, last = key.split(".")
    target = content
    for key in above:
        below = target.setdefault(key, {})
        if not isinstance(below, dict):
            raise InvalidRequest(f"{text!r}: {key} is a value and has nothing below it")
        target = below
    try:
        target[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{text!r}: {value!r} is not YAML") from error


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield file
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFound(f"there is no file {path}") from error
    except (UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise InvalidRequest(f"{path} is not text: {error}") from error


def refuse_unknown_settings(content: Mapping[str, Any], what: str) -> None:
    """Raise InvalidRequest, which says what there is, if a section of a policy has a setting that does not exist. Else
    a policy with a misspelt setting would be compared with itself.
    """
    hints = get_type_hints(Policy)
    for key, value in content.items():
        if key in hints:
            _check(value, hints[key], f"{what}: {key}")


def _check(value: object, hint: Any, where: str) -> None:
    if isinstance(value, Mapping):
        sections = [kind for kind in (hint, *get_args(hint)) if _is_section(kind)]
        for kind in sections[:1]:
            _check_section(value, kind, where)
    elif isinstance(value, list | tuple):
        of_items = [argument for argument in get_args(hint) if argument is not Ellipsis]
        for item in value if of_items else ():
            _check(item, of_items[0], where)


def _check_section(value: Mapping[str, object], kind: type, where: str) -> None:
    names = list(kind.model_fields) if issubclass(kind, BaseModel) else [field.name for field in fields(kind)]  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key, below in value.items():
        if key not in names:
            raise InvalidRequest(f"{where} has no {key!r}; there is: {', '.join(names)}")
        _check(below, hints[key], f"{where}.{key}")


def _is_section(kind: object) -> bool:
    return inspect.isclass(kind) and (is_dataclass(kind) or issubclass(kind, BaseModel))
