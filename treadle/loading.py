"""Documents of any kind from files, for scripts and notebooks."""

from __future__ import annotations

from pathlib import Path

from treadle.planner.documents.scalars import Document
from treadle.planner.documents.store import load_any


def load(path: str | Path) -> Document:
    """The document in the file `path`, whatever its kind; a notebook draws plans and traces.

    Raises InputError for a file that is none.
    """
    return load_any(str(path))
