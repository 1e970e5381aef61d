"""Where the files that ship with the tool lie: inside the wheel, or at the root of a checkout."""

from __future__ import annotations

from pathlib import Path

from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError

_HERE = Path(__file__).resolve().parent
_PACKAGED = _HERE / "_data"
_ROOT = _PACKAGED if _PACKAGED.is_dir() else _HERE.parent


def folder(kind: str) -> Path:
    """The folder of `templates`, `sketches`, `profiles` or `examples`."""
    return _ROOT / kind


def names(kind: str) -> list[str]:
    """Names of the shipped files of `kind`, sorted, without their suffix."""
    return sorted(path.stem for path in folder(kind).glob("*.yaml"))


def locate(kind: str, name_or_path: str) -> Path:
    """The file meant by a shipped name or a path.

    A name without a suffix and without a slash is looked up among the shipped files first.
    Raises InputError for a name that is neither a shipped file nor one of the current folder.
    """
    shipped = folder(kind) / f"{name_or_path}.yaml"
    if "/" not in name_or_path and shipped.is_file():
        return shipped
    path = Path(name_or_path)
    if path.is_file() or "/" in name_or_path:
        return path
    known = meant(path.stem, names(kind))
    raise InputError(f"no such file, and not one of the shipped {kind}; {known}", where=name_or_path)
