"""A group of commands of which one needs no name: ``simulate jobs.jsonl`` is ``simulate run jobs.jsonl``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

DEFAULT = "run"


class RunsByDefault(TyperGroup):
    """Runs the command ``run`` unless the first word is the name of another one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Called with the words behind the name of the group."""
        if not args or args[0] not in self.commands:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)
