"""``gpu-platform ca …``: certificates of machines.

It works on files of this machine, that of the service; it asks no service.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.domain.texts import counted

if TYPE_CHECKING:
    from gpu_platform.identity.ca import CertificateAuthority

Directory = Annotated[
    Path | None, typer.Option("--dir", help="Directory of the CA; default: tls.ca_dir, or identity/ca in state_dir.")
]

ca = typer.Typer(help="The CA of this cluster, on the machine of the service.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for certificates."""
    ca.command()(init)
    ca.command()(show)
    ca.command()(issue)
    ca.command()(rotate)
    app.add_typer(ca, name="ca")


def init(directory: Directory = None) -> None:
    """Make the CA: its key, readable by its owner only, and its certificate."""
    from gpu_platform.identity.ca import CertificateAuthority
    from gpu_platform.settings.reading import read_settings

    settings = read_settings()
    path = directory or settings.tls.ca_directory(settings.state_dir)
    made = CertificateAuthority.init(path, settings.tls.trust_domain)
    session.say(f"made a CA in {path}; SHA-256 of its certificate: {made.fingerprint}")
    session.say("set tls.enabled: true and start the service; then `gpu-platform hosts enroll HOST` for each GPU host")


def show(directory: Directory = None) -> None:
    """Print the authorities that are trusted (PEM): the file for GPU_PLATFORM_CA_FILE of clients."""
    found = _load(directory)
    session.write(found.bundle().decode().rstrip("\n"))
    session.say(f"trust domain {found.trust_domain}, SHA-256 of the CA that signs: {found.fingerprint}")


def issue(
    identity: Annotated[str, typer.Argument(help="control, scheduler, gateway, scraper, service or node/HOST.")],
    directory: Directory = None,
    name: Annotated[list[str] | None, typer.Option("--name", help="A DNS name or IP address; repeatable.")] = None,
    hours: Annotated[float, typer.Option("--hours", min=0.01, max=2160, help="Life of the certificate.")] = 24.0,
) -> None:
    """Print a new key and certificate (PEM), for a process on another machine. It renews the certificate by itself."""
    from gpu_platform.identity.certificates import make_key_and_request

    found = _load(directory)
    key, request = make_key_and_request()
    signed = found.sign(request, identity, addresses=name or [], life=timedelta(hours=hours))
    session.write((signed + key).decode().rstrip("\n"))


def rotate(
    step: Annotated[str, typer.Argument(help="trust, sign or retire; each a certificate's life after the one before.")],
    directory: Directory = None,
) -> None:
    """Replace the CA step by step: a new one is trusted, then signs, then the old one is trusted no more."""
    found = _load(directory)
    found.rotate(step)
    session.say(f"trusted: {counted(len(found.trusted()), 'CA')}; SHA-256 of the one that signs: {found.fingerprint}")


def _load(directory: Path | None) -> CertificateAuthority:
    from gpu_platform.identity.ca import CertificateAuthority
    from gpu_platform.settings.reading import read_settings

    settings = read_settings()
    return CertificateAuthority.load(directory or settings.tls.ca_directory(settings.state_dir))
