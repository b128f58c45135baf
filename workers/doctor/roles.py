"""What a machine is in the deployment. Most checks are for one role only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import make_url

from gpu_platform.node.system.paths import node_dir
from gpu_platform.settings import Settings

CONTROL_PLANE, HOST, CLIENT = "control-plane", "host", "client"
ROLES = (CONTROL_PLANE, HOST, CLIENT)


@dataclass(frozen=True)
class Roles:
    """The roles of this machine. One may have several: ``gpu-platform up`` runs all on one."""

    names: frozenset[str]
    description: str
    no_database: str = ""
    """Why the control plane's checks are left out. Empty: they are not."""
    no_host: str = ""
    """Why a host's checks are left out."""

    @classmethod
    def of(cls, settings: Settings, chosen: Sequence[str]) -> Self:
        """The ``chosen`` roles; without them, those whose settings or files are on this machine."""
        if chosen:
            rest = f"only the checks of {' and '.join(chosen)} were asked for (--role)"
            found, why_not_control, why_not_host = frozenset(chosen), rest, rest
        else:
            why_not_control, why_not_host = _why_no_control_plane(settings), _why_no_host(settings)
            is_there = {CONTROL_PLANE: not why_not_control, HOST: not why_not_host}
            found = frozenset([name for name, yes in is_there.items() if yes] or [CLIENT])
        return cls(
            found,
            " and ".join(name for name in ROLES if name in found),
            "" if CONTROL_PLANE in found else why_not_control,
            "" if HOST in found else why_not_host,
        )


def sqlite_file(settings: Settings) -> Path | None:
    """The file of the database. None: it is a server."""
    url = make_url(settings.store_url)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _why_no_control_plane(settings: Settings) -> str:
    file = sqlite_file(settings)
    if settings.database_url is not None or (file is not None and file.exists()):
        return ""
    return f"this machine is not of the control plane: database_url is not set, and there is no {file}"


def _why_no_host(settings: Settings) -> str:
    node = settings.node
    home = node_dir(settings.state_dir, node.name)
    joins = (node.join_token, node.join_token_file, node.token, node.token_file, node.order_keys, node.simulate)
    if home.exists() or any(given is not None for given in joins):
        return ""
    return f"this machine runs no node worker: there is no {home}, and no setting node.join_token_file or the like"
