"""The one rule for a place where a file is already: what treadle wrote there is replaced, anything else is refused.

Its own files are recognised by what they hold, as no list of them is kept: a document by its `kind`, a profile, which
people write too, by its form, anything else by how treadle alone begins it or names itself in it.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.index_sets import IndexSets
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.errors import InputError

MARKS = {
    "page": rb'<meta name="generator" content="treadle">',
    "picture": rb'\A<svg font-family="sans-serif" stroke-linejoin="round" ',
    "timeline": rb'\A\{"displayTimeUnit": "ns", "traceEvents": \[',
    "memory snapshot": rb"written_by.{1,4}treadle",
    "SARIF file": rb'"driver": \{\s*"name": "treadle"',
    "table": rb"\Abudget_bytes,peak_bytes,time_ns,",
}
"""Kinds of files that are no documents: how those of treadle are recognised."""


PEOPLE_WRITE: dict[str, type[Document]] = {
    "hardware": Hardware,
    "compression-costs": CompressionCosts,
    "sparse-costs": SparseCosts,
    "cost-matrix": CostMatrix,
    "index-sets": IndexSets,
}
"""Kinds of measured documents that people write too: those of treadle have the form in which it writes them."""


def require_replaceable(path: Path | str, kind: str, inputs: Iterable[str | None] = ()) -> None:
    """Raises InputError where a file lies at `path` that is one of `inputs`, or that is no file of `kind` (of MARKS or
    of a document) that treadle wrote. An empty file, a device or a pipe may be written to, and so may a free place."""
    if not os.path.isfile(path):
        return
    require_apart(path, inputs)
    if not _is_own(path, kind):
        name = "profile" if kind == "hardware" else kind
        message = f"found a file that is no {name} of treadle and would be replaced; choose another name, or remove it"
        raise InputError(message, where=str(path))


def require_apart(path: Path | str, inputs: Iterable[str | None]) -> None:
    """Raises InputError where `path` is one of the files `inputs`."""
    for name in inputs:
        if name is not None and os.path.isfile(path) and os.path.realpath(name) == os.path.realpath(path):
            raise InputError("found an input of this command, expected another file to write", where=str(path))


def _is_own(path: Path | str, kind: str) -> bool:
    """Searched in the file as it lies there: of a large plan the kind stands far from both ends."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return True
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                own = _mark(kind).search(data) is not None
        return own and (kind not in PEOPLE_WRITE or _is_as_written(path, PEOPLE_WRITE[kind]))
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(path)) from error


def _is_as_written(path: Path | str, kind: type[Document]) -> bool:
    """Whether a document has the form in which treadle writes it: no comments, no lines in another order."""
    try:
        return store.text_in(path, store.load(path, kind)) == store.read_text(path)
    except InputError:
        return False


@cache
def _mark(kind: str) -> re.Pattern[bytes]:
    if kind in MARKS:
        return re.compile(MARKS[kind])
    name = re.escape(kind.encode())
    # a member of the outermost object: JSON on one line, JSON as treadle writes it, YAML
    return re.compile(
        rb'\A\s*\{[^\n]{0,200}"kind": ?"%b"|^ ?"kind": ?"%b"|^kind: ["\']?%b\b' % (name, name, name), re.M
    )
