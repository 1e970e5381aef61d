"""Planner and checker on many random problems: python -m tests.planner.passes.server.agreement FIRST LAST

Prints each problem, by its seed, whose plan the checker refuses, whose bound is above its time, or whose timeline ends
at another time; and how many agreed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from tests.planner.passes.server.random_problems import random_options, random_problem
from treadle.planner.passes.server.bound import lower_bound
from treadle.planner.passes.server.check import check
from treadle.planner.passes.server.decided import best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.same_map import with_problem
from treadle.planner.passes.server.timeline_of import exchange_of
from treadle.planner.timeline.simulator import simulate


def disagreements(decisions: ServerDecisions) -> list[str]:
    """What planner, checker, bound and timeline do not say alike of one plan."""
    found, time = check(decisions), decisions.time_ns
    if (bound := lower_bound(decisions.problem).time_ns) > time:
        found.append(f"bound {bound} ns, above the {time} ns of the plan")
    if (end := simulate(*exchange_of(decisions)).makespan) != time:
        found.append(f"timeline ends at {end} ns, the plan at {time} ns")
    again = with_problem(decisions, decisions.problem)
    if (again.parts, again.time_ns, again.most_workers) != (decisions.parts, time, decisions.most_workers):
        found.append("the same map has other figures when it is priced again")
    return found


def plan_of(seed: int) -> ServerDecisions:
    """The plan of the random problem with this number."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    options = random_options(rng, problem)
    return decisions_of(best_of(problem, options), options)


def main(first: int, last: int) -> None:
    kinds = Counter[tuple[object, ...]]()
    for seed in range(first, last):
        plan = plan_of(seed)
        found = disagreements(plan)
        kinds[plan.policy, plan.engine, plan.two_level, plan.problem.mode, plan.problem.carrier, not found] += 1
        for line in found:
            print(f"seed {seed}: {line}")
    wrong = sum(count for kind, count in kinds.items() if not kind[-1])
    print(f"{last - first - wrong} of {last - first} agree, in {len(kinds)} kinds of plans")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
