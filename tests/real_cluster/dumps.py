"""Dumps of the databases of a real cluster, as an operator makes them while everything runs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

from tests.chaos.killable_postgres import Server
from tests.real_cluster.temporal import DATABASES
from tests.support.postgres import find_binaries


@dataclass(frozen=True)
class Dump:
    """Dumps of some databases of one server, each of one moment."""

    server: Server
    files: dict[str, Path]
    """Database -> file."""


def why_no_dumps() -> str | None:
    """Why dumps cannot be made here; None: they can."""
    binaries = find_binaries()
    missing = binaries is None or not (binaries / "pg_dump").exists()
    return "there is no pg_dump here: apt-get install postgresql-client" if missing else None


def dump_temporal(server: Server, directory: Path) -> Dump:
    """Both databases of Temporal, one after the other."""
    return _dump(server, list(DATABASES), directory)


def dump_platform(server: Server, directory: Path) -> Dump:
    """The platform's database."""
    return _dump(server, [str(make_url(server.url).database)], directory)


def destroy(dump: Dump) -> None:
    """Remove the databases, with everything in them, under whoever uses them."""
    for database in dump.files:
        _run(dump.server, "psql", "template1", "--command", f'DROP DATABASE "{database}" WITH (FORCE)')


def put_back(dump: Dump) -> None:
    """Make the databases again, as they were at the moment of each dump."""
    make_empty(dump)
    for database, file in dump.files.items():
        _run(dump.server, "pg_restore", database, "--exit-on-error", str(file))


def make_empty(dump: Dump) -> None:
    """Make the databases again, without anything in them."""
    for database in dump.files:
        _run(dump.server, "psql", "template1", "--command", f'CREATE DATABASE "{database}"')


def _dump(server: Server, databases: list[str], directory: Path) -> Dump:
    directory.mkdir(parents=True, exist_ok=True)
    files = {database: directory / f"{database}.dump" for database in databases}
    for database, file in files.items():
        _run(server, "pg_dump", database, "--format=custom", "--file", str(file))
    return Dump(server, files)


def _run(server: Server, program: str, database: str, *arguments: str) -> None:
    binaries, url = find_binaries(), make_url(server.url)
    assert binaries is not None
    where = ["--host", str(url.host), "--port", str(url.port), "--username", str(url.username), "--dbname", database]
    command = [str(binaries / program), *where, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
