"""Commands as typer makes them: a subcommand's module is imported only when it is asked for, so `--help` stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from treadle.cli.overwrite import with_overwrite_rule
from treadle.cli.verbosity import with_verbosity
from treadle.planner.documents.nearest import meant


class UsageError(typer.BadParameter):
    """Options that do not go together. The line that is printed names the command's `--help`."""

    def format_message(self) -> str:
        return self.message


class CommandGroup(TyperGroup):
    """Prints its help where no command or `help` follows, and names the command that was probably meant."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All are flags; typer imports pydantic, which takes long, for those whose default is None."""
        params = super().get_params(ctx)
        for each in params:
            each.default = each.default or False
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise UsageError("found no command", ctx)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"no such command {args[0]!r}; {meant(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)


class PlainArgument(TyperArgument):
    """An argument whose help names it as its metavar does, `FILE...` where several may follow, not `<list[str]>`."""

    def _rich_display_name(self) -> str:
        return self.display_name_raw + ("" if self.nargs == 1 else "...")

    def display_type_rich(self, ctx: Any) -> str | None:
        return super().display_type_rich(ctx) if self.type_descriptor.is_choice else None


def _with_plain_arguments(command: Any) -> Any:
    """`command` and its subcommands; typer chooses the class of arguments itself."""
    for each in command.params:
        if isinstance(each, TyperArgument):
            each.__class__ = PlainArgument
    for inner in getattr(command, "commands", {}).values():
        _with_plain_arguments(inner)
    return command


class LazyGroup(CommandGroup):
    """`table` maps a name to a module and a short help; the module's `command` is a function or a `typer.Typer`."""

    table: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Only the name and the short help of a command, which help and completion need."""
        return TyperCommand(cmd_name, short_help=self.table[cmd_name][1]) if cmd_name in self.table else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else self.load(name), rest

    def load(self, name: str) -> Any:
        """The command itself, imported."""
        command: Callable[..., object] | typer.Typer = import_module(self.table[name][0]).command
        if not isinstance(command, typer.Typer):
            function, command = command, new_app()
            command.command()(function)
        return with_overwrite_rule(with_verbosity(_with_plain_arguments(get_command(command))))


def new_app(cls: type[CommandGroup] = CommandGroup, **more: Any) -> typer.Typer:
    """A typer application without rich, whose import takes longer than the rest of `--help`."""
    settings: dict[str, Any] = {"add_completion": False, **more}
    return typer.Typer(cls=cls, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)
