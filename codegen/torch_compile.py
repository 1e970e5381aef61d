"""A memory plan as a partition of the joint graph for `torch.compile`: `partition.py`.

AOT autograd splits the graph of forward and backward into two, and what crosses the cut is saved. The generated
function finds the plan's operator calls in that graph by their order and tags them, saved or computed again, in the
way that PyTorch tags selective checkpointing itself.
"""

from __future__ import annotations

from codegen.kept_values import kept_nodes, operator_name, same_operators
from codegen.python_text import Call, layout
from codegen.templates import quote, template
from planner.memory.decisions import MemoryDecisions
from planner.scalars import format_bytes
from planner.trace import Trace

FILE_NAME = "partition.py"


def generate(decisions: MemoryDecisions, trace: Trace) -> dict[str, str]:
    """The partition as {relative path: text}."""
    kept = {name for node in kept_nodes(decisions) for name in decisions.problem.fwd[node].ops}
    made = {name for node in decisions.problem.fwd for name in node.ops}
    calls = [op for op in trace.ops if op.id in made and op.intermediate_of is None]
    operators = Call("[", tuple(quote(operator_name(op.target) + "+" * (op.id in kept)) for op in calls), "]")
    text = template("torch/partition.py.j2").render(
        name=trace.name,
        budget=format_bytes(decisions.problem.budget_bytes),
        calls=len(calls),
        kept=sum(op.id in kept for op in calls),
        operators=list(layout("OPERATORS = ", operators, 0)),
        same=same_operators(),
    )
    return {FILE_NAME: text}
