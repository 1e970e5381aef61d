"""Target `ddp-hook`: a module that attaches a model of PyTorch to the servers of a plan."""

from __future__ import annotations

from treadle.codegen.interface import Made
from treadle.codegen.templates import template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.passes.server.decisions import ServerDecisions

FILE_NAME = "hook.py"


def hook(plan: Plan[ServerDecisions]) -> Made:
    decisions = plan.decisions
    problem = decisions.problem
    slowest = max(decisions.parts, key=lambda part: part.time_ns)
    text = template("torch/server_hook.py.j2").render(
        name=f"{problem.name}; {slowest.part} takes longest",
        servers=many(problem.servers, "server"),
        workers=many(problem.workers, "worker"),
        time=format_time(decisions.time_ns),
    )
    facts = {"planned_ns": decisions.time_ns, "workers": problem.workers, "servers": problem.servers}
    return Made({FILE_NAME: text}, facts)
