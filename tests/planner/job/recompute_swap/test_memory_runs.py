"""A memory plan seen as runs: its time, no more than its bytes, and its values."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tests.codegen.plans import schedule_keeping
from tests.planner.graph.test_unrolling import handed, values_of
from tests.planner.job.recompute_swap.steps import captured
from treadle.planner.documents.trace import OpRun
from treadle.planner.graph.liveness import sweep
from treadle.planner.graph.unrolling import unrolled
from treadle.planner.job.recompute_swap.memory_runs import (
    SAME_BITS,
    allowed,
    memory_problem,
    most_workspace,
    rounded_otherwise,
    runs_of,
)
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.planning import decide


@pytest.mark.parametrize("name", ["convnet", "gpt2_dropout", "unet"])
def test_time_bytes_and_bits_of_a_memory_plan(name: str) -> None:
    trace = allowed(captured(name), SAME_BITS)
    problem = memory_problem(trace)
    fastest = store_all(problem).backward
    kept = set(range(0, len(problem.fwd), 3))
    decisions = decide(replace(problem, budget_bytes=2**40), schedule_keeping(problem, kept, fastest))
    runs = runs_of(decisions, trace)
    other = unrolled(trace, runs)
    assert sum(op.time_ns or 0 for op in other.ops) == decisions.objective_ns
    assert sweep(other).peak <= decisions.exact_peak_bytes
    assert len(runs) > len({run.op for run in runs})
    expected, found = values_of(name, captured(name)), values_of(name, other)
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in handed(trace))


def test_updates_follow_the_plan_and_their_state_counts() -> None:
    plain, trace = memory_problem(captured("convnet")), captured("convnet", "adam")
    problem = memory_problem(trace)
    states = sum(t.bytes or 0 for t in trace.tensors if t.name and t.name.startswith("optimizer."))
    assert problem.base_bytes - plain.base_bytes == states
    runs = runs_of(decide(replace(problem, budget_bytes=1), store_all(problem)), trace)
    updates = [op.id for op in trace.ops if op.phase == "optimizer"]
    assert [run.op for run in runs][-len(updates) :] == updates
    unrolled(trace, runs)


def test_nothing_random_is_recomputable_nor_what_it_makes_besides() -> None:
    trace = captured("gpt2_dropout")
    problem = memory_problem(trace)
    random = {op.id for op in trace.ops if op.random}
    once = [i for i, node in enumerate(problem.fwd) if random & set(node.ops)]
    assert once
    assert not any(node.recomputable for i, node in enumerate(problem.fwd) if i in once or node.creator in once)


def test_calls_that_may_be_chosen() -> None:
    trace = captured("convnet")
    assert most_workspace(allowed(trace, limit=0)) == most_workspace(allowed(trace, families=()))
    assert most_workspace(allowed(trace)) > most_workspace(allowed(trace, limit=0))
    families = {way.family for op in allowed(trace, SAME_BITS).ops for way in op.implementations}
    assert families >= {"", "inplace", "int"}
    assert not any("conv" in family or "statistics" in family for family in families)
    targets = {way.target for op in allowed(trace).ops for way in op.implementations}
    assert "treadle.batch_norm_backward_output" not in targets


def test_other_calls_that_round_otherwise_are_named() -> None:
    trace = captured("convnet")
    ways = {
        family: OpRun(op=op.id, implementation=way.name)
        for op in trace.ops
        for way in op.implementations
        for family in way.family.split("+")
    }
    assert rounded_otherwise(trace, [OpRun(op=op.id) for op in trace.ops]) == ()
    assert rounded_otherwise(trace, [ways["inplace"]]) == ()
    assert rounded_otherwise(trace, [ways["conv"], ways["conv"], ways["inplace"]]) == (ways["conv"].op,)
