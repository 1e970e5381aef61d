"""`treadle run` for orders of hosts: the allreduce of a library in the original, the planned and the worst order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.cli.output import print_run
from treadle.codegen import emit
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions

CALLS = 20
"""Of each order, in turns with the others."""
OFF = 1 / 3
"""A prediction that is further from what was measured is pointed out."""
BACKENDS = ("cpu", "gloo")
"""Both are processes over gloo; the first is the default of `treadle run`."""


def run_ranks_plan(folder: Path, options: RunOptions) -> None:
    """Measure the orders of the plan in `folder` and print what they took.

    Raises InputError for another back end or number of ranks, CheckFailed for a plan that fails its check and for wrong
    sums, and what `times_of_orders` raises.
    """
    from treadle.passes.ranks.programs import library_of
    from treadle.runtime.joined import joined_rank
    from treadle.runtime.ranks.orders import times_of_orders

    if options.backend not in BACKENDS:
        raise InputError(f"found {options.backend}, expected gloo", where="--backend")
    emit.read(folder)
    file = folder / PLAN_NAME
    plan = require_pass(store.load(file, Plan), RanksDecisions, str(file))
    decisions = plan.decisions
    if failed := pass_of(plan).findings(decisions):
        raise CheckFailed(f"{file}: not run, its check failed", tuple(failed))
    problem = decisions.problem
    world = sum(host.slots for host in problem.hosts)
    options.require_world((None, world), "the plan has that many ranks")
    orders = {"original": tuple(range(len(problem.hosts))), "planned": decisions.order, "worst": decisions.worst}
    times = times_of_orders(problem, orders, library_of(plan, file), calls=CALLS, timeout=options.timeout)
    costs, joined = OrderCosts(problem), joined_rank()
    measured = {
        name: {
            "order": [problem.hosts[host].name for host in order],
            "cost_ns": costs.of(order).cost_ns,
            "predicted_ns": costs.time_ns(order),
            "measured_ns": round(times[name].median * 1e9),
            "sums_right": times[name].right,
        }
        for name, order in orders.items()
    }
    result = {
        "algorithm": problem.algorithm,
        "library": library_name(problem.algorithm),
        "size_bytes": problem.size_bytes,
        "world": world,
        "on_hosts": joined is not None,
        "calls": CALLS,
        "orders": measured,
        "findings": [f"{name} order: wrong sums" for name, each in measured.items() if not each["sums_right"]],
    }
    if joined is None or joined[0] == 0:
        print_run("run-ranks", folder, result, list(lines_of(result)), options.as_json)
    elif result["findings"]:
        raise CheckFailed("found wrong sums")


def library_name(algorithm: str) -> str:
    """What executes an algorithm."""
    from treadle.passes.ranks.programs import RINGS

    return "gloo" if algorithm in RINGS else "treadle"


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """What people read."""
    orders = result["orders"]
    by = "the ring of gloo" if result["library"] == "gloo" else f"{result['algorithm']} by treadle's runtime"
    yield f"{result['world']} ranks, {by}, {format_bytes(result['size_bytes'])}; {result['calls']} calls of each order"
    for name, each in orders.items():
        speed = orders["original"]["measured_ns"] / max(1, each["measured_ns"])
        predicted, measured = format_time(each["predicted_ns"]), format_time(each["measured_ns"])
        yield f"  {name:<9} {predicted} predicted, {measured} measured, {speed:.2f}x of the original's speed"
    if not result["on_hosts"]:
        yield "  all ranks are on this machine, where orders differ by chance; start it on the hosts of the plan"
        return
    off = {name: each["measured_ns"] / max(1, each["predicted_ns"]) for name, each in orders.items()}
    if any(abs(ratio - 1) > OFF for ratio in off.values()):
        yield "  off       " + ", ".join(f"{name} {ratio:.2f}x of its prediction" for name, ratio in off.items())
