"""A memory plan as a partition of the joint graph for `torch.compile`: `partition.py`.

AOT autograd splits the graph of forward and backward into two, and what crosses the cut is saved. The generated
function finds the plan's operator calls in that graph by their order and tags them, saved or recomputed, as PyTorch
tags selective checkpointing itself. PyTorch then recomputes each of the others once, when the backward pass first reads
it or something computed from it, and frees it after its last use. So a choice of saved values is a schedule whose peak
and time are known; values are saved beyond what the plan keeps, or instead of it, as far as that lowers the peak to the
budget or, within it, the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.codegen.memory.framework_step import backward_of, fixed_nodes, nodes_of, run_of, schedule_of
from treadle.codegen.memory.kept_values import kept_nodes, operator_name, same_operators
from treadle.codegen.python_text import constants
from treadle.codegen.templates import template
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import Simulation

FILE_NAME = "partition.py"


MOST_TRIED = 200
"""Changes of what is saved that are tried, fewer for large models."""
MOST_WORK = 200_000
"""Forward nodes times changes tried."""


@dataclass(frozen=True)
class Partition:
    """Forward nodes that live from the forward to the backward pass, and what they lead to."""

    saved: frozenset[int]
    predicted: Simulation


def generate(decisions: MemoryDecisions, trace: Trace) -> tuple[dict[str, str], Partition]:
    """The partition as {relative path: text}, and what it saves."""
    chosen = choose(decisions, trace)
    kept = {name for node in chosen.saved for name in decisions.problem.fwd[node].ops}
    made = {name for node in decisions.problem.fwd for name in node.ops}
    calls = [op for op in trace.ops if op.id in made and op.intermediate_of is None]
    operators = [operator_name(op.target) + "+" * (op.id in kept) for op in calls]
    text = template("torch/partition.py.j2").render(
        name=trace.name,
        budget=format_bytes(decisions.problem.budget_bytes),
        calls=len(calls),
        kept=sum(op.id in kept for op in calls),
        peak=format_bytes(chosen.predicted.peak_bytes),
        planned=format_bytes(decisions.exact_peak_bytes),
        time=f"{chosen.predicted.time_ns / max(1, decisions.store_all_ns):.3f}x",
        operators=list(constants(OPERATORS=operators)),
        same=same_operators(),
    )
    return {FILE_NAME: text}, chosen


def choose(decisions: MemoryDecisions, trace: Trace) -> Partition:
    """What to save: what the plan keeps, changed one value at a time while that helps."""
    problem = decisions.problem
    fixed = fixed_nodes(problem, trace)
    nodes = frozenset(nodes_of(problem))
    best = partitioned(problem, nodes & (kept_nodes(decisions) | fixed))
    budget = problem.budget_bytes

    def rank(one: Partition) -> tuple[int, int]:
        return max(0, one.predicted.peak_bytes - budget), one.predicted.time_ns

    changes = sorted(nodes - fixed, key=lambda i: (-problem.fwd[i].out_bytes, i))
    for i in changes[: min(MOST_TRIED, MOST_WORK // len(problem.fwd))]:
        tried = partitioned(problem, best.saved ^ {i})
        if rank(tried) < rank(best):
            best = tried
    return best


def partitioned(problem: MemoryProblem, saved: frozenset[int]) -> Partition:
    """Peak and time of a step that saves `saved`: what a backward node reads and is not there is recomputed, with all
    that it depends on."""
    runs = [tuple(run_of(problem, i) for i in nodes_of(problem))]
    needs = []
    available = set(saved)
    for impl in backward_of(problem):
        again: set[int] = set()
        wanted = list(impl.needs)
        while wanted:
            i = wanted.pop()
            if i not in available and i not in again:
                again.add(i)
                wanted += problem.fwd[i].inputs
        runs.append(tuple(run_of(problem, i) for i in sorted(again)))
        needs.append(tuple(impl.needs))
        available |= again
    return Partition(saved, schedule_of(problem, runs, needs)[1])
