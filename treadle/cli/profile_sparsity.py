"""`treadle profile sparsity`: index sets or a document of sparsity as tables, a document and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.json_output import print_json
from treadle.cli.output import note, print_table
from treadle.planner.documents import store
from treadle.planner.documents.index_sets import IndexSets
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparsity import Sparsity, TensorSparsity
from treadle.planner.errors import InputError

if TYPE_CHECKING:
    from treadle.report.page import Table


def show_sparsity(file: str, output: str | None, picture: str | None, as_json: bool) -> None:
    """Read index sets or a document of sparsity; write what is asked for, print tables or JSON."""
    found = load_sparsity(file)
    if output is not None:
        store.save(found, output)
        note(f"wrote {output}")
    if picture is not None:
        _draw(found, picture)
    if as_json:
        print_json("profile-sparsity", {"sparsity": json.loads(store.dumps(found))})
        return
    for table in tables(found):
        print_table(table.caption, table.head, table.rows)


def load_sparsity(file: str) -> Sparsity:
    """The sparsity in a file: its document, or that of the index sets there. Raises InputError for another file."""
    from treadle.probe.index_sets import is_archive, load_archive, recorded_in
    from treadle.probe.sparsity import sparsity_of

    if is_archive(file):
        return sparsity_of(load_archive(file))
    document = store.load_any(file)
    if isinstance(document, IndexSets):
        return sparsity_of(recorded_in(document))
    if not isinstance(document, Sparsity):
        kind = type(document).__struct_config__.tag
        raise InputError(f"found {kind!r}, expected 'sparsity' or 'index-sets'", where=file, path="$.kind")
    return document


def tables(sparsity: Sparsity) -> tuple[Table, ...]:
    """What is known of all tensors: sizes, densities of sums, fullest ranges, fullest blocks."""
    from treadle.probe.draw_sparsity import skews
    from treadle.report.page import Table

    tensors = sparsity.tensors
    sizes = tuple(
        (
            each.name,
            each.form,
            each.unit,
            f"{each.units:,}",
            f"{each.width:,}",
            str(each.sets),
            f"{each.occurrences:,}",
            f"{each.unions[0].mean:,}",
            _percent(each.unions[0].mean / each.units),
            "" if each.shared is None else f"{_percent(each.shared.mean)} ± {_percent(each.shared.deviation)}",
        )
        for each in tensors
    )
    columns = "tensor", "gradient", "unit", "units", "elements", "sets", "entries", "not zero", "density", "overlap"
    caption = f"sparse gradients of {sparsity.name}: {many(sparsity.ranks, 'rank')}, {many(sparsity.steps, 'step')}"
    skewed = [{parts: f"{_times(one)} {_times(all_)}" for parts, one, all_ in skews(each)} for each in tensors]
    blocks = [_blocks(each) for each in tensors]
    return (
        Table(columns, sizes, caption),
        _by_number("density of the sum of as many participants, and times that of one", tensors, _densities),
        _by_number(
            "the fullest of as many even ranges, times the mean: of one participant, of the sum", tensors, skewed
        ),
        _by_number("non-zero blocks of the fullest range: of one participant, of the sum", tensors, blocks),
    )


def _by_number(
    caption: str,
    tensors: tuple[TensorSparsity, ...],
    cells: list[dict[int, str]] | Callable[[TensorSparsity], dict[int, str]],
) -> Table:
    """A row for each tensor, a column for each number that any of them has a cell of."""
    from treadle.report.page import Table

    rows = cells if isinstance(cells, list) else [cells(each) for each in tensors]
    numbers = sorted({number for row in rows for number in row})
    body = tuple(
        (each.name, *(row.get(number, "") for number in numbers)) for each, row in zip(tensors, rows, strict=True)
    )
    return Table(("tensor", *map(str, numbers)), body if numbers else (), caption)


def _densities(tensor: TensorSparsity) -> dict[int, str]:
    one = tensor.unions[0].mean
    return {
        each.participants: _percent(each.mean / tensor.units) + (f" {each.mean / one:.3g}x" if one else "")
        for each in tensor.unions
    }


def _blocks(tensor: TensorSparsity) -> dict[int, str]:
    """By number of ranges: the shares of blocks that are sent by one participant, and of the sum."""
    found: dict[int, dict[int, str]] = {}
    for each in tensor.blocks:
        whole = -(-_longest(tensor.units, each.parts) // each.block)
        found.setdefault(each.parts, {})[each.participants] = _percent(min(1.0, each.mean / whole))
    return {parts: f"{row.get(1, '-')} {row[max(row)]}" for parts, row in found.items()}


def _longest(units: int, parts: int) -> int:
    """Units of the longest of even ranges."""
    return -(-units // parts)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _draw(found: Sparsity, picture: str) -> None:
    from treadle.planner.documents.files import write_text
    from treadle.probe.draw_sparsity import drawn_tensors, sparsity_page, sparsity_svg
    from treadle.report.page import render

    if Path(picture).suffix != ".svg":
        write_text(picture, render(sparsity_page(found, tables(found))))
        note(f"wrote {picture}")
        return
    shown = drawn_tensors(found)
    write_text(picture, sparsity_svg(shown))
    rest = len(found.tensors) - len(shown)
    note(f"wrote {picture}" + (f"; {many(rest, 'smaller tensor')} left out, which a page has" if rest else ""))
