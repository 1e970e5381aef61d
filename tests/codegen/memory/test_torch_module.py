"""The generated training step: its text, what it frees, and what it refuses."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.codegen.plans import decisions_keeping
from treadle.capture.graph import capture
from treadle.codegen.memory.lower import schedule
from treadle.codegen.memory.torch_module import FILE_NAME, generate
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.index import Graph
from treadle.planner.passes.memory.planning import plan_memory
from treadle.planner.passes.memory.program import RunForward


class Tiny(nn.Module):
    """One of each: buffer updates, random numbers, views, a list argument, shared parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(images)))
        x = self.dropout(F.avg_pool2d(torch.cat([x, -x], 1), 4).flatten(1))
        return self.linear(F.gelu(self.linear(x)))


def tiny():
    return Tiny(), (torch.zeros(3, 2, 8, 8), torch.zeros(3, 32)), lambda m, x, y: F.mse_loss(m(x), y)


@pytest.fixture(scope="module")
def trace() -> Trace:
    captured = capture(tiny, "tiny")
    return msgspec.structs.replace(
        captured, ops=tuple(msgspec.structs.replace(op, time_ns=1000) for op in captured.ops)
    )


def plan_keeping(trace: Trace, kept: Collection[int]) -> Plan:
    decisions = decisions_keeping(trace, kept)
    return msgspec.structs.replace(plan_memory(decisions.problem), decisions=decisions)


@pytest.fixture(scope="module")
def plan(trace: Trace) -> Plan:
    """Keeps what the convolution and the matrix products make, and makes the rest again."""
    nodes = plan_keeping(trace, ()).decisions.problem.fwd
    return plan_keeping(trace, [i for i, node in enumerate(nodes) if "conv" in node.op or "addmm" in node.op])


def test_text(trace, plan, golden):
    text = generate(plan, trace)[FILE_NAME]
    golden("torch/tiny.step.py", text)
    assert generate(plan, trace) == {FILE_NAME: text}


@pytest.mark.parametrize("kept", [set(), {0}, {1, 3}, set(range(20))], ids=str)
def test_no_name_outlives_its_use(trace, kept):
    """Every local of `backward` is deleted before the next call after its last read, and never read afterwards."""
    text = generate(plan_keeping(trace, kept), trace)[FILE_NAME]
    module = ast.parse(text)
    backward = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "backward")
    arguments = {a.arg for a in backward.args.args} | {"device"}
    live: dict[str, int] = {}
    last_read: dict[str, int] = {}
    place = 0
    for statement in _statements(backward):
        hands_over = isinstance(statement, ast.Assign) and ast.unparse(statement).startswith("gradients[")
        place += isinstance(statement, ast.Assign) and not hands_over
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in arguments:
                if node.id in ("aten", "torch", "rng", "float", "next", "iter"):
                    continue
                assert node.id in live, f"line {node.lineno} reads {node.id} after it was deleted"
                last_read[node.id] = place
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in arguments:
                live[node.id] = last_read[node.id] = place
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                assert last_read[node.id] == place, f"line {node.lineno} deletes {node.id} late"
                del live[node.id]
    assert live.keys() <= {"_"}, "only what a call did not compute goes unnamed"


def _statements(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    for statement in function.body:
        if isinstance(statement, ast.With):
            yield from statement.body
        else:
            yield statement


def test_buffers_are_written_once_and_in_the_forward_pass(trace, plan):
    forward, backward = generate(plan, trace)[FILE_NAME].split("# BACKWARD")
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert forward.count(f'buffers["norm.{name}"].copy_(') == 1
    assert ".copy_(" not in backward
    assert "_native_batch_norm_legit_functional.default(" in backward, "it is recomputed in this plan"


def test_random_calls_are_replayed(trace, plan):
    forward, backward = generate(plan, trace)[FILE_NAME].split("# BACKWARD")
    assert forward.count("rng.state(device)") == 1
    assert backward.count("with rng.replayed(saved[") >= 1
    assert backward.count("with rng.replayed(saved.pop(") == 1, "the last time"
    everything = generate(plan_keeping(trace, set(range(99))), trace)[FILE_NAME]
    assert "rng." not in everything


def test_live_bytes_agree_with_the_simulation(trace):
    """Value by value over the calls, and node by node in the planner: two counts of the same peak."""
    for kept in (set(), {0, 1}, set(range(99))):
        decisions = plan_keeping(trace, kept).decisions
        made = schedule(decisions, trace)
        counted = max(event.live_bytes for event in (*made.forward, *made.backward))
        assert counted <= decisions.exact_peak_bytes
        held = sum(Graph(trace).storage_bytes(value) for _, value in trace.updates)
        assert counted >= decisions.exact_peak_bytes - decisions.problem.base["rng_state"] - held - 8


def test_a_plan_that_reads_what_it_dropped_is_refused(trace, plan):
    decisions = plan.decisions
    again = [i for i, x in enumerate(decisions.program) if isinstance(x, RunForward)]
    program = tuple(x for i, x in enumerate(decisions.program) if i != again[-1])
    broken = msgspec.structs.replace(plan, decisions=msgspec.structs.replace(decisions, program=program))
    with pytest.raises(InputError, match=r"stage \d+: op '.*' reads '.*', which the plan neither kept nor recomputed"):
        generate(broken, trace)


def test_a_plan_of_another_trace_is_refused(trace, plan):
    other = msgspec.structs.replace(trace, ops=trace.ops[1:])
    with pytest.raises(InputError, match="which the trace lacks"):
        generate(plan, other)


def test_traces_that_cannot_be_called_are_refused(trace, plan):
    first = trace.ops[0]
    for change, message in (({"args": None}, "no recorded arguments"), ({"mutates": first.inputs}, "in-place write")):
        changed = (msgspec.structs.replace(first, **change), *trace.ops[1:])
        with pytest.raises(InputError, match=message):
            generate(plan, msgspec.structs.replace(trace, ops=changed))


class Two(nn.Module):
    """Two outputs of one shape, of which the caller may differentiate the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.first(x))
        return h.detach() * 2, self.second(h)


def test_a_tangent_belongs_to_the_output_that_the_trace_says():
    trace = capture(lambda: (Two(), (torch.randn(2, 4),)), "two")
    trace = msgspec.structs.replace(trace, ops=tuple(msgspec.structs.replace(op, time_ns=1) for op in trace.ops))
    plan = plan_keeping(trace, range(99))
    assert "TANGENTS = [1]\n" in generate(plan, trace)[FILE_NAME]
    silent = msgspec.structs.replace(trace, tangent_of=())
    with pytest.raises(InputError, match=r"\$\.tangent_of: found nothing, .* 1 tangent and 2 outputs; capture"):
        generate(plan, silent)


def test_a_trace_may_leave_out_which_output_where_each_has_a_tangent(trace, plan):
    assert generate(plan, msgspec.structs.replace(trace, tangent_of=())) == generate(plan, trace)


def test_floats_that_json_cannot_hold_and_long_calls(trace, plan):
    ops = list(trace.ops)
    place = next(i for i, op in enumerate(ops) if op.target == "aten.relu.default")
    ops[place] = msgspec.structs.replace(
        ops[place], target="aten.clamp.default", args=(*(ops[place].args or ()), {"float": "-inf"}, {"float": "inf"})
    )
    text = generate(plan, msgspec.structs.replace(trace, ops=tuple(ops)))[FILE_NAME]
    assert 'float("-inf"), float("inf"))' in text
    assert max(map(len, text.splitlines())) <= 120


def test_forward_runs_every_op_once_in_order(trace, plan):
    problem, made = plan.decisions.problem, schedule(plan.decisions, trace)
    assert [event.op.id for event in made.forward if event.op] == [name for node in problem.fwd for name in node.ops]
    assert made.forward[-1].op is None
    backward = [event.op.id for event in made.backward if not event.again]
    assert backward == [name for node in problem.bwd for name in node.ops]
    again = {event.op.id for event in made.backward if event.again}
    late = [x.node for x in plan.decisions.program if isinstance(x, RunForward)][len(made.forward) - 1 :]
    assert again <= {name for node in late for name in problem.fwd[node].ops}
