"""What a command is to write is held against what is there already, before the command begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OutputKind = str | Callable[[Mapping[str, Any]], str]
"""A kind of file, or what says it by the values of all options."""


class Output(str):
    """The name of a file to write, or of a folder, and the `kind` of the file."""

    kind: OutputKind


def with_overwrite_rule(command: Any) -> Any:
    """`command` and its subcommands; before they begin, what is to be written is held against what is there already and
    against the files that other options name."""
    for each in getattr(command, "commands", {}).values():
        with_overwrite_rule(each)
    invoke = command.invoke

    def checked(context: Any) -> Any:
        from treadle.planner.documents.overwrite import require_replaceable

        values = context.params.values()
        texts = [text for value in values for text in (value if isinstance(value, list | tuple) else [value])]
        inputs = [text for text in texts if isinstance(text, str) and not isinstance(text, Output)]
        for output in texts:
            if isinstance(output, Output):
                kind = output.kind if isinstance(output.kind, str) else output.kind(context.params)
                require_replaceable(output, kind, inputs)
        return invoke(context)

    command.invoke = checked
    return command
