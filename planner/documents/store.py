"""Every document kind in one place: load, validate, digest and save.

A document is a msgspec struct with `kind` and `version`. People write YAML or JSON (`//` comment lines allowed), the
tool writes canonical JSON. A malformed file raises InputError with one line:
`FILE: $.path: found X, expected Y`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

import msgspec

from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.explain import found, misfit, refusal
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.documents.index_sets import IndexSets
from treadle.planner.documents.job import Job
from treadle.planner.documents.nearest import meant
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.printable import require_printable
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.server_parts import ServerParts
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.documents.sparsity import Sparsity
from treadle.planner.documents.taccl_files import adapted
from treadle.planner.documents.trace import Trace
from treadle.planner.documents.yaml_text import to_yaml
from treadle.planner.errors import InputError
from treadle.planner.passes import rooms

D = TypeVar("D", bound=Document)
log = logging.getLogger("treadle")

_OWN: tuple[type[Document], ...] = (
    *(Trace, Hardware, Sketch, Pattern, Plan, Selection, Job, Artefact),
    *(CompressionCosts, CostMatrix, IndexModel, IndexSets, ServerParts, Sparsity, SparseCosts),
)
TYPES: dict[str, type[Document]] = {
    str(kind.__struct_config__.tag): kind for kind in (*_OWN, *(kind for room in rooms() for kind in room.documents))
}
"""Every kind of document by its name: those of the tool, and those that passes add."""
VERSIONS: dict[str, int] = {name: sys.modules[kind.__module__].VERSION for name, kind in TYPES.items()}
_SECTIONS = [(room.name, room.job) for room in rooms() if room.job is not None]
FORMS: dict[type[Document], Any] = {
    Plan: Plan[reduce(or_, (room.decisions for room in rooms()))],  # type: ignore[misc]
    Job: msgspec.defstruct(
        "Job",
        [(name, kind, None) if isinstance(kind, UnionType) else (name, kind) for name, kind in _SECTIONS],
        bases=(Job,),
        frozen=True,
        kw_only=True,
    ),
}
"""What msgspec converts to where a kind alone does not say it: a plan has the decisions of any pass, a job the sections
of all."""

LINE = 120


def load(path: Path | str, expect: type[D]) -> D:
    """Read the document at `path`, which must be of type `expect`.

    Raises InputError naming the file and the place for anything else.
    """
    document = loads(read_text(path), str(path), expect)
    log.info("read %s: %s", path, expect.__struct_config__.tag)
    return document


def loads(text: str, where: str, expect: type[D]) -> D:
    """Parse and validate `text`; `where` is how errors call it."""
    raw = adapted(parse(text, where), where)
    wanted = expect.__struct_config__.tag
    kind = kind_of(raw, where)
    if kind != wanted:
        raise InputError(f"found {found(kind)}, expected {wanted!r}", where=where, path="$.kind")
    return _convert(raw, text, where, expect)


def load_any(path: Path | str) -> Document:
    """Read a document of whatever kind it says it is."""
    where = str(path)
    text = read_text(path)
    raw = adapted(parse(text, where), where)
    kind = kind_of(raw, where)
    log.info("read %s: %s", where, kind)
    return _convert(raw, text, where, TYPES[kind])


def kind_of(raw: Any, where: str) -> str:
    """The `kind` of parsed values, one of TYPES, after its version was found readable."""
    if not isinstance(raw, dict):
        raise InputError(f"found {found(raw)}, expected an object with `kind` and `version`", where=where, path="$")
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in TYPES:
        seen = found(kind) if "kind" in raw else "nothing"
        raise InputError(f"found {seen}, {meant(str(kind), sorted(TYPES))}", where=where, path="$.kind")
    version = raw.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSIONS[kind]:
        raise InputError(
            f"found {kind} version {found(version)}, expected at most {VERSIONS[kind]}; "
            "a newer treadle wrote it, upgrade to read it",
            where=where,
            path="$.version",
        )
    return kind


def dumps(document: Document) -> str:
    """Canonical JSON: sorted keys, an object or array on one line where that is at most 120 wide, final newline.

    Equal documents give equal text: a typed number has one spelling (1.0 where the field is a fraction, even where the
    file or the program said 1). Free fields (arguments of operators, options) keep the difference between 1 and 1.0.
    """
    typed = _typed(msgspec.to_builtins(document), f"<{type(document).__struct_config__.tag}>", type(document))
    return _layout(msgspec.to_builtins(typed, order="sorted"), "") + "\n"


def digest(document: Document) -> str:
    """`sha256:` digest of the canonical form."""
    return "sha256:" + hashlib.sha256(dumps(document).encode()).hexdigest()


def save(document: Document, path: Path | str) -> None:
    """Write `document`, whole or not at all: YAML into `.yaml` and `.yml`, else its canonical form.

    What `load` would refuse raises InputError.
    """
    text = text_in(path, document)
    loads(text, str(path), type(document))
    write_text(path, text)


def text_in(path: Path | str, document: Document) -> str:
    """What `save` writes into the file `path`."""
    text = dumps(document)
    return to_yaml(json.loads(text)) if Path(path).suffix in (".yaml", ".yml") else text


def _convert(raw: Any, text: str, where: str, expect: type[D]) -> D:
    document = _typed(raw, where, expect)
    require_printable(raw, text, where)
    _require_sound(document, where)
    return document


def _typed(raw: Any, where: str, expect: type[D]) -> D:
    form = FORMS.get(expect, expect)
    try:
        document: D = msgspec.convert(raw, form, strict=True)
        return document
    except msgspec.ValidationError as error:
        path, seen, expected = misfit(raw, form) or ("$", f"a value out of place ({error})", "a valid document")
        raise InputError(refusal(seen, expected), where=where, path=path) from error


def _require_sound(document: Document, where: str) -> None:
    for path, seen, expected in document.problems():
        raise InputError(f"found {seen}, expected {expected}", where=where, path=path)


_one_line = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode


def _layout(value: Any, indent: str) -> str:
    if not isinstance(value, dict | list | tuple):
        return _one_line(value)
    if not _is_wide(value):
        line = _one_line(value)
        if len(indent) + len(line) <= LINE:
            return line
    inner = indent + " "
    if isinstance(value, dict):
        rows = [f"{inner}{_one_line(key)}: {_layout(item, inner)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if value and not _nested(value):
        rows = [inner + number for number in _one_line(value)[1:-1].split(", ")]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return (
        "[\n"
        + (_number_rows(value, inner) or ",\n".join(inner + _layout(item, inner) for item in value))
        + f"\n{indent}]"
    )


def _is_wide(value: Any) -> bool:
    """Whether `value` cannot stand on one line, as far as that is seen without writing it."""
    if isinstance(value, dict):
        return any(map(_is_wide, value.values()))
    return isinstance(value, list | tuple) and (3 * len(value) > LINE or any(map(_is_wide, value)))


def _number_rows(rows: list[Any] | tuple[Any, ...], inner: str) -> str:
    """Rows of numbers, the bulk of every long document, written all at once; nothing for other rows."""
    if not all(isinstance(row, list) and row and not _nested(row) for row in rows):
        return ""
    lines = _one_line(rows)[2:-2].split("], [")
    return ",\n".join(f"{inner}[{line}]" for line in lines) if max(map(len, lines)) + len(inner) + 2 <= LINE else ""


def _nested(row: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(item, str | dict | list | tuple) for item in row)


__all__ = [
    "FORMS",
    "TYPES",
    "VERSIONS",
    "Document",
    "digest",
    "dumps",
    "kind_of",
    "load",
    "load_any",
    "loads",
    "parse",
    "read_text",
    "save",
    "write_text",
]
