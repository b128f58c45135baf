"""``gpu-platform tokens …`` and ``whoami``: API tokens, and who one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.local.programs import become_program
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import access_calls

if TYPE_CHECKING:
    from datetime import datetime

app = typer.Typer(help="Make, list and end API tokens.", no_args_is_help=True)

TokenId = Annotated[str, typer.Argument(metavar="TOKEN-ID", help="As `tokens list` shows it.", show_default=False)]


def register(parent: typer.Typer) -> None:
    """Add the commands of ``tokens``, and ``whoami``."""
    parent.add_typer(app, name="tokens")
    parent.command()(whoami)


@app.command()
def create(
    user: Annotated[str | None, typer.Option(help="Whose token it is; default: yours.")] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="NAMESPACE=viewer|user|operator|admin, `*`: the cluster; may be repeated. Default: yours."),
    ] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Only this, e.g. jobs:read; may be repeated.")] = None,
    expires: Annotated[str | None, typer.Option(help="Valid for so long: 12h, 30d. Default: for ever.")] = None,
    max_priority: Annotated[int | None, typer.Option(min=-1000, max=1000, help="Highest priority of its jobs.")] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    admin: Annotated[
        bool,
        typer.Option("--admin", help="The first administrator: write into the database of these settings."),
    ] = False,
    json: session.Json = False,
) -> None:
    """Make a token and print it. It is shown only now."""
    if admin:
        _first_administrator(user, role or scope or max_priority is not None)
    from gpu_platform.domain.access.tokens import TokenRequest

    fields: dict[str, Any] = {"user": user, "scopes": scope or None, "max_priority": max_priority, "note": note}
    fields |= {"roles": _roles(role) if role else None, "expires_at": _expiry(expires)}
    request = session.validated(TokenRequest, {name: value for name, value in fields.items() if value is not None})
    with session.service() as client:
        made = client.create_token(request)
    if json:
        session.print_json(made)
        return
    session.write(made.token)
    session.say(f"token {made.info.id} of {made.info.user}; it is shown only now. End it: gpu-platform tokens revoke "
                f"{made.info.id}")  # fmt: skip


@app.command("list")
@grouped_options
def list_tokens(
    ended: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False,
    *,
    shown: ListingOptions,
) -> None:
    """List your tokens; administrators see those of others, too."""
    listing = shown.listing(list_columns.TOKENS)
    with session.service() as client:
        tokens = client.json_pages(access_calls.tokens)
        listing.show(token for token in tokens if ended or list_columns.is_valid_token(token))


@app.command()
def revoke(token: TokenId, json: session.Json = False) -> None:
    """End a token at once."""
    with session.service() as client:
        ended = client.revoke_token(token)
    session.print_json(ended) if json else session.say(f"token {ended.id} of {ended.user} is ended")


def whoami(json: session.Json = False) -> None:
    """Who the service takes you for, and what you may do."""
    with session.service() as client:
        found = client.who_am_i()
    if json:
        session.print_json(found)
        return
    from gpu_platform.cli.show import show_access

    session.show(show_access.who(found))


def _first_administrator(user: str | None, limited: object) -> None:
    if limited:
        raise typer.BadParameter("--admin makes a token that may do everything: leave --role, --scope and the like out")
    # It executes another program, because the command line talks to the service only by REST.
    become_program("workers.first_admin", *([user] if user else []))


def _roles(items: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        namespace, equals, role = item.partition("=")
        if not equals or not namespace or not role:
            raise typer.BadParameter(f"--role {item!r}: write NAMESPACE=ROLE, e.g. team-a=user, or '*=operator'")
        found[namespace] = role
    return found


def _expiry(text: str | None) -> datetime | None:
    if text is None:
        return None
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) + timedelta(seconds=parsing.duration_s(text))
