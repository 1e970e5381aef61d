"""Target `torchft`: a module that makes the CheckpointTransport of a rank, with the memory of the plan.

Which replica sends to which is torchft's choice, made anew for each failure; the plan says how large a state is.
"""

from __future__ import annotations

from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions

FILE_NAME = "transport.py"


def torchft(plan: Plan[CheckpointDecisions]) -> Made:
    problem = plan.decisions.problem
    text = template("checkpoint/torchft.py.j2").render(
        name=problem.name,
        held=format_bytes(2 * problem.state_bytes),
        tables=[f"STATE_BYTES = {problem.state_bytes}"],
    )
    return Made({FILE_NAME: text}, {"state_bytes": problem.state_bytes})
