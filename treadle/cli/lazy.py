"""A click group that imports a subcommand only when it is asked for, so that `--help` stays fast."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

COMPLETION = "_TREADLE_COMPLETE"
"""Set by a shell that completes a command line."""


class LazyGroup(click.Group):
    """`table` maps a name to (`module`, short help); the module's attribute `command` is the subcommand."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        command = import_module(self.table[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As in a group, but without importing every subcommand for its help."""
        own = [CompletionItem(name, help=text) for name, (_, text) in self.table.items() if name.startswith(incomplete)]
        return own + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], self.table, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(self.table)}"
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
