"""``gpu-platform keys``: the keys that seal secrets and Temporal's data, and that sign orders to hosts.

They are files of this machine. No service is asked. Before a key is removed, Temporal is.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.local.programs import program
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions

if TYPE_CHECKING:
    from gpu_platform.settings import Settings

keys = typer.Typer(name="keys", help="Keys that seal data and sign orders to hosts.", no_args_is_help=True)
Ring = Annotated[Path | None, typer.Option("--file", help="The key ring; default: key_ring of the settings.")]


def register(app: typer.Typer) -> None:
    """Add the commands ``keys …``."""
    app.add_typer(keys)


@keys.command()
def create(
    file: Ring = None,
    signing_key: Annotated[
        Path | None, typer.Option(help="The key that signs orders; default: signing_key of the settings.")
    ] = None,
) -> None:
    """Make the key ring and the signing key, where there is none. The files in `<state_dir>/keys` are the default."""
    from gpu_platform.identity import key_ring, signing

    settings = _settings()
    ring = _ring(file, settings)
    signer = signing_key or settings.signing_key or ring.with_name("orders.key")
    key_ring.create(ring)
    signing.create(signer)
    session.write(f"key_ring: {ring}\nsigning_key: {signer}\nnode.order_keys: {signer.with_suffix('.pub')}")


@keys.command("list")
@grouped_options
def list_keys(file: Ring = None, *, listing: ListingOptions) -> None:
    """Show the keys of the ring: their ids, and from when each seals new data."""
    from gpu_platform.cli.show.list_columns import KEYS
    from gpu_platform.identity import key_ring

    shown = listing.listing(KEYS)
    found = key_ring.list_keys(_ring(file, _settings()))
    shown.show({"id": key_id, "seals_from": _since(use_from)} for key_id, use_from in found)


def _since(use_from: float) -> str:
    """As RFC 3339. Empty: from the beginning."""
    return datetime.fromtimestamp(use_from, UTC).isoformat(timespec="seconds") if use_from else ""


@keys.command()
def rotate(
    file: Ring = None,
    after: Annotated[
        float,
        typer.Option(
            parser=parsing.duration_s,
            metavar="TIME",
            help="When it is used: by then each process must have the new file (10s, 1h).",
        ),
    ] = 2.0,
) -> None:
    """Add a key that seals new data. Running processes see it; exported files in the same folder get it, too."""
    from gpu_platform.identity import key_ring

    added = key_ring.rotate(_ring(file, _settings()), after_s=after)
    session.write(
        f"key {added.id} seals from {datetime.fromtimestamp(added.use_from, UTC).isoformat(timespec='seconds')}"
    )


@keys.command()
def remove(
    key_id: Annotated[str, typer.Argument(help="An id that `keys list` shows.")],
    file: Ring = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if workflows that go on need it: their jobs are lost.")
    ] = False,
) -> None:
    """Remove a key, if nothing that goes on was sealed with it. What it sealed can never be read again."""
    from gpu_platform.domain.errors import InUse
    from gpu_platform.identity import key_ring

    ring = _ring(file, _settings())
    key_ring.check_removable(ring, key_id)
    if not force and (uses := _uses(key_id)):
        raise InUse(
            f"key {key_id} is still needed, also to go on: {'; '.join(uses)}. Wait until they have ended, which for "
            "the SchedulerWorkflow is after a day at most, or cancel those jobs. With --force they lose what the key "
            "sealed, and stand still"
        )
    key_ring.remove(ring, key_id)
    session.say(f"removed key {key_id}")


@keys.command()
def export(
    scope: Annotated[str, typer.Argument(help="node-HOST for a node worker, gateway for the node gateway.")],
    output: Annotated[Path, typer.Argument(help="The file to write (mode 0600); -: print it.", allow_dash=True)],
    file: Ring = None,
) -> None:
    """Write the keys of one purpose alone into a file, e.g. those of one host: `keys export node-dgx-a dgx-a.json`."""
    from gpu_platform.domain.errors import InvalidRequest
    from gpu_platform.identity.key_ring import KeyRing

    if scope != "gateway" and not scope.startswith("node-"):
        raise InvalidRequest(f"there are no keys for {scope!r}: use node-HOST for a node worker, or gateway")
    keys_of_scope = KeyRing.load(_ring(file, _settings())).scoped(scope)
    if str(output) == "-":
        session.write(keys_of_scope.exported().decode())
        return
    keys_of_scope.export(output)
    session.say(f"wrote the keys of {scope} to {output}")


def _settings() -> Settings:
    from gpu_platform.settings.reading import read_settings

    return read_settings()


def _ring(file: Path | None, settings: Settings) -> Path:
    return file or settings.key_ring or settings.state_dir / "keys" / "ring.json"


def _uses(key_id: str) -> list[str]:
    """What still needs the key. Raises :class:`Unavailable` if nobody knows."""
    from gpu_platform.domain.errors import Unavailable

    asked = subprocess.run(program("workers.keys_in_use", key_id), capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise Unavailable(
            f"{asked.stderr.strip()[-500:]}. The key was not removed: run the command where Temporal can be reached "
            "(temporal.address), or with --force"
        )
    return asked.stdout.splitlines()
