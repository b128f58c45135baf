"""``gpu-platform audit``: read the audit log, verify that nobody changed it, and export it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions

if TYPE_CHECKING:
    from gpu_platform.domain.audit import AuditRecord, ChainHead

audit = typer.Typer(help="Who asked for what, and what was decided.", invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands of ``audit``."""
    audit.callback()(show)
    audit.command()(verify)
    audit.command()(export)
    app.add_typer(audit, name="audit")


@grouped_options
def show(
    context: typer.Context,
    since: Annotated[str | None, typer.Option(help="Only of this time, e.g. 1h or 7d; default: 1h.")] = None,
    *,
    shown: ListingOptions,
) -> None:
    """Show the newest records of the audit log. --json prints one object a line."""
    if context.invoked_subcommand is not None:
        return
    from datetime import UTC, datetime, timedelta

    listing = shown.listing(list_columns.AUDIT)
    begin = datetime.now(UTC) - timedelta(seconds=parsing.limit_s(since or "1h"))
    with session.service() as client:
        records = client.audit(since=begin)
        rows = ({"seq": record.seq, **record.decoded().model_dump(mode="json")} for record in records)
        if listing.shape != "json":
            listing.show(rows)
            return
        for row in rows:
            session.write_json_line(row)


def verify(
    heads: Annotated[
        Path | None,
        typer.Option("--head", metavar="FILE", help="What `audit export` or `audit verify` printed before."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", help="Verify an exported log or archives instead of the live log; may be repeated."),
    ] = None,
    json: session.Json = False,
) -> None:
    """Check that no record was changed, removed or reordered. Prints the head of the log, to keep elsewhere.

    The head of an earlier time (--head) also finds an end that was cut off. Returns 1 if something is wrong.
    """
    from gpu_platform.domain.audit import ChainCheck

    check = ChainCheck(_heads(heads) if heads is not None else [])
    if files:
        for record in _records(files):
            check.take(record)
    else:
        with session.service() as client:
            for record in client.audit():
                check.take(record)
    problems = check.finish()
    head = check.head.model_dump(mode="json")
    if json:
        removed = None if check.removed is None else check.removed.model_dump(mode="json")
        session.print_json({"head": head, "problems": problems, "removed": removed})
    else:
        session.write_json_line(head)
        for problem in problems[:20]:
            session.say(f"Error: {problem}")
        session.say(f"{check.count} records, {'nothing is wrong' if not problems else f'{len(problems)} problems'}")
        if check.removed is not None:
            session.say(
                f"records 1 to {check.removed.seq} were moved to the archive, as the log itself says; the archive must "
                f"end with the hash {check.removed.hash}"
            )
    if problems:
        raise typer.Exit(session.FAILED)


def export(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the records go, one a line.")],
) -> None:
    """Write all records into a file, and print the head of the log. Verify it with: audit verify --file FILE."""
    from gpu_platform.domain.audit import EMPTY, ChainHead

    head, count = EMPTY, 0
    try:
        with session.service(60.0) as client, output.open("w", encoding="utf-8") as file:
            for record in client.audit():
                file.write(record.model_dump_json() + "\n")
                head, count = ChainHead(seq=record.seq, hash=record.hash), count + 1
    except OSError as error:
        raise typer.BadParameter(f"cannot write {output}: {error.strerror}") from None
    session.write_json_line(head.model_dump(mode="json"))
    session.say(f"wrote {output}: {count} records")


def _heads(path: Path) -> list[ChainHead]:
    from gpu_platform.domain.audit import ChainHead

    return [ChainHead.model_validate_json(line) for line in _lines(path)]


def _records(paths: list[Path]) -> Iterator[AuditRecord]:
    """The records of the files. Archives are named by their first record, so their names are in order."""
    from gpu_platform.domain.audit import AuditRecord

    for path in sorted(paths, key=lambda path: path.name):
        for line in _lines(path):
            yield AuditRecord.model_validate_json(line)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
