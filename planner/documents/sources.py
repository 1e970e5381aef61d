"""Where documents are found: by file, by the name of one that ships with the tool, or next to a plan made from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.server_parts import ServerParts
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.sparse_costs import SparseCosts
from treadle.planner.errors import InputError

D = TypeVar("D", bound=Document)
SHIPPED: Mapping[type[Document], str] = {
    Hardware: "profiles",
    Sketch: "sketches",
    CompressionCosts: "profiles/compression",
    SparseCosts: "profiles/sparse",
    ServerParts: "profiles/server",
    IndexModel: "profiles/index",
    store.TYPES["server-prices"]: "profiles/prices",
}
"""The folder of the documents of a kind that ship with the tool."""


def locate(kind: type[Document], name_or_path: str) -> Path:
    """The file meant by a shipped name or a path. Raises InputError where documents of the kind ship and none is it."""
    return resources.locate(SHIPPED[kind], name_or_path) if kind in SHIPPED else Path(name_or_path)


def load_named(kind: type[D], name_or_path: str) -> D:
    """The document meant by a shipped name or a path. Raises InputError where it is missing or malformed."""
    return store.load(locate(kind, name_or_path), kind)


def beside(place: Path | str, *names: str) -> str:
    """The first of `names` that is a file next to `place`; without one the first name, from the working directory."""
    near = (Path(place).parent / name for name in names)
    return next((str(path) for path in near if path.is_file()), names[0])


def input_beside(plan_path: Path | str, reference: InputRef) -> str:
    """The file that a plan was made from, by its path or its last part next to the plan, else from here."""
    return beside(plan_path, reference.file, Path(reference.file).name)


def find_input(
    role: str, kind: type[Document], reference: InputRef, plan_path: Path | str, given: str | None = None
) -> str:
    """The file of a plan's input: the given one, the one next to the plan, or a shipped one. Raises InputError."""
    if given is not None:
        return given
    found = input_beside(plan_path, reference)
    if Path(found).is_file():
        return found
    if kind in SHIPPED and "/" not in reference.file:
        shipped = resources.folder(SHIPPED[kind]) / f"{reference.file}.yaml"
        if shipped.is_file():
            return str(shipped)
    raise InputError(
        f"found no {role} {reference.file!r} next to the plan, expected it there or named with --{role}",
        where=str(plan_path),
    )
