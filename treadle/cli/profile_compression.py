"""`treadle profile measure --compression`: what compressing gradients costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner.documents import store
from treadle.planner.documents.quantities import parse_bytes, parse_list
from treadle.planner.documents.scalars import format_time
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
        f"curves of {found.costs.name}, fitted to medians",
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
