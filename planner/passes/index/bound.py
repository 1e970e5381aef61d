"""The lower bound of all plans: any index reads the operations that it answers."""

from __future__ import annotations

from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.search.bound import Argument, Bound

SENTENCES = {
    "loop": "no index answers the operations sooner than they are read, which takes {loop} ns",
    "unmeasured": "what reading the operations takes was not measured",
}


def lower_bound(decisions: IndexDecisions) -> Bound:
    """What reading the trace subset takes. Two measurements may contradict each other: never above the plan's time."""
    least = min(decisions.problem.loop_ns, decisions.time_ns)
    return Bound(least, Argument("loop", terms={"loop": least}) if least else Argument("unmeasured"))


def sentence(bound: Bound) -> str:
    return bound.argument.printed(SENTENCES)
