"""What docker-compose.yml makes: accounts of PostgreSQL, and files that only their own container reads."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.postgres import find_binaries, running_postgres

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
PLATFORM, TEMPORAL = 10001, 1000


def make_roles(url: str, passwords: Path) -> None:
    with psycopg.connect(url) as connection:
        info = connection.info
        env = {**os.environ, "PGHOST": info.host, "PGPORT": str(info.port), "PASSWORDS": str(passwords)}
    subprocess.run(["sh", str(COMPOSE / "roles.sh")], env=env, check=True, timeout=20)


@pytest.mark.skipif(shutil.which("psql") is None or find_binaries() is None, reason="PostgreSQL is not installed")
def test_platform_and_temporal_are_two_accounts_of_the_database(tmp_path: Path) -> None:
    for name in ("superuser", "gpu_platform", "temporal"):
        (tmp_path / name).write_text(f"password-of-{name}'\\ $x")
    binaries = find_binaries()
    assert binaries is not None
    with running_postgres(binaries) as url:
        server = url.rsplit("/", 1)[0]
        make_roles(url, tmp_path)
        make_roles(url, tmp_path)  # as at each start
        with psycopg.connect(url) as superuser:
            rows = superuser.execute(
                "SELECT rolname, rolsuper OR rolcreatedb OR rolcreaterole OR rolbypassrls FROM pg_roles "
                "WHERE rolname IN ('gpu_platform', 'temporal')"
            )
            assert dict(rows.fetchall()) == {"gpu_platform": False, "temporal": False}
            may = {
                (role, database)
                for role in ("gpu_platform", "temporal")
                for database in ("gpu_platform", "temporal", "temporal_visibility", "postgres")
                if (superuser.execute("SELECT has_database_privilege(%s, %s, 'CONNECT')", (role, database)).fetchone())
                == (True,)
            }
        own = {("gpu_platform", "gpu_platform"), ("temporal", "temporal"), ("temporal", "temporal_visibility")}
        assert may == own
        own_database = f"{server}/gpu_platform".replace("//postgres@", "//gpu_platform@")
        with psycopg.connect(own_database, autocommit=True) as owner:
            assert owner.info.user == "gpu_platform"
            owner.execute("CREATE TABLE jobs (id bigserial PRIMARY KEY)")  # a migration
            owner.execute("ALTER TABLE jobs ADD COLUMN note text")  # a later one
            owner.execute("INSERT INTO jobs (note) VALUES ('new')")
        with pytest.raises(psycopg.OperationalError, match="CONNECT"):
            psycopg.connect(f"{server}/gpu_platform".replace("//postgres@", "//temporal@"))


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """A directory that other accounts may enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="gpu-platform-setup-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="files of other accounts need root")
def test_setup_gives_each_container_its_own_secrets(shared_path: Path) -> None:
    programs = shared_path / "bin"
    programs.mkdir(mode=0o755)
    for name in ("python", "gpu-platform"):
        found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert found
        (programs / name).symlink_to(found)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "VOLUMES": str(shared_path / "volumes")}
    as_platform = ["setpriv", f"--reuid={PLATFORM}", f"--regid={PLATFORM}", "--clear-groups", "gpu-platform", "--help"]
    if subprocess.run(as_platform, env=env, check=False, capture_output=True, cwd="/").returncode != 0:
        pytest.skip("another account cannot run the Python of this environment")
    volumes = shared_path / "volumes"
    for name in ("passwords", "temporal", "service", "control", "scheduler", "gateway"):
        (volumes / name).mkdir(parents=True)
        (volumes / name).chmod(0o755)
        volumes.chmod(0o755)
    command = ["sh", str(COMPOSE / "setup.sh")]
    first = subprocess.run(command, env=env, check=False, timeout=60, cwd="/", capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    files = {str(path.relative_to(volumes)): path.stat() for path in volumes.rglob("*") if path.is_file()}
    assert {stat.S_IMODE(found.st_mode) for found in files.values()} == {0o600}
    owners = {"passwords": 0, "temporal": TEMPORAL}
    assert all(found.st_uid == owners.get(name.split("/")[0], PLATFORM) for name, found in files.items())
    assert [name for name in files if "identity/ca/" in name] == ["service/identity/ca/ca.pem"]
    assert [name for name in files if name.endswith("orders.key")] == ["control/keys/orders.key"]
    assert not (volumes / "gateway/keys/ring.json").exists(), "the gateway has the keys of its own purpose only"
