"""`treadle profile` for what the kernels of sparse gradients cost: measure it on this machine, list and show what
ships."""

from __future__ import annotations

import json
from pathlib import Path

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import format_time
from treadle.planner.documents.sources import SHIPPED, load_named
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork

FOLDER = SHIPPED[SparseCosts]


def measure_sparse_costs(output: str | None, as_json: bool) -> None:
    """Measure, write the costs, print rates and residuals."""
    from treadle.probe.measure_sparse import measure_sparse

    with live_line() as show:
        found = measure_sparse("treadle profile measure --sparse", on_step=lambda text: show(f"measured {text}"))
    if found.doubt:
        note(f"{found.doubt}; so may be predictions, measure again on an idle machine")
    if output is not None:
        store.save(found.costs, output)
        note(f"wrote {output}")
    if as_json:
        rows = [
            {"work": each.work, "what": each.what, "measured_ns": round(each.ns), "residual": round(row.residual, 4)}
            for row in found.rows
            for each in (row.experiment,)
        ]
        print_json("profile-measure-sparse", {"costs": json.loads(store.dumps(found.costs)), "experiments": rows})
        return
    _print_rates(found.costs)
    print_table(
        "experiments",
        ("work", "on", "measured", "fitted", "residual"),
        [
            (
                row.experiment.work,
                row.experiment.what,
                format_time(round(row.experiment.ns)),
                format_time(round(row.fitted_ns)),
                f"{row.residual:+.0%}",
            )
            for row in found.rows
        ],
    )


def shipped_sparse_costs() -> list[tuple[str, SparseCosts]]:
    """Name and document of the costs that ship with treadle."""
    return [(name, load_named(SparseCosts, name)) for name in resources.names(FOLDER)]


def list_sparse_costs() -> None:
    """Print the costs that ship with treadle."""
    print_table(
        "costs of sparse gradients", ("name", "machine"), [(name, costs.name) for name, costs in shipped_sparse_costs()]
    )


def sparse_costs_named(name: str) -> SparseCosts | None:
    """The costs in a file, or of a shipped name that `sparse/` precedes; None for the name or file of something
    else."""
    path, shipped = Path(name), name.removeprefix("sparse/")
    if path.is_file():
        is_costs = store.kind_of(parse(store.read_text(path), name), name) == "sparse-costs"
        return load_named(SparseCosts, name) if is_costs else None
    return load_named(SparseCosts, shipped) if shipped != name and shipped in resources.names(FOLDER) else None


def show_sparse_costs(costs: SparseCosts, as_json: bool) -> None:
    """Print the rates with their sources."""
    if as_json:
        print_json("profile-show-sparse", {"costs": json.loads(store.dumps(costs))})
        return
    _print_rates(costs)
    print_table("where the numbers come from", ("what", "source"), sorted(costs.sources.items()))


def _print_rates(costs: SparseCosts) -> None:
    rates = [(_words(name), getattr(costs.work, name)) for name in SparseWork.__struct_fields__]
    print_table(f"costs of sparse gradients: {costs.name}", ("what", "ns"), [(name, f"{ns:g}") for name, ns in rates])


def _words(rate: str) -> str:
    return rate.replace("_", " ")
