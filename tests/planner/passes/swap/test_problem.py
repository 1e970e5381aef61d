"""What a swap problem may not be, and what follows from its numbers."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.cases import (
    belady,
    built,
    duplex,
    figure_4_1,
    figure_4_3,
    parameter,
    random_problem,
    rnn,
    two_pass_a,
    two_pass_b,
)
from treadle.planner.documents import store
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem

WRITTEN = [parameter("w"), parameter("v")]


@pytest.mark.parametrize(
    "problem",
    [
        figure_4_1(), figure_4_1(5, kept=False), figure_4_3(), figure_4_3(written=True), two_pass_a(), two_pass_b(),
        belady([1, 2, 3, 1, 2], 2), rnn(), rnn(3, 4, 14), duplex(), duplex(out_bytes=0),
        *(random_problem(random.Random(seed)) for seed in range(100)),
    ],
)  # fmt: skip
def test_shared_cases_are_sound_documents(problem: SwapProblem) -> None:
    assert list(problem.problems()) == []
    assert store.loads(store.dumps(problem), "here", SwapProblem) == problem


def test_random_problems_have_what_is_hard() -> None:
    problems = [random_problem(random.Random(seed)) for seed in range(60)]
    tensors = [tensor for problem in problems for tensor in problem.tensors]
    assert {tensor.role for tensor in tensors} == {"parameter", "state", "input", "activation", "gradient"}
    assert any(tensor.bytes == 0 for tensor in tensors)
    assert any(tensor.kept and tensor.role == "activation" for tensor in tensors)
    written = [p.tensors[t].role for p in problems for op in p.ops for t in op.writes]
    assert {"parameter", "state", "activation"} <= set(written)


@pytest.mark.parametrize(
    ("ops", "path", "missing"),
    [
        ([("u", "w", "", "w"), ("f", "w", "")], "$.ops[1].after", "no 0"),
        ([("f", "w", ""), ("u", "w", "", "w")], "$.ops[1].after", "no 0"),
        ([("f", "w", ""), ("g", "w v", ""), ("u", "w", "", "w")], "$.ops[2].after", "no 0"),
        ([("u", "w", "", "w"), ("n", "v", ""), ("u2", "w", "", "w")], "$.ops[2].after", "no 0"),
    ],
)
def test_whoever_uses_a_written_tensor_says_whom_it_waits_for(
    ops: list[tuple[str, str, str]], path: str, missing: str
) -> None:
    problem = built(4, WRITTEN, ops)
    assert list(problem.problems()) == []
    problem = replace(problem, ops=tuple(replace(op, after=()) for op in problem.ops))
    found = next(problem.problems())
    assert found[:2] == (path, missing)
    assert found[2].endswith("use w, and one of them writes it")
    with pytest.raises(InputError, match="use w, and one of them writes it"):
        store.loads(store.dumps(problem), "here", SwapProblem)


def test_times_of_copies_are_rounded_up_and_nothing_takes_none() -> None:
    machine = SwapMachine(memory_bytes=1, in_bandwidth=3 * 10**9, out_bandwidth=2 * 10**9, copy_ns=7)
    assert [machine.in_ns(count) for count in (0, 1, 3, 4)] == [0, 8, 8, 9]
    assert [machine.out_ns(count) for count in (0, 1, 3, 4)] == [0, 8, 9, 9]


def test_the_arena_is_what_scratch_and_reserve_leave() -> None:
    problem = figure_4_1()
    ops = (replace(problem.ops[0], scratch_bytes=3), replace(problem.ops[1], scratch_bytes=1), *problem.ops[2:])
    problem = replace(problem, ops=ops, reserve_bytes=2)
    assert (problem.scratch_bytes, problem.arena_bytes, problem.ideal_ns) == (3, 5, 6)
