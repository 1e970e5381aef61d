"""Lives of tensors: every move leaves a plan that the checker accepts, with the bytes and time of the simulator."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given
from msgspec.structs import replace

from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.simulate import simulate


def agrees(problem, lives: Lifetimes) -> None:
    schedule = lives.schedule()
    found = simulate(problem, lower(problem, schedule))
    assert (found.peak_bytes, found.time_ns) == (lives.worst() + problem.base_bytes, lives.time_ns)


@given(problems(max_nodes=6), st.randoms(use_true_random=False))
def test_moves(problem, rng: random.Random):
    """Joins, cuts, and changes of implementation, some of them undone."""
    lives = Lifetimes(problem, store_all(problem))
    agrees(problem, lives)
    for _ in range(12):
        before = (list(lives.lives), lives.worst(), lives.time_ns)
        i = rng.randrange(len(problem.fwd))
        kind = rng.randrange(4)
        if kind == 0 and lives.lives[i]:
            done = lives.join(i, rng.randrange(len(lives.lives[i])))
        elif kind == 1 and lives.lives[i]:
            place = rng.randrange(len(lives.lives[i]))
            life = lives.lives[i][place]
            done = lives.cut(i, place, rng.randint(life.start, life.end))
        elif kind == 2 and lives.lives[i]:
            done = lives.use(i, rng.randrange(len(lives.lives[i])), rng.randrange(len(problem.fwd[i].impls)))
        else:
            k = rng.randrange(len(problem.bwd))
            done = lives.use_backward(k, rng.randrange(len(problem.bwd[k].impls)))
        if done and rng.random() < 0.7:
            lives.commit()
            agrees(problem, lives)
            whole = replace(problem, budget_bytes=10**6)
            assert check(decide(whole, lives.schedule())) == []
        else:
            lives.rollback()
            assert (list(lives.lives), lives.worst(), lives.time_ns) == before
            agrees(problem, lives)
