"""What `--json` prints: one document on stdout, an object that names its schema and version (docs/json-output.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import typer

from treadle.planner.errors import spelled

KINDS = {
    1: "check-failed",
    2: "bad-input",
    3: "infeasible",
    4: "limits",
    5: "missing-backend",
    70: "internal",
    130: "interrupted",
}
"""What an exit code means (docs/exit-codes.md), in a word for programs."""

_awaited: ContextVar[bool] = ContextVar("_awaited", default=False)
"""Whether the command line asked for JSON and none was printed yet."""


@contextmanager
def one_document(arguments: Sequence[str]) -> Iterator[None]:
    """The duration of one command line, in which `print_error` knows whether JSON is still to be printed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    token = _awaited.set("--json" in options)
    try:
        yield
    finally:
        _awaited.reset(token)


def print_json(schema: str, value: Mapping[str, Any], version: int = 1) -> None:
    """Print `value` as one JSON document of the schema `treadle.<schema>/<version>`, keys sorted.

    A key that goes or changes its meaning needs the next version; a new key does not.
    """
    document = _valid({"schema": f"treadle.{schema}/{version}", **value})
    typer.echo(json.dumps(document, sort_keys=True, indent=1))
    _awaited.set(False)


def _option(error: BaseException) -> str | None:
    """The option that typer refuses, in its long form; None for an argument."""
    names = [getattr(error, "option_name", None), *getattr(getattr(error, "param", None), "opts", ())]
    options = [name for name in names if name and name.startswith("-")]
    return max(options, key=len, default=None)


def _valid(value: Any) -> Any:
    """`value` with texts that every JSON reader takes: half a surrogate pair, which Python writes, is none."""
    match value:
        case str():
            return spelled(value)
        case Mapping():
            return {_valid(key): _valid(each) for key, each in value.items()}
        case list() | tuple():
            return [_valid(each) for each in value]
        case _:
            return value


def print_error(message: str, code: int, error: BaseException) -> None:
    """Print the error that ends a command as JSON, if it was asked for and the command has printed no document.

    A command that printed its document and then failed has its findings there.
    """
    if not _awaited.get():
        return
    where = str(getattr(error, "where", "") or getattr(error, "filename", None) or "")
    option = where if where.startswith("-") else None
    facts = {
        "message": message,
        "code": code,
        "kind": KINDS[code],
        "file": None if option or where.startswith("<") else where or None,
        "option": option or _option(error),
        "path": getattr(error, "path", "") or None,
        "findings": list(getattr(error, "findings", ())),
    }
    with suppress(OSError):
        print_json("error", {"error": facts})
