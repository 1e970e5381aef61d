"""How commands print: tables for people, JSON for programs, a live line only on a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from planner.errors import InputError

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def print_json(value: Any) -> None:
    """One JSON document on stdout, keys sorted."""
    click.echo(json.dumps(value, sort_keys=True, indent=1))


def note(message: str) -> None:
    """A line for people that must not mix with what a program reads: stderr."""
    click.echo(message, err=True)


def many(count: int, word: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def listed(names: list[str]) -> str:
    """The first three of `names`, and dots for more."""
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def require_apart(output: str, *inputs: str | None) -> None:
    """Raises InputError for an output that would replace one of the files that the command reads."""
    if not os.path.isfile(output):
        return
    for name in inputs:
        if name is not None and os.path.realpath(name) == os.path.realpath(output):
            raise InputError("found an input of this command, expected another file to write", where=output)


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that rewrites one line on a terminal's stderr, at most ten times a second.

    Off a terminal it prints nothing.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.1:
            last = now
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
