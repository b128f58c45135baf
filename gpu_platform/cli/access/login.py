"""``gpu-platform login`` and ``logout``: sign in with a browser, on this machine or another."""

from __future__ import annotations

import typer

from gpu_platform.cli import session


def register(parent: typer.Typer) -> None:
    """Add the commands ``login`` and ``logout``."""
    parent.command()(login)
    parent.command()(logout)


def login() -> None:
    """Sign in with a browser, where the service works with an identity provider (OIDC)."""
    from gpu_platform.client.sign_in import sign_in

    def show(address: str, code: str) -> None:
        session.say(f"open {address} and confirm the code {code}; waiting …")

    with session.service() as client:
        sign_in(client.base_url, client.how_to_sign_in(), show)
    with session.service() as client:
        found = client.who_am_i()
    roles = ", ".join(f"{role} in {'the cluster' if place == '*' else place}" for place, role in found.roles.items())
    session.say(f"signed in as {found.name}: {roles or 'no role yet; ask an administrator'}")


def logout() -> None:
    """Forget the tokens that `login` keeps, and end them at the identity provider."""
    from gpu_platform.client import credentials
    from gpu_platform.client.sign_in import sign_out

    with session.service() as client:
        url = client.base_url
    if "access_token" not in credentials.read_note(url):
        session.say(f"`login` keeps no token for {url}")
        return
    ended = sign_out(url)
    session.say(f"signed out of {url}")
    if not ended:
        session.say("the identity provider was not told: a copy of the tokens works until they end there")
