"""The options that several commands share, as types and as functions that take the help text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli.completion import profiles
from treadle.planner.documents.quantities import parse_bytes
from treadle.planner.errors import InputError

FORMATS = frozenset(
    (".html", ".htm", ".json", ".yaml", ".yml", ".pdf", ".png", ".jpg", ".gif", ".svg", ".xml", ".csv", ".txt", ".py")
)
"""Endings that say what is in a file."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Number of nodes. [default: the profile's]")]


def hardware_option(help: str) -> Any:
    """`--hardware`, a profile: a shipped name, a file, or `local` for this machine."""
    return typer.Option("--hardware", metavar="NAME|FILE", autocompletion=profiles, help=help)


def size_option(name: str, help: str, *, least: int = 0) -> Any:
    """A size in bytes, such as 64K or 1MiB."""
    return typer.Option(name, metavar="SIZE", help=help, parser=partial(parse_bytes, least=least, where=name))


def seconds(name: str, help: str) -> Any:
    """A positive number of seconds."""
    return typer.Option(name, metavar="SECONDS", help=help, parser=positive)


def time_limit_option(help: str) -> Any:
    """`--time-limit`, which counts from the start of the process."""
    return seconds("--time-limit", help)


def positive(text: str) -> float:
    """A number above 0. Raises BadParameter for anything else."""
    try:
        number = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None
    if not number > 0:
        raise typer.BadParameter(f"{text} is not in the range x>0.")
    return number


def choice(names: Sequence[str], name: str, help: str) -> Any:
    """One of `names`, where they are not written out as a `Literal`, or where the option may be repeated."""
    return typer.Option(
        name,
        metavar=f"<{'|'.join(names)}>",
        help=help,
        parser=partial(one_of, names),
        autocompletion=lambda: list(names),
    )


def one_of(names: Sequence[str], text: str) -> str:
    """`text`, which must be one of `names`. Raises BadParameter for anything else."""
    if text not in names:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, names))}.")
    return text


def document_option(help: str, metavar: str = "FILE") -> Any:
    """`--output`, a document to write; with another metavar also a folder of documents."""
    return written("-o", "--output", help=help, endings=(".json", ".yaml", ".yml"), metavar=metavar)


def folder_option(help: str) -> Any:
    """`--output`, a folder to write into."""
    return written("-o", "--output", help=help, metavar="DIR")


def written(*names: str, help: str, endings: tuple[str, ...] = (), metavar: str = "FILE") -> Any:
    """A file or folder to write: in a folder that exists, and without the ending of another format.

    Checked with the options, so before anything is read, planned or written.
    """
    return typer.Option(*names, metavar=metavar, help=help, parser=_writable(names[-1], endings))


def _writable(where: str, endings: tuple[str, ...]) -> Callable[[str], str]:
    def check(text: str) -> str:
        path = Path(text)
        if not path.parent.is_dir():
            raise InputError(f"found no folder {str(path.parent)!r} to write {path.name!r} into", where=where)
        if endings and path.suffix in FORMATS and path.suffix not in endings:
            *first, last = endings
            expected = " or ".join([", ".join(first), last] if first else [last])
            raise InputError(f"found {text!r}, expected a file that ends in {expected}", where=where)
        return text

    return check
