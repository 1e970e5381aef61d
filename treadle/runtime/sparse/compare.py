"""A folder of a sparse plan, executed on random gradients by processes over gloo: sums, bytes, and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.sparse.room import FILE_NAME
from treadle.codegen.targets import PLAN_NAME
from treadle.host.cores import cores
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.errors import CheckFailed
from treadle.planner.passes import pass_of, require_pass
from treadle.planner.passes.sparse.decided import cost_of
from treadle.planner.passes.sparse.decisions import GradientPlan, SparseDecisions
from treadle.planner.passes.sparse.problem import SparseGradient
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE
from treadle.planner.passes.sparse.traffic import traffic
from treadle.runtime.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from treadle.runtime.sparse.exchange import SparseExchange

OFF = 1 / 3
"""A prediction that is further from what was measured is pointed out."""


class GradientComparison(NamedTuple):
    """What one rank found of one gradient."""

    sums_equal: bool
    bytes_equal: bool
    """Those of every round are those that the planner counts for these index sets."""
    rounds: list[tuple[int, int]]
    """Bytes sent and received in each round between nodes."""


class ExchangeComparison(NamedTuple):
    """What one rank found; times are those of all gradients, by step."""

    gradients: list[GradientComparison]
    planned_ns: list[int]
    link_ns: list[int]
    """What of that messages between nodes took."""
    dense_ns: list[int]
    torch_ns: list[int]


def run_folder(folder: Path, *, steps: int = 3, timeout: float | None = None) -> dict[str, Any]:
    """Run the plan in `folder` on its number of ranks, with random gradients of about its counts.

    Returned: for each gradient `sums_equal` to those of a dense exchange, `bytes` of the busiest participant as planned
    and measured and whether they are `exact`; `time_ns` of all gradients together, predicted and measured (the slowest
    rank's, median over `steps`): by the plan, what of it are links, dense, and by torch.distributed; and `findings`, a
    sentence for each promise that did not hold.

    Raises InputError for a folder that is not as it was generated, CheckFailed for a plan that fails its check, and
    what `launch` raises.
    """
    manifest, texts = emit.read(folder)
    require_form(manifest.target, texts[FILE_NAME], str(folder / FILE_NAME))
    plan = require_pass(store.load(folder / PLAN_NAME, Plan), SparseDecisions, str(folder / PLAN_NAME))
    decisions = plan.decisions
    if failed := pass_of(plan).findings(decisions):
        raise CheckFailed(f"{folder / PLAN_NAME}: not run, its check failed", tuple(failed))
    ranks = launch(decisions.problem.ranks, _compare, (decisions, steps), timeout)
    gradients = [
        _summary(each, [rank.gradients[number] for rank in ranks]) for number, each in enumerate(decisions.gradients)
    ]
    findings = []
    for each in gradients:
        if not each["sums_equal"]:
            findings.append(f"{each['name']}: the sums are not those of a dense exchange")
        if not each["bytes"]["exact"]:
            findings.append(f"{each['name']}: bytes are not those that the planner counts for these index sets")
    return {
        "target": manifest.target,
        "backend": "gloo",
        "world": decisions.problem.ranks,
        "steps": steps,
        "time_ns": _total(decisions, ranks),
        "gradients": gradients,
        "findings": findings,
    }


def _summary(plan: GradientPlan, ranks: Sequence[GradientComparison]) -> dict[str, Any]:
    rounds = zip(*(rank.rounds for rank in ranks), strict=True)
    return {
        "name": plan.name,
        "scheme": plan.scheme,
        "sums_equal": all(rank.sums_equal for rank in ranks),
        "bytes": {
            "planned": cost_of(plan, plan.scheme).bytes,
            "measured": sum(max(max(moved) for moved in each) for each in rounds),
            "exact": all(rank.bytes_equal for rank in ranks),
        },
    }


def _total(decisions: SparseDecisions, ranks: Sequence[ExchangeComparison]) -> dict[str, int]:
    """Times of all gradients."""
    return {
        "planned": decisions.time_ns,
        "measured": _slowest([rank.planned_ns for rank in ranks]),
        "link_planned": sum(cost_of(plan, plan.scheme).link_ns for plan in decisions.gradients),
        "link_measured": _slowest([rank.link_ns for rank in ranks]),
        "dense_planned": decisions.dense_ns,
        "dense_measured": _slowest([rank.dense_ns for rank in ranks]),
        "torch_measured": _slowest([rank.torch_ns for rank in ranks]),
    }


def off_by(planned_ns: int, measured_ns: int, link_planned_ns: int, link_measured_ns: int) -> str | None:
    """A few words where a time is off by more than a third, with the term that is off by most."""
    if abs(measured_ns - planned_ns) <= OFF * planned_ns:
        return None
    terms = {
        "links": (link_planned_ns, link_measured_ns),
        "work of the ranks": (planned_ns - link_planned_ns, measured_ns - link_measured_ns),
    }
    term = max(terms, key=lambda each: abs(terms[each][1] - terms[each][0]))
    planned, measured = map(format_time, terms[term])
    whole = measured_ns / max(1, planned_ns)
    return f"{whole:.2f}x of its prediction, most of it {term}: {planned} planned, {measured} measured"


def _slowest(times: Sequence[Sequence[int]]) -> int:
    """The median over steps of the time of the slowest rank."""
    return int(median(max(step) for step in zip(*times, strict=True)))


def _compare(rank: int, world: int, decisions: SparseDecisions, steps: int) -> ExchangeComparison:
    import torch
    from torch import distributed

    from treadle.runtime.sparse.exchange import SparseExchange
    from treadle.runtime.sparse.synthetic import index_sets, random_gradient

    torch.set_num_threads(max(1, cores() // world))
    problem, found = decisions.problem, []
    node, local = divmod(rank, problem.devices)
    planned = SparseExchange(decisions)
    dense = SparseExchange(
        replace(decisions, gradients=tuple(replace(each, scheme=DENSE.name) for each in decisions.gradients))
    )
    given = {each.name: random_gradient(problem, each, rank) for each in problem.gradients}
    sums = planned.exchange_together(given)
    for gradient, plan in zip(problem.gradients, decisions.gradients, strict=True):
        expected = given[gradient.name].to_dense().clone()
        distributed.all_reduce(expected)
        equal = torch.equal(sums.pop(gradient.name).to_dense(), expected)
        moved = [
            (sum(each.sent.values()), sum(each.received.values()))
            for each in planned.last[gradient.name].rounds
            if each.scope == "inter"
        ]
        sets = index_sets(problem, gradient, local)
        exact = moved == _counted(decisions, gradient, plan, sets, local)[node]
        found.append(GradientComparison(equal, exact, moved))
    times, links = _planned_times(planned, given, steps)
    dense_times = _times(lambda: dense.exchange_together(given), steps)
    torch_times = _times(lambda: _all_reduced(given.values()), steps)
    planned.close()
    dense.close()
    return ExchangeComparison(found, times, links, dense_times, torch_times)


def _counted(
    decisions: SparseDecisions, gradient: SparseGradient, plan: GradientPlan, sets: Sequence[Any], shard: int
) -> list[list[tuple[int, int]]]:
    """Bytes that each node sends and receives in each round, as the planner counts them."""
    from treadle.runtime.sparse.synthetic import unit_range

    start, stop = unit_range(decisions.problem, gradient, shard)
    block = gradient.blocks.size if gradient.blocks is not None else 1
    scheme, seed = BY_NAME[plan.scheme], decisions.seeds[0]
    played = traffic(scheme, sets, stop - start, gradient.width, seed=seed, block=block)
    return [[(each.sent[node], each.received[node]) for each in played] for node in range(len(sets))]


def _planned_times(exchange: SparseExchange, given: Mapping[str, Tensor], steps: int) -> tuple[list[int], list[int]]:
    """ns of exchanges as planned, and what of each its messages between nodes took."""
    waited = [exchange.transport.waited_ns["inter"]]

    def once() -> None:
        exchange.exchange_together(given)
        waited.append(exchange.transport.waited_ns["inter"])

    times = _times(once, steps)
    return times, [after - before for before, after in pairwise(waited)][1:]


def _all_reduced(given: Iterable[Tensor]) -> None:
    """The sums of all gradients, one after the other: gloo was seen to hang with several sparse ones in flight."""
    from torch import distributed

    for each in given:
        distributed.all_reduce(each.clone())


def _times(work: Callable[[], object], steps: int) -> list[int]:
    """ns of calls that all ranks begin together, after one that is not counted."""
    from torch import distributed

    times = []
    for _ in range(steps + 1):
        distributed.barrier()
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return times[1:]
