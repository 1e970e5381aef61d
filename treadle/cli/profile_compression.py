"""`treadle profile` for what compressing gradients costs: measure it on this machine, list and show what ships."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts, Point
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.quantities import parse_bytes, parse_list
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.probe.curve_fit import CurveFit, SizeResidual


def measure_compression_costs(
    names: Sequence[str], sizes: str | None, together: int | None, output: str | None, as_json: bool
) -> None:
    """Measure, write the costs, print fits and residuals; where ranks measure together, on the first one only."""
    from treadle.probe.measure_compression import measure_compression

    words = ["treadle profile measure", *(f"--compression {name}" for name in names)]
    words += [] if sizes is None else [f"--sizes {sizes}"]
    words += [] if together is None else [f"--together {together}"]
    found_sizes = None if sizes is None else parse_list(sizes, partial(parse_bytes, where="--sizes"))
    with live_line() as show:
        found = measure_compression(
            names, found_sizes, together, " ".join(words), on_step=lambda text: show(f"measuring {text}")
        )
    if found is None:
        return
    if found.doubt:
        note(f"{found.doubt}; so may be predictions, measure again on an idle machine")
    if output is not None:
        store.save(found.costs, output)
        note(f"wrote {output}")
    if as_json:
        facts = {"costs": json.loads(store.dumps(found.costs)), "fits": {k: _facts(v) for k, v in found.fits.items()}}
        print_json("profile-measure-compression", facts)
        return
    print_table(
        f"curves of {found.costs.name}",
        ("what", "smallest size", "largest size", "points", "relative error", "residuals by size, %"),
        [
            (
                name,
                _time_at(fit.rows[0]),
                _time_at(fit.rows[-1]),
                len(fit.points),
                f"{fit.error:.1%}",
                " ".join(f"{100 * row.residual:+.0f}" for row in fit.rows),
            )
            for name, fit in found.fits.items()
        ],
    )
    note("sizes are elements of float32, of collectives the bytes that each rank brings along")
    note("payloads have the bytes that plans count with")


def shipped_costs() -> list[tuple[str, CompressionCosts]]:
    """Name and document of the costs that ship with treadle."""
    return [(name, load_named(CompressionCosts, name)) for name in resources.names(SHIPPED[CompressionCosts])]


def list_costs() -> None:
    """Print the costs that ship with treadle, below the profiles."""
    print_table(
        "costs of gradient compression",
        ("name", "machine", "compressors", "places"),
        [
            (
                name,
                costs.name,
                ", ".join(dict.fromkeys(each.name for each in costs.compressors)),
                ", ".join(dict.fromkeys(each.place for each in costs.compressors)),
            )
            for name, costs in shipped_costs()
        ],
    )


def costs_named(name: str) -> CompressionCosts | None:
    """The costs of a shipped name or a file; None for the name or file of something else."""
    path = Path(name)
    is_file = path.is_file() and store.kind_of(parse(store.read_text(path), name), name) == "compression-costs"
    shipped = name in resources.names(SHIPPED[CompressionCosts])
    return load_named(CompressionCosts, name) if shipped or is_file else None


def show_costs(costs: CompressionCosts, as_json: bool) -> None:
    """Print the curves with their sources."""
    if as_json:
        print_json("profile-show-compression", {"costs": json.loads(store.dumps(costs))})
        return
    rows: list[tuple[str, str, str]] = []
    for cost in costs.compressors:
        rows.append((f"encode {cost.name}", cost.place, _points(cost.encode.points)))
        rows += [
            (f"decode {many(each.pieces, 'payload')} of {cost.name}", cost.place, _points(each.points))
            for each in cost.decode
        ]
    if costs.pack is not None:
        rows.append(("copy into one buffer", "device", _points(costs.pack.points)))
    rows += [
        (f"{each.routine}, {many(each.ranks, 'rank')}", each.scope, _points(each.curve.points))
        for each in costs.routines
    ]
    columns = ("what", "where", "time at size, constant below the first and linear between")
    print_table(f"costs of gradient compression: {costs.name}", columns, rows)
    print_table("where the numbers come from", ("what", "source"), sorted(costs.sources.items()))


def _points(points: Sequence[Point]) -> str:
    return ", ".join(f"{size:,}: {format_time(ns)}" for size, ns in points)


def _time_at(row: SizeResidual) -> str:
    return f"{row.size:,}: {format_time(row.fitted_ns)}"


def _facts(fit: CurveFit) -> dict[str, object]:
    return {
        "points": fit.points,
        "error": round(fit.error, 4),
        "sizes": [
            {
                "size": row.size,
                "measured_ns": round(row.measured_ns),
                "fitted_ns": row.fitted_ns,
                "residual": round(row.residual, 4),
            }
            for row in fit.rows
        ],
    }
