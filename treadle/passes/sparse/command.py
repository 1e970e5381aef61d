"""`treadle plan sparse`: how each sparse gradient is exchanged, or that it is better sent dense."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.options import Json, Nodes, document_option, hardware_option


def command(
    *,
    sparsity: Annotated[
        str | None, typer.Option(metavar="FILE", help="How sparse the gradients are, as recorded.")
    ] = None,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE", help="A problem written by hand, instead of a recording.")
    ] = None,
    hardware: Annotated[str | None, hardware_option("The machine, whose devices are the ranks.")] = None,
    nodes: Nodes = None,
    costs: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What kernels of sparse gradients cost. [default: shipped ones for the kind of device, if any]",
        ),
    ] = None,
    any_order: Annotated[
        bool,
        typer.Option(
            "--any-order",
            help="Sums may add the participants in another order than by their numbers, if all have the same sums.",
        ),
    ] = False,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan how each sparse gradient of data-parallel training is exchanged, or that it is sent dense.

    \b
      treadle plan sparse --sparsity sparsity.json --hardware cluster-25gbe --nodes 16 -o plan.json
      treadle plan sparse --problem problem.yaml -o plan.json

    All schemes are priced for every gradient: along a ring, a hierarchy or point to point, as a whole or in parts, even
    ones or hashed ones, and dense.
    """
    if (sparsity is None) == (problem is None):
        raise UsageError("give either --sparsity or --problem")
    if sparsity is not None and hardware is None:
        raise UsageError("--sparsity needs --hardware, for the links")
    if problem is not None and (hardware or nodes or costs):
        raise UsageError("--problem names its machine and its costs, so it goes without options for them")

    from treadle.passes.sparse.inputs import by_hand, from_sparsity
    from treadle.passes.sparse.words import describe, summary
    from treadle.planner.documents import store
    from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse

    if sparsity is not None and hardware is not None:
        given, inputs = from_sparsity(sparsity, hardware, nodes, costs)
    else:
        given, inputs = by_hand(problem or "")
    plan = plan_sparse(given, options=SparseOptions(any_order=any_order), inputs=inputs)
    store.save(plan, output)
    if as_json:
        print_json("plan-sparse", {**summary(plan), "plan": output})
    else:
        describe(plan)
        typer.echo(f"wrote {output}")
