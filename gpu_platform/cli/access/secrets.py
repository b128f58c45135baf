"""``gpu-platform secrets …``: values for the jobs of a namespace, which nobody reads back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import access_calls

if TYPE_CHECKING:
    from gpu_platform.client import Client

app = typer.Typer(help="Keep values that jobs need and nobody may read, such as keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.", show_default=False)]
Namespace = Annotated[
    str | None, typer.Option(help="Namespace of the jobs; default: yours, or default if you have several.")
]


def register(parent: typer.Typer) -> None:
    """Add the commands of ``secrets``."""
    parent.add_typer(app, name="secrets")


@app.command("set")
def set_secret(
    name: Name,
    namespace: Namespace = None,
    file: Annotated[
        Path | None, typer.Option(help="A file with the value; default: standard input, or a hidden prompt.")
    ] = None,
    json: session.Json = False,
) -> None:
    """Keep a value under a name. It is never an argument: other users of a machine see arguments.

    For example: gpu-platform secrets set wandb-key < key.txt
    """
    from gpu_platform.domain.access.secrets import SecretValue

    content = _content(name, file)
    with session.service() as client:
        kept = client.set_secret(namespace or _own_namespace(client), name, SecretValue.of(content))
    if json:
        session.print_json(kept)
        return
    variable = "" if kept.name.isidentifier() else "=VARIABLE"
    session.say(f"secret {kept.name} of namespace {kept.namespace} is kept; use it with: gpu-platform submit --secret "
                f"{kept.name}{variable} …")  # fmt: skip


@app.command("list")
@grouped_options
def list_secrets(
    namespace: session.OnlyNamespace = None,
    *,
    shown: ListingOptions,
) -> None:
    """List names of secrets. Values are never shown."""
    listing = shown.listing(list_columns.SECRETS)
    with session.service() as client:
        listing.show(client.json_pages(lambda cursor: access_calls.list_secrets(namespace, cursor)))


@app.command()
def delete(name: Name, namespace: Namespace = None) -> None:
    """Remove a secret. Ranks that have it keep it; jobs that start later do not get it."""
    with session.service() as client:
        where = namespace or _own_namespace(client)
        client.delete_secret(where, name)
    session.say(f"removed secret {name} of namespace {where}")


def _content(name: str, file: Path | None) -> bytes:
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    if sys.stdin.isatty():
        return typer.prompt(f"value of {name}", hide_input=True, confirmation_prompt=True, err=True).encode()
    # `echo` and editors end a value with a line end that does not belong to it. A file is taken as it is.
    content = sys.stdin.buffer.read()
    return content.removesuffix(b"\n").removesuffix(b"\r")


def _own_namespace(client: Client) -> str:
    """As the service chooses it for a job that names none."""
    from gpu_platform.domain.access.roles import CLUSTER, Role

    roles = {place: role for place, role in client.who_am_i().roles.items() if role.includes(Role.USER)}
    if not roles or "default" in roles or CLUSTER in roles:
        return "default"
    if len(roles) > 1:
        raise typer.BadParameter(f"say which namespace: --namespace {' or '.join(sorted(roles))}")
    return next(iter(roles))
