"""The checker's count of bytes and times against that of the planner."""

from __future__ import annotations

import random

from tests.planner.passes.compression.plans import NAMES, offered, random_problem
from treadle.planner.passes.compression.check_work import counted
from treadle.planner.passes.compression.payload import works


def test_every_step_takes_what_the_planner_says() -> None:
    rng = random.Random(3)
    for _ in range(12):
        problem = random_problem(rng)
        for name in (None, *NAMES):
            known = offered(problem, name)
            for option in rng.sample(known, min(60, len(known))):
                elements = rng.choice([1, 5, 64, 1000, 99_999])
                found = counted(problem, name, option, elements)
                mine = [(each.resources, each.ns, each.sent_bytes) for each in found]
                every = works(problem, name, option, elements)
                theirs = [each for each in every if each.step is not None]
                issues = [each.issue_ns for each in found if each.issue_ns]
                assert issues == [each.ns for each in every if each.step is None]
                assert mine == [(each.resources, each.ns, each.sent_bytes) for each in theirs], option
