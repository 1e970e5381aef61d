"""Memory plans of whole networks at the batches of MONeT, section 4.6, priced by the roofline of a P100.

Overheads are over the step that stores everything with the fastest implementations. Peers: Chen's segments ("Training
Deep Nets with Sublinear Memory Cost"), the fastest of 1 to 2 sqrt(N) + 1 segments; Checkmate's 0-1 program, whose
convolutions are then replaced by the fastest that fit, as MONeT does for its comparison (section 4.6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction

from msgspec.structs import replace

from benchmarks.common import Row, Table, progress
from benchmarks.memory.checkmate import checkmate
from benchmarks.memory.convolutions import post_optimise
from benchmarks.memory.networks import NETWORKS, gpt2_xl, problem_of
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.heuristics import Planner, chen, crossings
from treadle.planner.passes.memory.planning import plan_memory, with_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.passes.memory.variants import VARIANTS, restrict

PLAIN = VARIANTS["out"] - {"inplace", "statistics"}
"""The families that PyTorch's own kernels cover."""
SHARES = (Fraction(7, 10), Fraction(5, 10), Fraction(4, 10), Fraction(1, 3))
SECONDS = 45.0
"""Wall clock of the search for each point; MONeT's solver had up to 24 hours."""
GIB, LONGER = {"U-Net b11": 6, "MobileNet-V2 b256": 5, "ResNet-50 b184": 5}, 200.0
"""The budgets of MONeT, section 4.6, that need most recomputation, and seconds of search for each."""
CHECKMATE_SECONDS = 30.0
CHECKMATE_NODES = 70
"""Most forward nodes of a network for which Checkmate's program is solved."""


def tables() -> Iterator[Table]:
    """Overhead of memory plans of five networks at 0.7x to 0.33x of plain PyTorch's peak, with bounds and peers."""
    rows: list[Row] = []
    for name, gib in GIB.items():
        progress(f"memory.planning: {name} at {gib} GiB")
        rows.append({"network": name} | point(problem_of(name), gib * 2**30, LONGER))
    note = f"Overheads in % of store-all's time; at most {LONGER:g} s of search for each point."
    yield Table("Budgets in GiB, longer searches", rows, (note,))
    for name in NETWORKS:
        yield traded(name, problem_of(name), SHARES)
    progress("memory.planning: GPT-2 XL")
    yield traded("GPT-2 XL b8", gpt2_xl(), (Fraction(3, 10),), seconds=300.0)


def traded(name: str, problem: MemoryProblem, shares: tuple[Fraction, ...], seconds: float = SECONDS) -> Table:
    """One network at several budgets."""
    whole = simulate(problem, lower(problem, store_all(problem)))
    rows = []
    for share in shares:
        progress(f"memory.planning: {name} at {float(share):.2f}x")
        rows.append({"budget x": float(share)} | point(problem, with_budget(problem, share).budget_bytes, seconds))
    return Table(
        f"{name}: store-all {whole.peak_bytes / 2**30:.2f} GiB, {whole.time_ns / 1e6:.1f} ms, "
        f"{len(problem.fwd)} forward and {len(problem.bwd)} backward nodes",
        rows,
        (f"Overheads in % of store-all's time; at most {seconds:g} s of search for each point.",),
    )


def point(problem: MemoryProblem, budget: int, seconds: float) -> Row:
    """One network at one budget in bytes."""
    whole = simulate(problem, lower(problem, store_all(problem)))
    budgeted = replace(problem, budget_bytes=budget)
    row: Row = {"budget GiB": budget / 2**30}
    peers = {"Chen %": chen_ns(budgeted), "Checkmate %": checkmate_ns(budgeted)}
    start = time.perf_counter()
    try:
        plan = plan_memory(budgeted, options=MemoryOptions(time_limit_s=seconds, gap=0.001, workers=2))
    except (InfeasibleError, LimitError) as error:
        row |= {"result": type(error).__name__, "search s": time.perf_counter() - start}
    else:
        found = plan.decisions
        row |= {
            "peak GiB": found.exact_peak_bytes / 2**30,
            "overhead %": percent(found.objective_ns, whole.time_ns),
            "bound %": percent(int(plan.certificate.lower_bound), whole.time_ns),
            "gap %": 100 * plan.certificate.gap,
            "search s": time.perf_counter() - start,
            "result": f"{plan.provenance.method}{', limit' if plan.provenance.limit_fired else ''}",
        }
    return row | {name: None if ns is None else percent(ns, whole.time_ns) for name, ns in peers.items()}


def chen_ns(problem: MemoryProblem) -> int | None:
    """Time of the fastest plan of Chen's segments within the budget."""
    planner = Planner.of(problem)
    found = [planner.result(planner.schedule(kept)) for kept in (*chen(problem), *crossings(problem))]
    return min((plan.time_ns for plan in found if plan.peak_bytes <= problem.budget_bytes), default=None)


def checkmate_ns(problem: MemoryProblem) -> int | None:
    """Time of Checkmate's plan with fast convolutions, None if none was found in time that fits with its workspace."""
    single = restrict(problem, PLAIN)
    if len(single.fwd) > CHECKMATE_NODES:
        return None
    one = replace(
        single,
        fwd=tuple(replace(node, impls=node.impls[:1]) for node in single.fwd),
        bwd=tuple(replace(node, impls=node.impls[:1]) for node in single.bwd),
    )
    schedule = checkmate(one, CHECKMATE_SECONDS).schedule
    if schedule is None:
        return None
    fast = restrict(problem, (VARIANTS["conv+out"]) - {"inplace", "statistics"})
    finished = post_optimise(fast, schedule)
    result = simulate(fast, lower(fast, finished))
    return result.time_ns if result.peak_bytes <= problem.budget_bytes else None


def percent(time_ns: int, whole_ns: int) -> float:
    return 100 * (time_ns / whole_ns - 1)
