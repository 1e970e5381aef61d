"""Planner and checker on many random problems: python -m tests.planner.passes.checkpoint.agreement FIRST LAST

Prints each problem, by its seed, whose plan the checker refuses, or whose bound or interval it does not find too; and
how many agreed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from tests.planner.passes.checkpoint.random_problems import random_options, random_problem
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.check_bound import best_interval, least_time_ns
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.planning import plan_checkpoint


def disagreements(plan: Plan[CheckpointDecisions]) -> list[str]:
    """What planner and checker do not say alike of one plan, whose decisions the planner had checked."""
    decisions, found = plan.decisions, []
    bound, least = plan.certificate.lower_bound, least_time_ns(decisions.problem)
    if bound != min(least, decisions.time_ns):
        found.append(f"bound {bound} ns, the checker's {least} ns, the plan's {decisions.time_ns} ns")
    best = best_interval(decisions.problem, decisions.overflow_ns)
    if "every" not in plan.provenance.options and decisions.every != best:
        found.append(f"every {decisions.every} iterations, the checker's {best}")
    return found


def plan_of(seed: int) -> Plan[CheckpointDecisions] | None:
    """The plan of the random problem with this number; None where there is provably none."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    options = random_options(rng, problem)
    try:
        return plan_checkpoint(problem, options=options)
    except InfeasibleError:
        return None


def main(first: int, last: int) -> None:
    kinds = Counter[tuple[object, ...]]()
    for seed in range(first, last):
        try:
            plan = plan_of(seed)
        except InputError as error:
            print(f"seed {seed}: {error}")
            continue
        except Exception as error:
            print(f"seed {seed}: {error} {getattr(error, 'findings', '')}")
            raise
        found = [] if plan is None else disagreements(plan)
        kind = () if plan is None else (plan.decisions.variant, plan.decisions.placement)
        kinds[(*kind, not found)] += 1
        for line in found:
            print(f"seed {seed}: {line}")
    wrong = sum(count for kind, count in kinds.items() if not kind[-1])
    print(f"{last - first - wrong} of {last - first} agree: {dict(kinds)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
