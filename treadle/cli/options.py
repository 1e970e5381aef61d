"""The options that several commands share, as types and as functions that take the help text."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli.completion import profiles
from treadle.cli.lazy import UsageError
from treadle.cli.overwrite import Output, OutputKind
from treadle.planner.documents.nearest import unknown
from treadle.planner.documents.quantities import parse_bytes
from treadle.planner.errors import InputError

FORMATS = frozenset(
    (".html", ".htm", ".json", ".yaml", ".yml", ".pdf", ".png", ".jpg", ".gif", ".svg", ".xml", ".csv", ".txt", ".py")
)
"""Endings that say what is in a file."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
LONGEST_S = 1e6
"""The most seconds that an option takes, 11 days: more overflows the clocks of solvers and of the operating system."""


def hardware_option(help: str) -> Any:
    """`--hardware`, a profile: a shipped name, a file, or `local` for this machine."""
    return typer.Option("--hardware", metavar="NAME|FILE", autocompletion=profiles, help=help)


def size_option(name: str, help: str, *, least: int = 0) -> Any:
    """A size in bytes, such as 64K or 1MiB."""
    return typer.Option(name, metavar="SIZE", help=help, parser=partial(parse_bytes, least=least, where=name))


def seconds(name: str, help: str) -> Any:
    """A positive number of seconds, `LONGEST_S` at most."""
    return _number(float, (name,), "SECONDS", help, lambda x: 0 < x <= LONGEST_S, f"0<x<={LONGEST_S:.0f}")


def positive(help: str, *, most: float | None = None) -> Any:
    """A finite number above 0, of at most `most`."""
    span = "x>0" if most is None else f"0<x<={most:.0f}"
    return _number(float, (), "NUMBER", help, lambda x: 0 < x < math.inf and (most is None or x <= most), span)


def percent(help: str) -> Any:
    """A number from 0 to 100."""
    return _number(float, (), "PERCENT", help, lambda x: 0 <= x <= 100, "0<=x<=100")


def share(help: str) -> Any:
    """A number from 0 to 1, or percent: `5%`."""
    return _number(_of_one, (), "SHARE", help, lambda x: 0 <= x <= 1, "0<=x<=1", "such as 5% or 0.05")


def _of_one(text: str | float) -> float:
    """A default comes as the number that it is."""
    return float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)


def whole(help: str, *, least: int, most: int | None = None) -> Any:
    """A whole number from `least` to `most`."""
    span = f"x>={least}" if most is None else f"{least}<=x<={most}"
    return _number(int, (), "N", help, lambda x: x >= least and (most is None or x <= most), span)


def _number(
    kind: Callable[[str], float],
    names: tuple[str, ...],
    metavar: str,
    help: str,
    inside: Callable[[Any], bool],
    span: str,
    example: str = "",
) -> Any:
    """A number inside a span, which the help shows. Its parser raises BadParameter for anything else, with the
    example."""
    such = f", {example}" if example else ""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a {'whole ' if kind is int else ''}number{such}.") from None
        if not inside(number):
            raise typer.BadParameter(f"{text} is not in the range {span}{such}.")
        return number

    return typer.Option(*names, metavar=metavar, help=f"{help} [{span}]", parser=parse)


Nodes = Annotated[int | None, whole("Number of nodes. [default: the profile's]", least=1)]


def time_limit_option(help: str) -> Any:
    """`--time-limit`, which counts from the start of the process."""
    return seconds("--time-limit", help)


def measure_option(help: str) -> Any:
    """`--measure`: choices that a model ranks best are measured, and the fastest is taken."""
    return typer.Option("--measure", help=help)


DEFAULT_TOP = 6
MOST_TOP = 1_000_000
"""More choices than there are anywhere; a plan records the number."""
Top = Annotated[
    int | None,
    whole(
        f"With --measure: how many of the best predicted are measured. [default: {DEFAULT_TOP}]",
        least=1,
        most=MOST_TOP,
    ),
]
"""`--top`, which belongs to `measure_option`."""


def top_of(measure: bool, top: int | None, default: int = DEFAULT_TOP) -> int:
    """How many choices are measured: none without `--measure`. Raises UsageError for --top without it."""
    if top is not None and not measure:
        raise UsageError("--top belongs to --measure")
    return (top or default) if measure else 0


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
        raise typer.BadParameter(unknown(text, names))
    return text


def document_option(kind: OutputKind, help: str, metavar: str = "FILE") -> Any:
    """`--output`, a document of `kind` to write; with another metavar also a folder of documents."""
    return written("-o", "--output", kind=kind, help=help, endings=(".json", ".yaml", ".yml"), metavar=metavar)


def folder_option(help: str, name: str = "--output") -> Any:
    """A folder to write into: `--output`, or another option."""
    check = _writable(name, ())

    def parse(text: str) -> str:
        if Path(text).exists() and not Path(text).is_dir():
            raise InputError(f"found {text!r}, which is a file, expected a folder", where=name)
        return check(text)

    names = ("-o", name) if name == "--output" else (name,)
    return typer.Option(*names, metavar="DIR", help=help, parser=parse)


def written(*names: str, kind: OutputKind, help: str, endings: tuple[str, ...] = (), metavar: str = "FILE") -> Any:
    """A file of `kind` or a folder to write: in a folder that exists, and without the ending of another format.

    Checked with the options, so before anything is read, planned or written; `with_overwrite_rule` checks what is there
    already.
    """
    check = _writable(names[-1], endings)

    def parse(text: str) -> Output:
        if metavar == "FILE" and Path(text).is_dir() and text:
            raise InputError("found a folder, expected a file to write", where=text)
        output = Output(check(text))
        output.kind = "picture" if text.endswith(".svg") else kind
        return output

    return typer.Option(*names, metavar=metavar, help=help, parser=parse)


def _writable(where: str, endings: tuple[str, ...]) -> Callable[[str], str]:
    def check(text: str) -> str:
        path = Path(text)
        if not text:
            raise InputError("found an empty name, expected a file or folder to write", where=where)
        if not path.parent.is_dir():
            raise InputError(f"found no folder {str(path.parent)!r} to write {path.name!r} into", where=where)
        if endings and path.suffix in FORMATS and path.suffix not in endings:
            *first, last = endings
            expected = " or ".join([", ".join(first), last] if first else [last])
            raise InputError(f"found {text!r}, expected a file that ends in {expected}", where=where)
        _require_room(path, where)
        return text

    return check


def _require_room(path: Path, where: str) -> None:
    """Raises InputError where no file can be made next to `path`, or in it where it is a folder."""
    from tempfile import TemporaryFile

    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or pipe, which is written to
        return
    folder = path if path.is_dir() else Path(os.path.realpath(path)).parent
    if not folder.is_dir():  # a link to a place whose folder is made
        return
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"no file can be made in the folder {str(folder)!r}: {reason}", where=where) from error
