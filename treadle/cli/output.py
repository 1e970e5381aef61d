"""How commands print: tables for people, JSON for programs, a live line only on a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import typer

from treadle.cli.json_output import print_json
from treadle.cli.verbosity import is_quiet
from treadle.planner.documents.files import read_text
from treadle.planner.documents.scalars import many
from treadle.planner.errors import CheckFailed, InputError, spelled

ERROR = "error"
ERASE = "\r\x1b[2K"
"""Erases the line of the cursor."""
DRAW_S, LOG_S = 0.1, 30.0
"""Least seconds between two states of a live line: on a terminal, and in a log."""
_drawn: list[str] = []
"""The states of a live line that a terminal shows; empty where none is to be erased."""


def note(message: str) -> None:
    """A line for people that must not mix with what a program reads: on stderr, and none with `-q`."""
    if not is_quiet():
        print_line(message)


def note_error(message: str) -> None:
    """The line of an error on stderr, which `-q` leaves in."""
    print_line(message, ERROR)


def print_line(message: str, label: str = "") -> None:
    """A line on stderr, if it can be written; a live line there goes on below it."""
    clear = ERASE if _drawn else ""
    start = f"{label}: " if label else ""
    if label and styled(sys.stderr):
        start = typer.style(start, fg="red", bold=True)
    with suppress(OSError):
        typer.echo(clear + start + printable(message), file=sys.stderr, color=True)


def styled(stream: TextIO) -> bool:
    """Whether text on `stream` has colours and weights: on a terminal, and where FORCE_COLOR asks for them, but not
    where NO_COLOR forbids them or TERM is `dumb`."""
    if os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that takes escape codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """`text` with control characters spelled out, so that it stays one line and changes no terminal."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in spelled(text))


def listed(names: list[str]) -> str:
    """The first three of `names`, and dots for more."""
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def require_same(output: Path, text: str, plans: Iterable[Path]) -> None:
    """Raises InputError where a sketch that would be proposed as `output` is there already and reads otherwise: it may
    be edited. A sketch that one of the older `plans` next to it was made with, unedited, may be replaced with
    that plan."""
    there = os.path.isfile(output) and os.path.getsize(output)
    if there and read_text(output) != text and not _was_proposed(output, plans):
        raise InputError(
            "found a sketch that differs from the one proposed here, which would replace it; rename it and give it to "
            "plans with --sketch, or remove it",
            where=str(output),
        )


def _was_proposed(sketch: Path, plans: Iterable[Path]) -> bool:
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef, Plan
    from treadle.planner.documents.sketch import Sketch

    try:
        reference = InputRef(file=sketch.name, digest=store.digest(store.load(sketch, Sketch)))
        return any(store.load(plan, Plan).inputs.get("sketch") == reference for plan in plans if plan.is_file())
    except InputError:
        return False


@contextmanager
def live_line(now: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """Yield a function that rewrites one line on a terminal's stderr, at most ten times a second.

    Off a terminal it prints a line each time that LOG_S seconds have passed since the last one. With `-q` it prints
    nothing. `now` gives seconds.
    """
    terminal, last = is_terminal(sys.stderr), now()
    if terminal:
        last -= DRAW_S

    def show(text: str) -> None:
        nonlocal last
        if is_quiet() or now() - last < (DRAW_S if terminal else LOG_S):
            return
        last = now()
        if not terminal:
            print_line(text)
            return
        _drawn[:] = [text]
        room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
        sys.stderr.write(f"{ERASE}{printable(text)[:room]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if _drawn:
            _drawn.clear()
            sys.stderr.write(ERASE)
            sys.stderr.flush()


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6` for (0, 1, 2, 3, 6)."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?(?: ?[a-zA-Z%/]+)?")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows, under a title if there is one; nothing without rows, `-` where a cell is empty.

    Columns of numbers, with units or without, are aligned on the right.
    """
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    cells = [["-" if cell in (None, "") else str(cell) for cell in row] for row in rows]
    for name, *column in zip(columns, *cells, strict=True):
        numbers = all(cell == "-" or NUMBER.fullmatch(cell) for cell in column)
        table.add_column(escape(name), justify="right" if numbers else "left")
    for row in cells:
        table.add_row(*map(escape, row))
    if title:
        print_rich(f"\n[bold]{escape(title)}[/]")
    print_rich(table)


def print_rich(what: object) -> None:
    """Print text with rich's markup, or a table, without blanks at the ends of lines."""
    from rich.console import Console

    # Off a terminal rich would fold everything into 80 columns.
    width = None if sys.stdout.isatty() else 240
    style = styled(sys.stdout)
    console = Console(
        file=sys.stdout,
        width=width,
        highlight=False,
        emoji=False,
        force_terminal=style,
        color_system="standard" if style else None,
    )
    with console.capture() as text:
        console.print(what)
    typer.echo("\n".join(line.rstrip() for line in text.get().splitlines()), color=True)


def print_run(schema: str, folder: Path, result: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    """Print `lines`, or `result` as JSON of that `schema`. Raises CheckFailed for the findings in it."""
    if as_json:
        print_json(schema, result)
    else:
        typer.echo("\n".join(lines))
    if findings := result["findings"]:
        raise CheckFailed(f"{folder}: the run broke {many(len(findings), 'promise')}", tuple(findings))


def require_good(rows: Sequence[Any], verdict: str) -> None:
    """Raises CheckFailed for compared rows that are wrong, which `verdict` calls ("are wrong")."""
    wrong = [row for row in rows if not row.good]
    if wrong:
        raise CheckFailed(
            f"{len(wrong)} of {len(rows)} results {verdict}",
            tuple(
                f"{row.program} {row.dtype} {row.op} {row.elements}: off by {row.max_error:.3g}, "
                f"allowed {row.tolerance:.3g}"
                for row in wrong
            ),
        )
