"""The tables of a swap plan: their text, and what they say of the plan."""

from __future__ import annotations

import re

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from examples.models import resnet152
from tests.planner.passes.swap.plans import decide
from tests.treadle.runtime.swap import steps
from tests.treadle.runtime.swap.steps import Free, differing, plan_of, plan_with, step_of, trace_of
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.codegen import targets
from treadle.codegen.swap.torch_swap import FILE_NAME, generate
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.unrolling import plain_runs, unrolled
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.extract import GRANULARITY, problem_from_trace
from treadle.planner.passes.swap.layout import least_pool, pool_bytes
from treadle.planner.passes.swap.planning import inplace_problem
from treadle.runtime.swap.step import load_swap_step
from treadle.runtime.swap.swapped import SwappedStep


def small():
    """Two layers with views between them."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, (torch.zeros(4, 3), torch.zeros(4, 2)), lambda m, x, y: F.mse_loss(m(x), y)


@pytest.fixture(scope="module", autouse=True)
def known():
    steps.STEPS["small"] = small
    steps.STEPS["resnet152"] = resnet152.tiny


@pytest.fixture(scope="module")
def trace(known) -> Trace:
    return trace_of("small", "sgd")


def test_text(trace, golden):
    plan = plan_of("small", "sgd", extra=0)
    text = generate(plan, trace)[FILE_NAME]
    golden("torch/small.swap.py", text)
    assert generate(plan, trace) == {FILE_NAME: text}
    assert max(map(len, text.splitlines())) <= 120


def test_nodes_stand_in_an_order_in_which_one_after_the_other_can_run():
    """Every wait is for an earlier node, and all nodes of the plan are there, each with its places."""
    plan, step = plan_of("gpt2_dropout", "adam"), step_of("gpt2_dropout", "adam")
    decisions = plan.decisions
    assert len(step.nodes) == len(decisions.nodes)
    assert all(before < place for place, node in enumerate(step.nodes) for before in node.after)
    assert sum(len(node.at) for node in step.nodes) == sum(len(node.at) for node in decisions.nodes)
    computed = [node.item for node in step.nodes if node.kind == "compute"]
    assert computed == [decisions.problem.ops[op].id for op in decisions.order]


def test_objects_lie_where_the_plan_puts_them_on_addresses_that_kernels_like():
    plan, step = plan_of("gpt2_dropout", "adam"), step_of("gpt2_dropout", "adam")
    decisions = plan.decisions
    assert any(tensor.bytes % GRANULARITY for tensor in decisions.problem.tensors), "or it would show nothing"
    assert step.pool == [[each.address, each.object_bytes, each.count] for each in decisions.pool]
    places = [at for node in step.nodes for at in node.at.values()] + [*step.initial.values(), *step.final.values()]
    assert not [at for at in places if at % GRANULARITY]
    objects = {start + size * number: size for start, size, count in step.pool for number in range(count)}
    for node in step.nodes:
        assert all(step.storages[name].bytes <= objects[at] for name, at in node.at.items())
    assert step.arena_bytes == sum(objects.values()) <= decisions.problem.arena_bytes


def test_a_plan_without_granularity_lies_where_it_says():
    """Plans of versions that counted exact bytes keep their meaning."""
    trace = trace_of("gpt2_dropout", "adam")
    problem = msgspec.structs.replace(problem_from_trace(trace, steps.MACHINE), granularity=1)
    plan = plan_with(decide(problem, range(len(problem.ops)), least_pool(problem)), trace)
    old = store.loads(store.dumps(plan), "old.plan.json", Plan)
    assert "granularity" not in store.dumps(old)
    step = load_swap_step(generate(old, trace)[FILE_NAME])
    assert step.pool == [[each.address, each.object_bytes, each.count] for each in plan.decisions.pool]
    assert step.arena_bytes == pool_bytes(problem.object_sizes, least_pool(problem))


def test_a_recomputed_operator_is_an_operator_like_others():
    trace = trace_of("tiny", "sgd")
    runs = list(plain_runs(trace))
    again = next(op for op in trace.ops if op.target == "aten.relu.default")
    first_backward = next(place for place, run in enumerate(runs) if run.op.startswith("nll_loss_backward"))
    runs.insert(first_backward, OpRun(op=again.id))
    problem = problem_from_trace(unrolled(trace, runs), steps.MACHINE)
    decisions = decide(problem, range(len(problem.ops)), least_pool(problem))
    plan = plan_with(msgspec.structs.replace(decisions, runs=tuple(runs)), trace)
    text = generate(plan, trace)[FILE_NAME]
    assert f'compute("{again.id}#2"' in text
    assert "1 operator is computed a second time" in text
    step = load_swap_step(text)
    assert differing(SwappedStep(steps.model_of("tiny"), step, "cpu", poison=True), Free("tiny", step)) == []
    assert differing(SwappedStep(steps.model_of("tiny"), step, "cpu"), Free("tiny", step_of("tiny", "sgd"))) == []


def test_an_operator_that_takes_over_the_memory_of_what_it_reads():
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    captured = with_implementations(capture(steps.STEPS["tiny"], "tiny"))
    trace = with_roofline(with_optimizer(captured, "sgd"), hardware)
    way = {op.id: next((x.name for x in op.implementations if x.overwrites), "default") for op in trace.ops}
    runs = [
        OpRun(op=run.op, implementation=way[run.op] if run.op == "relu" else "default") for run in plain_runs(trace)
    ]
    problem = problem_from_trace(unrolled(trace, runs), steps.MACHINE)
    decisions = decide(problem, range(len(problem.ops)), least_pool(problem))
    text = generate(plan_with(msgspec.structs.replace(decisions, runs=tuple(runs)), trace), trace)[FILE_NAME]
    assert 'ALIASES = {"relu": ["addmm", "float32", [8, 16], [16, 1]]}' in text
    assert "aten.relu_.default" in text
    step = load_swap_step(text)
    assert step.layouts["relu"].storage == "addmm"
    ours = SwappedStep(steps.model_of("tiny"), step, "cpu", poison=True)
    assert differing(ours, Free("tiny", step_of("tiny", "sgd"))) == [], "the bits of the plain operator"


@pytest.mark.parametrize(("name", "mode"), [("resnet152", "infer"), ("convnet", "train"), ("gpt2_dropout", "train")])
def test_plans_write_in_place_and_keep_the_bits_of_the_model(name, mode):
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    captured = with_implementations(capture(steps.STEPS[name], name, mode))
    trace = with_roofline(with_optimizer(captured, "sgd") if mode == "train" else captured, hardware)
    task = inplace_problem(trace, steps.MACHINE)
    problem, runs = task.problem, task.runs
    assert sum(run.implementation == "inplace" for run in runs) >= 3
    pool = least_pool(problem)
    room = pool_bytes(problem.object_sizes, pool) + problem.scratch_bytes
    machine = msgspec.structs.replace(problem.machine, memory_bytes=room)
    problem = msgspec.structs.replace(problem, machine=machine)
    decisions = decide(problem, range(len(problem.ops)), pool)
    plan = plan_with(msgspec.structs.replace(decisions, runs=runs), trace)
    assert not check(plan.decisions)
    text = generate(plan, trace)[FILE_NAME]
    assert "_.default" in text or "add_.Tensor" in text
    step = load_swap_step(text)
    plain = step_of(name, "sgd" if mode == "train" else None, mode)
    model = steps.model_of(name) if mode == "train" else steps.model_of(name).eval()
    assert differing(SwappedStep(model, step, "cpu", poison=True), Free(name, plain)) == []


def test_what_cannot_become_a_step_is_refused(trace):
    plan = plan_of("small", "sgd", extra=0)
    counted = msgspec.structs.replace(plan.decisions, allocator="bytes", pool=(), class_of=())
    with pytest.raises(InputError, match=r"\$.decisions.allocator: found a plan without addresses"):
        generate(msgspec.structs.replace(plan, decisions=counted), trace)
    other = msgspec.structs.replace(trace, ops=tuple(op for op in trace.ops if op.id != "tanh"))
    with pytest.raises(InputError, match="the plan runs op 'tanh', which the trace lacks"):
        generate(plan, other)
    silent = tuple(msgspec.structs.replace(op, args=None) for op in trace.ops)
    with pytest.raises(InputError, match="has no recorded arguments, expected a trace captured from PyTorch"):
        generate(plan, msgspec.structs.replace(trace, ops=silent))


def test_it_is_what_a_swap_plan_becomes(trace):
    made = targets.generate(plan_of("small", "sgd", extra=0), "small.plan.json", trace)
    assert made.target == "torch-swap"
    assert sorted(made.files) == ["plan.json", FILE_NAME]
    assert made.facts["memory_bytes"] == plan_of("small", "sgd", extra=0).decisions.problem.machine.memory_bytes
    assert re.search(r"^NODES = \[$", made.files[FILE_NAME], re.MULTILINE)
