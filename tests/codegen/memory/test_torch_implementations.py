"""Generated steps follow the implementations that a plan chose: results, lives and bytes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from tests.codegen.plans import plan_with
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.codegen.memory.lower import schedule
from treadle.codegen.memory.torch_module import FILE_NAME, generate
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.trace import Op, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import VERSION, Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import EnterStage, Instruction, RunBackward, RunForward
from treadle.runtime.meter import Meter
from treadle.runtime.planned_module import PlannedModule
from treadle.runtime.planned_step import load_step


class Zoo(nn.Module):
    """An op of every kind that has implementations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.dropout = nn.Dropout(0.4)
        self.hidden, self.layer_norm, self.output = nn.Linear(128, 32), nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 2)
        x = F.relu6(self.conv(x)) + x
        x = self.dropout(F.max_pool2d(x, 2)).flatten(1)
        return self.output(F.relu(self.layer_norm(self.hidden(x))))


def zoo():
    torch.manual_seed(0)
    inputs = torch.randn(6, 3, 16, 16), torch.randint(5, (6,))
    return Zoo(), inputs, lambda model, images, labels: F.cross_entropy(model(images), labels)


class Residual(nn.Module):
    """A residual stream that is overwritten after it was normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return (x + self.second(self.norm(x)).exp()).sin()


def residual():
    torch.manual_seed(0)
    return Residual(), (torch.randn(8, 16), torch.randn(8, 64)), lambda model, x, y: F.mse_loss(model(x), y)


def traced(function: Callable) -> Trace:
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    return with_roofline(with_implementations(capture(function, "step")), hardware)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traced(zoo)


def decided(
    trace: Trace,
    ways: Mapping[str, str] = {},
    inplace: Iterable[str] = (),
    again: Mapping[str, Iterable[str]] = {},
    kept: bool = False,
) -> MemoryDecisions:
    """A plan by hand: op ids to implementations, ops in place, and what runs again before which backward op; with
    `kept` by what its first run left. Every call is a node of its own, and nothing is dropped before the end."""
    early = [op for op in trace.ops if op.phase == "forward"]
    late = [op for op in trace.ops if op.phase == "backward"]
    place = {op.id: index for index, op in enumerate(early)}
    wanted = {tensor for op in late for tensor in _call(op, ways).inputs}

    def index(op: Op) -> int:
        return [way.name for way in op.implementations].index(ways[op.id]) + 1 if op.id in ways else 0

    forward = tuple(
        ForwardNode(
            op=op.target,
            out_bytes=0,
            impls=tuple(
                Forward(name=name, recompute_time_ns=1 if kept else None)
                for name in ("default", *(way.name for way in op.implementations))
            ),
            kind="op" if op.intermediate_of is None else "intermediate",
            creator=None if op.intermediate_of is None else place[op.intermediate_of],
            ops=(op.id,),
        )
        for op in early
    )
    backward = tuple(
        BackwardNode(
            op=op.target,
            out_grad_bytes=0,
            live_grad_bytes=0,
            impls=tuple(Backward(name=name) for name in ("default", *(way.name for way in op.implementations))),
            ops=(op.id,),
        )
        for op in late
    )
    program: list[Instruction] = [EnterStage(len(late) + 1)]
    for i, op in enumerate(early):
        if op.intermediate_of is None or wanted.intersection(op.outputs):
            program.append(RunForward(i, index(op), op.id in inplace))
    for k, op in enumerate(late):
        program.append(EnterStage(len(late) - k))
        program += [RunForward(place[name], 0, name in inplace) for name in again.get(op.id, ())]
        program.append(RunBackward(k, index(op)))
    return MemoryDecisions(
        problem=MemoryProblem(version=VERSION, budget_bytes=2**40, base={}, fwd=forward, bwd=backward),
        program=tuple(program),
        objective_ns=0,
        store_all_ns=0,
        bound_peak_bytes=0,
        exact_peak_bytes=0,
        store_all_peak_bytes=0,
    )


def _call(op: Op, ways: Mapping[str, str]):
    return next((way for way in op.implementations if way.name == ways.get(op.id)), op)


def text_of(decisions: MemoryDecisions, trace: Trace) -> str:
    return generate(plan_with(decisions), trace)[FILE_NAME]


def compared(function: Callable, decisions: MemoryDecisions, trace: Trace, change: Callable | None = None, **tolerance):
    """Train a step plainly and as generated, require equal gradients and buffers, return the meter of the latter. Both
    models change as `change` says once the plan is applied."""
    model, inputs, loss = function()
    plain, planned = copy.deepcopy(model), PlannedModule(model, load_step(text_of(decisions, trace), "step"))
    if change:
        change(plain)
        change(planned.model)
    torch.manual_seed(1)
    expected = loss(plain, *inputs)
    expected.backward()
    torch.manual_seed(1)
    with Meter(planned, inputs) as meter:
        found = planned(*inputs)
        found.backward()
    pairs = [(expected, found), *zip(plain.buffers(), planned.buffers(), strict=True)]
    for a, b in (*pairs, *((p.grad, q.grad) for p, q in zip(plain.parameters(), planned.parameters(), strict=True))):
        torch.testing.assert_close(b, a, **(tolerance or {"rtol": 0, "atol": 0}))
    return meter


def counted(decisions: MemoryDecisions, trace: Trace) -> int:
    made = schedule(decisions, trace)
    return max(event.live_bytes for event in (*made.forward, *made.backward))


def ops_by(trace: Trace, target: str, phase: str = "forward") -> list[Op]:
    return [op for op in trace.ops if target in op.target and op.phase == phase]


CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SAME_BITS = ("int", "rng", "statistics", "inplace", "grad-inplace")


def test_every_implementation_of_every_op_gives_the_gradients_of_plain_pytorch(trace):
    tried = set()
    for op in trace.ops:
        for way in op.implementations:
            if way.overwrites is None and not way.again:
                exact = all(family in (*SAME_BITS, "") for family in way.family.split("+"))
                compared(zoo, decided(trace, {op.id: way.name}), trace, **({} if exact else CLOSE))
                tried.add((op.target, way.target))
    targets = {target for _, target in tried}
    assert targets > {
        "treadle.conv2d_winograd",
        "treadle.relu_backward_mask",
        "treadle.max_pool2d_backward_index",
        "treadle.batch_norm_backward_output",
        "treadle.layer_norm_backward_output",
        "treadle.dropout_backward_rng",
    }


def test_optional_ops_run_only_where_the_plan_wants_them(trace):
    (relu, _) = ops_by(trace, "threshold_backward", "backward")
    plain, masked = (text_of(decided(trace, ways), trace) for ways in ({}, {relu.id: "mask"}))
    assert "kernels.relu_mask(" not in plain
    assert masked.count("kernels.relu_mask(") == 1
    assert masked.startswith(plain[: plain.index("\n")])
    assert "\nfrom treadle import kernels\n" in masked


def in_place(trace: Trace, phase: str) -> dict[str, str]:
    """The ops of a phase that have an implementation that overwrites, with the name of the last one."""
    names = {op.id: [way.name for way in op.implementations if way.overwrites] for op in trace.ops if op.phase == phase}
    return {op: found[-1] for op, found in names.items() if found}


def test_in_place_runs_hand_their_memory_over_and_are_counted_exactly(trace):
    (clamp,) = ops_by(trace, "hardtanh_backward", "backward")
    ops = in_place(trace, "forward").keys()
    assert len(ops) == 4, "two of ReLU, one of ReLU6, one sum that overwrites what that made"
    plain = sum(event.live_bytes for event in schedule(decided(trace), trace).forward)
    for ways, left in (({clamp.id: "output"}, ops_by(trace, "aten.add.Tensor")), ({}, ops_by(trace, "aten.hardtanh"))):
        decisions = decided(trace, ways, ops - {op.id for op in left})
        meter = compared(zoo, decisions, trace)
        assert meter.peak_bytes == counted(decisions, trace)
        assert sum(event.live_bytes for event in schedule(decisions, trace).forward) < plain
        text = text_of(decisions, trace)
        assert text.count("aten.relu_.default(") == 2
        assert text.count("aten.hardtanh_.default(") + text.count("aten.add_.Tensor(") == 1


def test_gradients_in_place(trace):
    choice = in_place(trace, "backward")
    assert len(choice) >= 2
    decisions = decided(trace, choice)
    meter = compared(zoo, decisions, trace)
    assert meter.peak_bytes <= compared(zoo, decided(trace), trace).peak_bytes
    assert "kernels.threshold_backward_(" in text_of(decisions, trace) or "mask_(" in text_of(decisions, trace)


def test_bytes_of_every_event_are_what_a_meter_sees_between_calls(trace):
    """Live bytes, watched at each call of the generated step, never exceed the count and reach it."""
    for ways in ({}, in_place(trace, "backward")):
        decisions = decided(trace, ways)
        assert compared(zoo, decisions, trace).peak_bytes == pytest.approx(counted(decisions, trace), rel=0.02)


def test_overwriting_what_is_read_later_is_refused(trace):
    relu = ops_by(trace, "aten.relu")[0]
    (backward, _) = ops_by(trace, "threshold_backward", "backward")[::-1]
    with pytest.raises(
        InputError, match=rf"op {backward.id!r} reads '.*batch_norm.*', which the plan neither kept nor"
    ):
        text_of(decided(trace, {backward.id: "input"}, {relu.id}), trace)


def test_overwriting_what_somebody_holds_is_refused(trace):
    relu = ops_by(trace, "aten.relu")[0]
    way = replace(relu.implementations[0], inputs=trace.inputs[:1], overwrites=trace.inputs[0])
    ops = tuple(replace(op, implementations=(way,)) if op.id == relu.id else op for op in trace.ops)
    changed = replace(trace, ops=ops)
    with pytest.raises(InputError, match="overwrites 'input_0', expected a value that the step made"):
        text_of(decided(changed, inplace={relu.id}), changed)


def test_implementations_that_the_trace_lacks_are_refused(trace):
    (backward, _) = ops_by(trace, "threshold_backward", "backward")
    decisions = decided(trace, {backward.id: "mask"})
    bare = tuple(replace(op, implementations=()) if op.id == backward.id else op for op in trace.ops)
    with pytest.raises(InputError, match=rf"runs op {backward.id!r} by 'mask', which the trace lacks"):
        text_of(decisions, replace(trace, ops=bare))
    conv = ops_by(trace, "aten.convolution")[0]
    with pytest.raises(InputError, match=rf"runs op {conv.id!r} in place, for which the trace has no implementation"):
        text_of(decided(trace, inplace={conv.id}), trace)


def test_statistics_of_the_first_run_serve_a_recomputation(trace):
    (norm,) = ops_by(trace, "batch_norm")
    (relu,) = [op for op in ops_by(trace, "aten.relu") if norm.outputs[0] in op.inputs]
    (pooled, *_) = [op for op in trace.ops if op.phase == "backward" and relu.outputs[0] in op.inputs]
    decisions = decided(trace, again={pooled.id: (norm.id, relu.id)}, kept=True)
    with pytest.raises(InputError, match="by what its first run left, for which the trace has no implementation"):
        text_of(decisions, trace)
    fwd = tuple(
        node
        if node.ops == (norm.id,)
        else replace(node, impls=tuple(replace(i, recompute_time_ns=None) for i in node.impls))
        for node in decisions.problem.fwd
    )
    decisions = replace(decisions, problem=replace(decisions.problem, fwd=fwd))
    text = text_of(decisions, trace)
    forward, backward = text.split("# BACKWARD")
    assert "kernels.batch_norm_again(" in backward
    assert "_native_batch_norm_legit_functional.default(" not in backward
    compared(zoo, decisions, trace)
    assert "kernels" not in forward.replace("kernels.max_pool2d", "").replace("import kernels", "")


def zeroed(*names: str) -> Callable:
    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for name in names:
                model.get_parameter(name)[::3] = 0

    return change


def inverted(trace: Trace) -> dict[str, str]:
    return {op.id: "output" for op in ops_by(trace, "_norm_backward", "backward")}


@pytest.mark.parametrize("names", [("norm.weight",), ("layer_norm.weight",), ("norm.weight", "layer_norm.weight")])
def test_a_scale_of_zero_is_not_divided_by(trace, names):
    decisions = decided(trace, inverted(trace))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compared(zoo, decisions, trace, zeroed(*names), **CLOSE)
    assert sorted(str(w.message).split()[0] for w in caught) == sorted(names)


def test_a_model_that_starts_with_such_a_scale_is_refused(trace):
    model, *_ = zoo()
    zeroed("norm.weight")(model)
    PlannedModule(model, load_step(text_of(decided(trace), trace), "step"))
    with pytest.raises(InputError, match=r"'norm.weight' near 0, .*--without out"):
        PlannedModule(model, load_step(text_of(decided(trace, inverted(trace)), trace), "step"))


def test_a_scale_away_from_zero_needs_no_input(trace):
    decisions = decided(trace, inverted(trace))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared(zoo, decisions, trace, **CLOSE)
    model, inputs, _ = zoo()
    step = load_step(text_of(decisions, trace), "step")
    for change, kept in ((lambda model: None, 0), (zeroed("norm.weight"), 1)):
        change(model)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, saved = step.forward(dict(model.named_parameters()), dict(model.named_buffers()), list(inputs))
        spares = [value for key, value in saved.items() if key.startswith("spare ")]
        assert len(spares) == 2
        assert sum(value is not None for value in spares) == kept


def test_what_is_spared_survives_being_overwritten():
    trace = traced(residual)
    (add,) = [op for op in ops_by(trace, "aten.add.Tensor") if op.implementations]
    decisions = decided(trace, inverted(trace), {add.id})
    assert "copy=True" in text_of(decisions, trace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared(residual, decisions, trace, zeroed("norm.weight"), **CLOSE)
    compared(residual, decisions, trace, **CLOSE)


def test_text(golden):
    """Every kind of call in one step: optional ops, kernels, in place, again, spares."""
    trace = with_implementations(capture(zoo, "zoo"))
    (clamp,) = ops_by(trace, "hardtanh_backward", "backward")
    (relu, _) = ops_by(trace, "threshold_backward", "backward")
    (conv, _) = ops_by(trace, "aten.convolution")
    (norm,) = ops_by(trace, "layer_norm_backward", "backward")
    ways = {clamp.id: "output", relu.id: "mask", conv.id: "im2col", norm.id: "output"}
    left = (ops_by(trace, "aten.relu")[1], *ops_by(trace, "aten.add.Tensor"))
    inplace = in_place(trace, "forward").keys() - {op.id for op in left}
    golden("torch/zoo.step.py", text_of(decided(trace, ways, inplace), trace))
