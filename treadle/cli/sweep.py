"""The folder of a sweep, which a later sweep may replace: plans, and the file that marks it as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from treadle.planner.errors import InputError


def older_plans(folder: Path, mark: str, listed: Callable[[], Iterable[str]]) -> set[str]:
    """The plans, by `listed`, of an older sweep in the folder, which `mark` lies in.

    Other files stay in the folder. Raises InputError where it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("found a file, expected a folder to write into", where=str(folder))
    return set(listed()) if (folder / mark).is_file() else set()


def remove_plans(folder: Path, names: Iterable[str]) -> None:
    """Remove plans of an older sweep that the new one did not replace."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def print_written(names: list[str], folder: str) -> None:
    """Print what a sweep wrote."""
    typer.echo(f"wrote {', '.join(names[:-1])} and {names[-1]} to {folder}")
