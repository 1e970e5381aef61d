"""What a shell offers for the word at the cursor: commands, options, names that ship with the tool, and files.

The shell calls `treadle` with `_TREADLE_COMPLETE` set; click answers for bash, zsh and fish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click import shell_completion
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from treadle.cli.lazy import COMPLETION
from treadle.planner import resources


def answer(command: click.Command, instruction: str) -> int:
    """Answer the shell that asks by `instruction`, and give the exit code."""
    for shell in SHELLS:
        shell_completion.add_completion_class(shell)
    return shell_completion.shell_complete(command, {}, "treadle", COMPLETION, instruction)


class _OrFiles(ShellComplete):
    """Offers files where nothing else is known."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        return found if found or incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]


class Bash(_OrFiles, BashComplete):
    pass


class Zsh(_OrFiles, ZshComplete):
    pass


class Fish(_OrFiles, FishComplete):
    pass


SHELLS = (Bash, Zsh, Fish)
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def offering(names: Callable[[], Iterable[str]]) -> Completer:
    """Offer those of `names()` that begin with what was typed."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def _methods() -> list[str]:
    from treadle.planner.passes.collective.planning import METHODS

    return ["auto", *METHODS]


PROFILES = offering(lambda: [*resources.names("profiles"), "local"])
SKETCHES = offering(lambda: resources.names("sketches"))
METHODS = offering(_methods)
