"""Schedules run rank by rank on fibers leave what the interpreter says, and what is wrong is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.fusion.reachable import CASES, Job, executed, row, schedules
from benchmarks.fusion.schedules import program
from tests.planner.passes.fusion.by_hand import sgd
from treadle.codegen.fusion.lower import lower
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.program import Bindings
from treadle.planner.passes.fusion.rounding import intervals
from treadle.runtime.fusion import cuda, fibers
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.data import differences, exact, example, fill, place
from treadle.runtime.fusion.measure import halving
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.session import FusionSession
from treadle.runtime.fusion.tensors import Handle, Tensors

BINDINGS = Bindings({"N": 37}, 3)
REPRESENTATIVE = [("sgd", 8, -1), ("attention", 3, -1), ("pipeline", 2, 7)]
"""Case, ranks of a group, and which of its reachable schedules."""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return build(lower(sgd("fused"), BINDINGS), quickly=True)


@pytest.mark.parametrize(("name", "ranks", "number"), REPRESENTATIVE)
def test_reachable_schedules_leave_every_bit_of_the_interpreter(name: str, ranks: int, number: int) -> None:
    schedule = list(schedules(CASES[name], overlapped=False))[number]
    found = executed(Job(name, schedule, ranks))
    assert (found.problems, found.refused, found.bits) == ((), "", True)
    counted = row(name, ranks, [found, replace(found, problems=("wrong",)), replace(found, refused="no kernel")])
    assert (counted["executed"], counted["right"]) == (2, 1)


def test_ranks_of_a_device_must_be_neighbours(compiled: Compiled) -> None:
    """They are one launch: of two, the second would wait for room that the first gives back only after it."""
    FusionSession(compiled.path, 3, {0: 0, 1: 0, 2: 1}).close()
    with pytest.raises(InputError, match="ranks on one device must be neighbours"):
        FusionSession(compiled.path, 3, {0: 0, 1: 1, 2: 0})


def test_a_session_with_a_missing_rank_says_so(compiled: Compiled) -> None:
    session = FusionSession(compiled.path, 3, {0: 0, 1: 0})
    with pytest.raises(InputError, match="rank 2 is not attached yet"):
        session.run()


def test_runs_take_turns_on_rows_and_steps(compiled: Compiled) -> None:
    lowered = lower(sgd("fused"), BINDINGS)
    compared = compare(compiled, lowered, Runs(repeats=4, order=9))
    assert (compared.problems, compared.bits, len(compared.report.seconds)) == ((), True, 4)
    floats = compare(compiled, lowered, kind="floats")
    assert (floats.problems, floats.bits) == ((), False)


def test_what_is_wrong_is_told(compiled: Compiled) -> None:
    lowered = lower(sgd("fused"), BINDINGS)
    values = evaluate(lowered.program, BINDINGS, example(lowered.program, BINDINGS))
    tensors = Tensors(lowered.buffers, 3)
    tensors.poison()
    assert np.isnan(tensors.array(1, lowered.places["p"])).all()
    place(tensors, range(3), lowered, values)
    fibers.run(compiled, tensors)
    within = intervals(lowered.program, BINDINGS, values)
    assert not list(differences(tensors, range(3), lowered, values))
    array = tensors.array(1, lowered.places["p"])
    array[5] += 0.5
    wanted = array[5] - 0.5
    (line,) = differences(tensors, range(3), lowered, values, within)
    start = f"p of rank 1: 1 of 37 elements differ, first [5]: found {wanted + 0.5:g}, expected {wanted:g}, or from "
    assert line.startswith(start)
    array[5] = np.nextafter(np.float32(wanted), np.float32(100))
    assert list(differences(tensors, range(3), lowered, values))
    assert not list(differences(tensors, range(3), lowered, values, within))


def test_sessions_refuse_what_does_not_fit(compiled: Compiled) -> None:
    with pytest.raises(InputError, match="found 4 ranks, expected 3 as compiled"):
        fibers.run(replace(compiled, ranks=4), Tensors(compiled.buffers, 4))
    with pytest.raises(InputError, match="found 2 tensors of rank 0, expected 3"):
        fibers.run(compiled, Tensors(compiled.buffers[:2], 3))
    with pytest.raises(InputError, match="found a library for cuda"):
        fibers.run(replace(compiled, target="cuda"), Tensors(compiled.buffers, 3))
    with pytest.raises(InputError, match="found a library for fibers, expected one for cuda"):
        cuda.run(compiled, Tensors(compiled.buffers, 3))
    with pytest.raises(CheckFailed, match="found no memory of process 1"):
        Tensors(compiled.buffers, 3, handle=Handle(1, 9999))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_backend_cuda(compiled: Compiled) -> None:
    with pytest.raises(MissingBackendError, match="found no GPU that PyTorch can use"):
        cuda.run(replace(compiled, target="cuda"), Tensors(compiled.buffers, 3))


def test_runs_whose_results_nobody_looks_at_need_no_interpreter(compiled: Compiled) -> None:
    tensors = Tensors(compiled.buffers, 3)
    fill(tensors, range(3), lower(sgd("fused"), BINDINGS))
    before = tensors.array(0, 0).copy()
    assert (before >= 0.5).all()
    assert fibers.run(compiled, tensors, Runs(repeats=2)).seconds[1] > 0


def test_the_slower_half_is_given_up() -> None:
    calls: list[tuple[int, int]] = []

    def run(candidates: Sequence[int], repeats: int) -> list[list[float]]:
        calls.extend((candidate, repeats) for candidate in candidates)
        return [[float(candidate)] * repeats for candidate in candidates]

    timed = halving([5, 3, 8, 1, 7, 2, 6, 4], run, repeats=2, kept=2)
    assert [each.candidate for each in timed] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [each.repeats for each in timed] == [14, 14, 6, 6, 2, 2, 2, 2]
    assert calls[8:] == [(1, 4), (2, 4), (3, 4), (4, 4), (1, 8), (2, 8)]


def test_integers_are_exact_where_no_sum_rounds() -> None:
    exactly = {name: exact(program(case.program)) for name, case in CASES.items()}
    assert exactly.pop("lamb") is False
    assert all(exactly.values())
