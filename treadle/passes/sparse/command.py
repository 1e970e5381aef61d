"""`treadle plan sparse`: how each sparse gradient is exchanged, or that it is better sent dense."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError
from treadle.cli.limit import clock_of, note_ending
from treadle.cli.options import Json, Nodes, Top, document_option, hardware_option, measure_option, top_of
from treadle.cli.output import live_line, print_table
from treadle.cli.tuned_lines import note_unmeasured, print_tuned, tuned_facts
from treadle.planner.documents.scalars import format_bytes, format_time, many

if TYPE_CHECKING:
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions

FEW = 3
"""With more gradients than this, only the largest is shown with all schemes."""
MOST = 20
"""The most gradients that are listed."""
ORDERS = {"tree": "sums in the order of a tree", "ring": "sums in the order of a ring", "none": "sums differ"}
"""Why a scheme is not allowed, by the order in which its sums add the participants."""


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
    measure: Annotated[
        bool,
        measure_option(
            "Time the cheapest schemes of each gradient here, with a process for each rank, and take the fastest."
        ),
    ] = False,
    top: Top = None,
    output: Annotated[str, document_option("plan", "The plan to write.")],
    as_json: Json = False,
) -> None:
    """Plan how each sparse gradient of data-parallel training is exchanged, or that it is sent dense.

    \b
      treadle plan sparse --sparsity sparsity.json --hardware cluster-25gbe --nodes 16 -o plan.json
      treadle plan sparse --problem problem.yaml -o plan.json

    Every scheme is priced for every gradient: along a ring, a hierarchy or point to point, as a whole or in parts, even
    ones or hashed ones, and dense. The cheapest is taken whose sums add the participants by their numbers.
    """
    if (sparsity is None) == (problem is None):
        raise UsageError("give either --sparsity or --problem")
    if sparsity is not None and hardware is None:
        raise UsageError("--sparsity needs --hardware, for the links")
    if problem is not None and (hardware or nodes or costs):
        raise UsageError("--problem names its machine and its costs, so it goes without options for them")
    count, clock = top_of(measure, top), clock_of(None)

    from treadle.passes.sparse.inputs import by_hand, from_sparsity
    from treadle.passes.sparse.words import summary
    from treadle.planner.documents import store
    from treadle.planner.passes.sparse.planning import SparseOptions, plan_sparse

    if sparsity is not None and hardware is not None:
        given, inputs = from_sparsity(sparsity, hardware, nodes, costs)
    else:
        given, inputs = by_hand(problem or "")
    if count:
        from treadle.runtime.sparse.trials import sparse_measuring
        from treadle.runtime.trial_ranks import priced_here

        machine = priced_here(given.ranks, given.name, hardware, nodes)
    with (
        live_line() as show,
        sparse_measuring(given, count, machine, clock, show) if count else nullcontext() as measuring,
    ):
        if count and measuring is None:  # another rank than the first
            return
        plan = plan_sparse(given, options=SparseOptions(any_order, measuring), clock=clock, inputs=inputs)
    store.save(plan, output)
    note_ending(plan.provenance, None)
    if measure:
        note_unmeasured(plan)
    if as_json:
        print_json("plan-sparse", {**summary(plan), "tuned": tuned_facts(plan), "plan": output})
    else:
        describe(plan)
        print_tuned(plan)
        typer.echo(f"wrote {output}")


def describe(plan: Plan[SparseDecisions]) -> None:
    """Print the figures of the plan, its gradients, and all schemes of a few of them."""
    from treadle.passes.sparse.words import any_order_ns, faster_in_any_order, sent_bytes
    from treadle.planner.passes.sparse.decided import cost_of

    decisions, proof = plan.decisions, plan.certificate
    problem = decisions.problem
    ranks = f"{many(problem.machines, 'node')} of {many(problem.devices, 'rank')}"
    faster = f"{decisions.dense_ns / max(1, decisions.time_ns):.2f}x"
    sent, dense = sent_bytes(decisions), sent_bytes(decisions, "dense")
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    rows = [
        ("gradients", f"{len(problem.gradients)}, exchanged by {ranks}"),
        ("exchange", f"{format_time(decisions.time_ns)} predicted, {format_time(decisions.dense_ns)} dense ({faster})"),
        ("sent", f"{format_bytes(sent)} between nodes by the busiest rank, {format_bytes(dense)} dense"),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
    ]
    if other := faster_in_any_order(decisions):
        names = ", ".join(dict.fromkeys(other.values()))
        would = f"{format_time(any_order_ns(decisions))} with --any-order"
        rows.append(("other order", f"{would}: {names} for {many(len(other), 'gradient')}"))
    for name, text in rows:
        typer.echo(f"{name:<13}{text}")
    _print_gradients(plan)
    largest = sorted(decisions.gradients, key=lambda each: -cost_of(each, "dense").time_ns)
    shown = {each.name for each in (decisions.gradients if len(largest) <= FEW else largest[:1])}
    for place, each in enumerate(decisions.gradients):
        if each.name in shown:
            _print_schemes(decisions, each, place)


def _print_gradients(plan: Plan[SparseDecisions]) -> None:
    """A table of all gradients, or of those that take longest dense."""
    from treadle.passes.sparse.words import density, planned
    from treadle.planner.passes.sparse.decided import cost_of
    from treadle.planner.passes.sparse.theorem import overlap_of

    decisions, problem, rows = plan.decisions, plan.decisions.problem, []
    pairs = planned(decisions)
    dropped = len(pairs) - MOST
    if dropped > 0:
        pairs.sort(key=lambda pair: -cost_of(pair[1], "dense").time_ns)
    for gradient, each in pairs[:MOST]:
        time, dense = cost_of(each, each.scheme).time_ns, cost_of(each, "dense").time_ns
        size = f"{problem.shard(gradient)} {gradient.unit}s of {4 * gradient.width} B"
        of_sum = f"{density(problem, gradient, problem.machines):.3%}"
        known = "extrapolated" if gradient.extrapolated else "recorded" if "sparsity" in plan.inputs else "given"
        rows.append(
            (each.name, size, f"{density(problem, gradient):.3%}", of_sum, known,
             overlap_of(gradient.unions), each.scheme, format_time(time), format_time(dense),
             f"{dense / max(1, time):.2f}x")
        )  # fmt: skip
    node = "not zero on a node" if problem.devices == 1 else "not zero in the sum of a node"
    head = ("gradient", "a shard" if problem.devices > 1 else "size", node, "in that of all", "counts", "case",
            "scheme", "time", "dense", "faster")  # fmt: skip
    print_table("gradients", head, rows)
    if dropped > 0:
        typer.echo(f"and {many(dropped, 'smaller gradient')}")


def _print_schemes(decisions: SparseDecisions, plan: GradientPlan, place: int) -> None:
    """A table of everything that was priced for one gradient, and the case of the theorem that holds for it."""
    from treadle.passes.sparse.words import title_of
    from treadle.planner.passes.sparse.decided import allowed, cost_of
    from treadle.planner.passes.sparse.schemes import BY_NAME
    from treadle.planner.passes.sparse.theorem import case_of

    best, rows = cost_of(plan, plan.scheme).time_ns, []
    for cost in plan.costs:
        scheme = BY_NAME[cost.scheme]
        order = scheme.order(decisions.problem.machines)
        named = scheme.published or "-"
        times = f"{cost.time_ns / max(1, best):.2f}"
        may = "" if allowed(scheme, decisions.problem.machines, decisions.sums) else ORDERS[order]
        rows.append(
            (cost.scheme, title_of(scheme), named, format_bytes(cost.bytes), format_time(cost.time_ns), times, may)
        )
    head = ("scheme", "dimensions", "published as", "bytes of a rank", "time", "times", "not chosen")
    print_table(f"{plan.name}: {plan.scheme}", head, rows)
    typer.echo(case_of(decisions.problem.gradients[place].unions))
