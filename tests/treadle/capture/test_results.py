"""Calls that cannot write into given memory are known at capture, and a swap plan reserves room for their results."""

from __future__ import annotations

import torch
from msgspec.structs import replace

from treadle.capture.costs import with_counts
from treadle.capture.graph import capture
from treadle.capture.results import with_results
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.problem import SwapMachine


def step():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    return model, (torch.randn(5, 2, 6, 6),), lambda m, x: m(x).sigmoid().sum()


def test_a_plan_reserves_what_is_made_beside_its_place() -> None:
    trace = with_results(with_counts(capture(step, "step", "train")))
    found = {op.target.split(".")[1]: op.returns_new for op in trace.ops}
    assert (found["convolution"], found["addmm"], found["mm"], found["sigmoid"]) == (True, False, False, False)
    timed = replace(trace, ops=tuple(replace(op, time_ns=1) for op in trace.ops))
    problem = problem_from_trace(timed, SwapMachine(memory_bytes=10**9, in_bandwidth=1, out_bandwidth=1))
    scratch = {op.id: op.scratch_bytes for op in problem.ops}
    convolution = next(op for op in trace.ops if op.target == "aten.convolution.default")
    addmm = next(op for op in trace.ops if op.target == "aten.addmm.default")
    assert scratch[convolution.id] == 4 * 5 * 4 * 4 * 4
    assert scratch[addmm.id] == 0
