"""A planned model trains as plain PyTorch does, within the plan's budget."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils._pytree import tree_flatten

import treadle
from tests.codegen.plans import decisions_keeping
from tests.planner.plans import memory_plan
from tests.planner.samples import DOCUMENTS
from tests.treadle.runtime.models import STEPS, plan_of, trace_of
from treadle.capture.graph import capture
from treadle.codegen.memory.handing_over import TIMES
from treadle.planner.documents import store
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.graph.index import Graph
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.runtime.memory.apply import apply
from treadle.runtime.meter import Meter
from treadle.runtime.planned_module import PlannedModule

ALL = Fraction(1)
SAME_KERNELS = sorted(STEPS.keys() - {"lstm"})


@dataclass
class Pair:
    """The same step twice: plain, and under a plan. `eager` and `planned` return (outputs, loss)."""

    plain: nn.Module
    planned: PlannedModule
    inputs: tuple[Tensor, ...]
    loss: object

    def eager_loss(self) -> Tensor:
        torch.manual_seed(1)
        return self.loss(self.plain, *self.inputs) if self.loss else _total(self.plain(*self.inputs))

    def planned_loss(self) -> Tensor:
        torch.manual_seed(1)
        return self.planned(*self.inputs) if self.loss else _total(self.planned(*self.inputs))

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        return [(a.grad, b.grad) for a, b in zip(self.plain.parameters(), self.planned.parameters(), strict=True)]


def _total(outputs: Tensor) -> Tensor:
    return outputs.square().sum()


def pair(name: str, share: Fraction | str = ALL) -> Pair:
    torch.manual_seed(0)
    model, inputs, *loss = STEPS[name]()
    planned = apply(model, plan_of(name, share), trace_of(name))
    return Pair(copy.deepcopy(model), planned, inputs, loss[0] if loss else None)


# Shares of the store-all peak that these small models can be planned at, and their least feasible budget.
BUDGETS = {
    "gpt2": (ALL, Fraction(9, 10), "least"),
    "gpt2_dropout": (ALL, "least"),
    "convnet": (ALL, Fraction(8, 10), Fraction(65, 100), "least"),
    "unet": (ALL, Fraction(8, 10), Fraction(6, 10), "least"),
    "lstm": (ALL, "least"),
    "mlp": (ALL,),
}
CASES = [(name, share) for name, shares in BUDGETS.items() for share in shares]


@pytest.mark.parametrize(("name", "share"), CASES, ids=lambda value: str(value))
def test_one_step_matches_plain_pytorch_within_the_budget(name, share):
    both = pair(name, share)
    decisions = plan_of(name, share).decisions
    plain = both.eager_loss()
    plain.backward()
    with Meter(both.planned, both.inputs) as meter:
        loss = both.planned_loss()
        loss.backward()
    for expected, found in both.gradients():
        if name in SAME_KERNELS:
            assert torch.equal(expected, found)
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(plain, loss)
    for expected, found in zip(both.plain.buffers(), both.planned.buffers(), strict=True):
        assert torch.equal(expected, found)
    assert meter.peak_bytes <= decisions.problem.budget_bytes
    reserved = decisions.problem.base["rng_state"]
    assert decisions.exact_peak_bytes - reserved - 4096 <= meter.peak_bytes <= decisions.exact_peak_bytes


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_store_all_takes_what_plain_pytorch_takes(name):
    both = pair(name)
    peaks = []
    for model, loss in ((both.plain, both.eager_loss), (both.planned, both.planned_loss)):
        with Meter(model, both.inputs) as meter:
            loss().backward()
        peaks.append(meter.peak_bytes)
    assert peaks[0] == peaks[1]


def test_training_loop_reaches_the_same_parameters_without_leaking():
    both = pair("convnet", Fraction(65, 100))
    live = []
    for run, model in ((both.eager_loss, both.plain), (both.planned_loss, both.planned)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            with Meter(model, both.inputs, [s["momentum_buffer"] for s in optimizer.state.values()]) as meter:
                run().backward()
                optimizer.step()
                optimizer.zero_grad()
            live.append(meter.live_bytes)
    assert live[3] == live[0], "after the first step, which makes the momentum"
    assert live[4:] == live[1:3]
    assert live[5] == live[4]
    for expected, found in zip(both.plain.parameters(), both.planned.parameters(), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("name", ["gpt2", "convnet"])
def test_two_backward_passes_accumulate(name):
    both = pair(name, Fraction(9, 10))
    for loss in (both.eager_loss, both.planned_loss):
        loss().backward()
        loss().backward()
    for expected, found in both.gradients():
        assert torch.equal(expected, found)


def test_accumulation_stays_within_a_plan_that_holds_the_gradients():
    trace = trace_of("unet")
    plan = memory_plan(trace, Fraction(7, 10), options=MemoryOptions(hold_gradients=True, gap=0.1))
    model, inputs, _ = STEPS["unet"]()
    planned = apply(model, plan, trace)
    planned(*inputs).backward()
    with Meter(planned, inputs) as meter:
        planned(*inputs).backward()
    assert meter.peak_bytes <= plan.decisions.problem.budget_bytes


def test_two_steps_in_flight_keep_their_values_apart():
    both = pair("gpt2", Fraction(9, 10))
    for loss in (both.eager_loss, both.planned_loss):
        first, second = loss(), loss()
        (first + 2 * second).backward()
    for expected, found in both.gradients():
        torch.testing.assert_close(found, expected)


def test_gradients_become_ready_in_the_order_in_which_the_trace_makes_them():
    trace = trace_of("gpt2")
    graph = Graph(trace)
    place = {tensor: index for index, op in enumerate(trace.ops) for tensor in op.outputs}
    ready = {
        graph.tensors[tensor.gradient_of].name: max(place[root] for root in graph.root(tensor.id))
        for tensor in trace.tensors
        if tensor.gradient_of
    }
    both = pair("gpt2", Fraction(9, 10))
    seen = []
    for name, parameter in both.planned.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name))
    both.planned_loss().backward()
    groups = both.planned.step.together
    assert [sorted(name for name in seen if name in group) for group in groups] == [sorted(group) for group in groups]
    assert [group for name in seen for group in groups if name in group] == [g for g in groups for _ in g]
    in_order = both.planned.step.gradients
    assert sorted(in_order) == sorted(seen) == sorted(ready)
    assert [ready[name] for name in in_order] == sorted(ready.values())


def _links(loss):
    """The nodes of autograd that hand gradients over."""
    found, ahead = set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            ahead += [following for following, _ in node.next_functions]
    return [node for node in found if node.name() == "_GradientsBackward"]


@pytest.mark.parametrize("name", ["gpt2", "convnet", "unet"])
def test_a_step_makes_a_node_of_autograd_for_a_sixteenth_of_its_backward_pass_and_not_for_each_parameter(name):
    both = pair(name)
    assert len(_links(both.planned_loss())) == len(both.planned.step.together) <= TIMES + 1
    assert len(both.planned.step.together) < len(both.planned.step.gradients)


@pytest.mark.parametrize(("name", "share"), [("gpt2", ALL), ("convnet", Fraction(65, 100)), ("unet", Fraction(6, 10))])
def test_where_hooks_free_gradients_at_once_those_that_wait_for_others_add_nothing_to_the_peak(name, share):
    peaks = []
    for apart in (False, True):
        both = pair(name, share)
        step = both.planned.step
        both.planned.step = dataclasses.replace(step, together=[[n] for n in step.gradients]) if apart else step
        for parameter in both.planned.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        with Meter(both.planned, both.inputs) as meter:
            both.planned_loss().backward()
        peaks.append(meter.peak_bytes)
    assert peaks[0] <= peaks[1]


def test_gradients_are_handed_over_and_not_copied():
    both = pair("gpt2")
    with Meter(both.planned, both.inputs) as meter:
        both.planned_loss().backward()
    parameters = sum(p.nbytes for p in both.planned.parameters())
    assert meter.live == {"parameters": parameters, "inputs": sum(i.nbytes for i in both.inputs), "made": parameters}


def test_state_dict_is_that_of_the_model():
    both = pair("convnet")
    assert list(both.planned.state_dict()) == list(both.plain.state_dict())
    assert [name for name, _ in both.planned.named_parameters()] == [name for name, _ in both.plain.named_parameters()]
    other = {name: torch.ones_like(value) for name, value in both.plain.state_dict().items()}
    both.planned.load_state_dict(other)
    assert all(torch.equal(a, torch.ones_like(a)) for a in both.planned.model.state_dict().values())


def test_a_copy_trains_on_its_own():
    both = pair("gpt2")
    twin = copy.deepcopy(both.planned)
    twin(*both.inputs).backward()
    assert all(parameter.grad is None for parameter in both.planned.parameters())
    both.eager_loss().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(both.plain.parameters(), twin.parameters(), strict=True))


def test_what_treadle_exports():
    assert treadle.apply is apply


def test_frozen_parameters_get_no_gradient():
    both = pair("gpt2")
    for model in (both.plain, both.planned):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name)
    both.eager_loss().backward()
    both.planned_loss().backward()
    for expected, found in both.gradients():
        assert (expected is None) == (found is None)
        assert expected is None or torch.equal(expected, found)


def test_without_gradients_the_step_gives_the_outputs_alone():
    both = pair("gpt2")
    with torch.no_grad():
        assert torch.equal(both.planned_loss(), both.eager_loss())
        assert not both.planned_loss().requires_grad


def test_a_forward_pass_without_backward_leaves_nothing():
    both = pair("unet")
    with Meter(both.planned, both.inputs) as meter:
        loss = both.planned_loss()
        held = meter.live_bytes
        del loss
        gc.collect()
    assert meter.live_bytes < held
    assert set(meter.live) - {"made"} == {"parameters", "buffers", "inputs"}
    assert meter.live["made"] == 0


def _call_in_evaluation(planned, inputs):
    planned.eval()
    planned(*inputs)


def _backward_twice(planned, inputs):
    loss = planned(*inputs)
    loss.backward(retain_graph=True)
    loss.backward()


def _change_between(planned, inputs):
    loss = planned(*inputs)
    with torch.no_grad():
        next(planned.parameters()).add_(1)
    loss.backward()


def _autocast(planned, inputs):
    with torch.autocast("cpu"):
        planned(*inputs)


REFUSALS = {
    "evaluation": (_call_in_evaluation, "evaluation mode"),
    "create graph": (lambda m, i: grad(m(*i), list(m.parameters()), create_graph=True), "create_graph=True"),
    "part in evaluation": (lambda m, i: (m.model.dropout.eval(), m(*i)), "module 'dropout' in evaluation mode"),
    "shape": (lambda m, i: m(i[0][:1], i[1][:1]), r"images of float32 \[1, 3, 16, 16\], expected float32 \[4, 3, 16"),
    "dtype": (lambda m, i: m(i[0].double(), i[1]), "images of float64"),
    "stride": (lambda m, i: m(i[0].to(memory_format=torch.channels_last), i[1]), r"images of strides .*contiguous"),
    "count": (lambda m, i: m(i[0]), "found 1 inputs, expected 2"),
    "kind": (lambda m, i: m(i[0], 3), "labels of type int"),
    "autocast": (_autocast, "autocast"),
    "precision": (lambda m, i: m.double()(*i), r"parameter 'stem.weight' of float64"),
    "device": (lambda m, i: m.to("meta")(*i), r"'images' on cpu, expected meta"),
    "input gradient": (lambda m, i: m(i[0].requires_grad_(), i[1]), "'images' requiring a gradient"),
    "second backward": (_backward_twice, "second backward"),
    "changed in place": (_change_between, "changed in place"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_plan_does_not_cover_is_refused_by_name(case):
    misuse, message = REFUSALS[case]
    both = pair("convnet")
    with pytest.raises(InputError, match=message):
        misuse(both.planned, both.inputs)


def planned_as(function, kept=range(99), **changes):
    """A fresh model of `function`, one whose plan keeps the nodes `kept`, and the inputs."""
    captured = capture(function, "here")
    trace = replace(captured, ops=tuple(replace(op, time_ns=1) for op in captured.ops), **changes)
    plan = replace(plan_of("mlp"), inputs={}, decisions=decisions_keeping(trace, kept))
    torch.manual_seed(0)
    model, inputs, *_ = function()
    return copy.deepcopy(model), apply(model, plan, trace), inputs


class Applies(nn.Module):
    """Calls `function(layers, x)`."""

    def __init__(self, function):
        super().__init__()
        self.layers, self.function = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)), function

    def forward(self, x):
        return self.function(self.layers, x)


def applied(function):
    return lambda: (Applies(function), (torch.randn(3, 4),))


class Scaled(nn.Module):
    """The backward pass reads `scale` and the statistics of the second normalisation, not those of the first."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.fixed = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval()
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x):
        return self.fixed(self.norm(self.first(x)) * self.scale).sin()


@pytest.mark.parametrize(
    ("name", "read"),
    [("scale", True), ("fixed.running_var", True), ("norm.running_mean", False), ("norm.num_batches_tracked", False)],
)
def test_a_buffer_that_the_backward_pass_reads_may_not_change_before_it(name, read):
    plain, planned, inputs = planned_as(lambda: (Scaled(), (torch.randn(3, 4),)))
    plain(*inputs).sum().backward()
    result = planned(*inputs).sum()
    planned.model.get_buffer(name).add_(1)
    if read:
        with pytest.raises(InputError, match=f"buffer '{name}' changed in place"):
            result.backward()
        return
    result.backward()
    for expected, found in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad)


class Products(nn.Module):
    """PyTorch computes the gradients of `left` and `scale` before it reads them for those of their inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.scale, self.left = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(5, 5))

    def forward(self, x):
        for _ in range(2):
            x = x + torch.tanh(self.left @ (self.scale * self.first(x)))
        return self.last(x).sigmoid()


def products():
    return Products(), (torch.randn(5, 6),)


@pytest.mark.parametrize("kept", [range(99), (), (1, 4)], ids=str)
def test_an_optimizer_may_step_each_parameter_as_soon_as_its_gradient_is_there(kept):
    plain, planned, inputs = planned_as(products, kept)

    def step(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for model in (plain, planned):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(*inputs).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))


def _changing(change, model, inputs):
    result = model(*inputs)
    change(dict(model.named_parameters()), inputs)
    return result


def _hooked(parameters, _):
    def change(_):
        parameters["scale"].detach().add_(0)

    parameters["last.weight"].register_post_accumulate_grad_hook(change)


CHANGES = {
    "output 0": lambda model, inputs: model(*inputs).mul_(2),
    "x": partial(_changing, lambda _, inputs: inputs[0].add_(0)),
    "parameter 'left'": partial(_changing, lambda parameters, _: parameters["left"].detach().add_(0)),
    "parameter 'scale'": partial(_changing, _hooked),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_before_its_last_read_is_refused_by_name_where_plain_pytorch_refuses_it(what):
    plain, planned, inputs = planned_as(products)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        CHANGES[what](plain, inputs).sum().backward()
    with pytest.raises(InputError, match=f"found {what} changed in place"):
        CHANGES[what](planned, inputs).sum().backward()


def test_modules_stay_in_the_mode_of_the_capture():
    def function():
        model, inputs = applied(lambda layers, x: layers(x))()
        model.layers[1].eval()
        return model, inputs

    plain, planned, inputs = planned_as(function)
    assert torch.equal(plain(*inputs), planned(*inputs))
    planned.train()
    with pytest.raises(InputError, match=r"module 'layers.1' in training mode, expected evaluation mode"):
        planned(*inputs)


def test_a_step_captured_in_evaluation_mode_trains_in_it():
    plain, planned, inputs = planned_as(lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), (torch.ones(4),)))
    assert torch.equal(plain(*inputs), planned(*inputs))
    with pytest.raises(InputError, match="found training mode, expected evaluation mode"):
        planned.train()(*inputs)


def test_a_parameter_used_without_gradient_need_not_be_frozen():
    def partly(layers, x):
        with torch.no_grad():
            x = layers[0](x)
        return layers[2](x)

    plain, planned, inputs = planned_as(applied(partly))
    for model in (plain, planned):
        model(*inputs).sum().backward()
    for expected, found in zip(plain.parameters(), planned.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None)
        assert expected.grad is None or torch.equal(expected.grad, found.grad)


def test_an_output_without_a_gradient_leaves_its_own_parameters_without_one():
    plain, planned, inputs = planned_as(
        applied(lambda layers, x: (layers[0](x), layers[2](layers[0](x)), layers[2](x)))
    )
    for used in ((0, 1), (0,), (2,), (0, 2)):
        for model in (plain, planned):
            model.zero_grad()
            outputs = model(*inputs)
            sum(outputs[place].sum() for place in used).backward()
        for expected, found in zip(plain.parameters(), planned.parameters(), strict=True):
            assert (expected.grad is None) == (found.grad is None)
            assert expected.grad is None or torch.equal(expected.grad, found.grad)


RETURNS = {
    "dict": lambda layers, x: {"a": layers[0](x), "smiles 😀": [layers[2](x)], 3: (x * 2, None, "word")},
    "one in a tuple": lambda layers, x: (layers[0](x),),
    "with a number": lambda layers, x: (layers[0](x).sum(), 1, float("-inf"), True),
    "one in a list": lambda layers, x: [layers[0](x)],
    "nested": lambda layers, x: (layers[0](x), ({"a rather long key" * 3: (x.sin(),), "another one" * 5: ()},)),
}


@pytest.mark.parametrize("name", RETURNS)
def test_outputs_come_as_the_model_returns_them(name):
    plain, planned, inputs = planned_as(applied(RETURNS[name]))
    leaves = []
    for model in (plain, planned):
        values, shape = tree_flatten(model(*inputs))
        leaves.append((shape, [value.tolist() if isinstance(value, Tensor) else value for value in values]))
    assert leaves[0] == leaves[1]


def test_a_saved_module_trains_on():
    both = pair("gpt2")
    file = io.BytesIO()
    torch.save(both.planned, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(*both.inputs).backward()
    both.eager_loss().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(both.plain.parameters(), loaded.parameters(), strict=True))


def test_a_compiled_program_may_call_a_planned_module():
    both = pair("mlp")
    both.eager_loss().backward()
    torch.compile(lambda *inputs: _total(both.planned(*inputs)) * 1, backend="eager")(*both.inputs).backward()
    assert all(torch.equal(a, b) for a, b in both.gradients())


def test_layouts_other_than_the_captured_one():
    for example, other, message in (
        (torch.ones(4, 6).t(), torch.ones(6, 4), r"strides \[4, 1\], expected \[1, 6\] as when .*; capture and plan"),
        (torch.ones(6, 4), torch.ones(4, 6).t(), r"strides \[1, 6\], expected \[4, 1\] as when .*try .contiguous\(\)$"),
        (
            torch.ones(2, 4, 4, 4).to(memory_format=torch.channels_last),
            torch.ones(2, 4, 4, 4),
            r"try .contiguous\(memory_format=torch.channels_last\)$",
        ),
    ):
        _, planned, inputs = planned_as(lambda example=example: (nn.Linear(4, 4), (example,)))
        planned(*inputs)
        with pytest.raises(InputError, match=message):
            planned(other)


def test_a_collective_plan_is_refused(tmp_path):
    store.save(DOCUMENTS["collective plan"], tmp_path / "plan.json")
    with pytest.raises(InputError, match="found a collective plan, expected a memory plan"):
        apply(nn.Linear(2, 2), tmp_path / "plan.json")


def test_a_plan_that_does_not_stand_its_check_is_refused():
    plan = plan_of("convnet", Fraction(1))
    altered = replace(plan, decisions=replace(plan.decisions, exact_peak_bytes=1))
    with pytest.raises(CheckFailed, match="fails its check"):
        apply(STEPS["convnet"]()[0], altered, trace_of("convnet"))


def test_what_is_no_plan_and_no_trace_is_refused_by_type():
    plan = plan_of("mlp")
    with pytest.raises(InputError, match="a plan of type dict, expected a Plan or its file"):
        apply(nn.Linear(2, 2), {"kind": "plan"})
    with pytest.raises(InputError, match="a trace of type dict, expected a Trace or its file"):
        apply(nn.Linear(2, 2), plan, {"kind": "trace"})


def test_another_model_is_refused():
    trace = trace_of("mlp")
    with pytest.raises(InputError, match=r"no parameter '0.bias', expected the model that was captured"):
        apply(nn.Sequential(nn.Linear(6, 16, bias=False)), plan_of("mlp"), trace)
    with pytest.raises(InputError, match="a model of type int"):
        apply(3, plan_of("mlp"), trace)
    with pytest.raises(InputError, match=r"parameter '0.weight' of float32 \[17, 6\], expected float32 \[16, 6\]"):
        apply(nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 4)), plan_of("mlp"), trace)


def test_plan_and_trace_files(tmp_path):
    plan, trace = plan_of("mlp"), trace_of("mlp")
    model, inputs = STEPS["mlp"]()
    store.save(plan, tmp_path / "plan.json")
    with pytest.raises(InputError, match=r"no trace '.*' next to the plan, expected it there, or its file as trace="):
        apply(model, tmp_path / "plan.json")
    name = plan.inputs["trace"].file
    store.save(trace, tmp_path / name)
    torch.testing.assert_close(apply(model, tmp_path / "plan.json")(*inputs), model(*inputs))
    store.save(trace_of("gpt2"), tmp_path / name)
    with pytest.raises(InputError, match=f"a trace other than {name!r}"):
        apply(model, str(tmp_path / "plan.json"))
    with pytest.raises(InputError, match="found no trace"):
        apply(model, plan)


class Target(nn.Module):
    """Outputs of one shape: the first is a target without gradient, the others take one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = torch.tanh(self.first(x))
        return h.detach() * 2, self.second(h), h.argmax(-1), self.second(h.detach() + 1)


@pytest.mark.parametrize("keep", [True, False], ids=["keep all", "recompute all"])
def test_only_outputs_that_take_a_gradient_in_plain_pytorch_take_one(keep):
    captured = capture(lambda: (Target(), (torch.randn(4, 6),)), "target")
    trace = replace(captured, ops=tuple(replace(op, time_ns=1) for op in captured.ops))
    decisions = decisions_keeping(trace, range(99) if keep else ())
    plain, x = Target(), torch.randn(4, 6)
    planned = apply(copy.deepcopy(plain), replace(plan_of("mlp"), inputs={}, decisions=decisions), trace)
    for module in (plain, planned):
        outputs = module(x)
        assert [output.requires_grad for output in outputs] == [False, True, False, True]
        (5 * outputs[0] + outputs[1] + 3 * outputs[3]).sum().backward()
    for expected, found in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad)


class Odd(nn.Module):
    """A buffer that the step changes and reads, an unused parameter, an input with a gradient, outputs of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.spectral_norm(nn.Linear(6, 6))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.sin(self.linear(x) * torch.exp(self.scale))
        self.scale.sub_(0.5)
        y = torch.softmax(self.linear(y * torch.exp(self.scale)), -1)
        return y, y.argmax(-1), (y * y).sum()


def odd() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Odd(), (torch.randn(4, 6, requires_grad=True),)


@pytest.mark.parametrize("keep", [True, False], ids=["keep all", "recompute all"])
def test_changed_buffers_gradients_of_inputs_and_outputs_of_two_kinds(keep):
    captured = capture(odd, "odd")
    trace = replace(captured, ops=tuple(replace(op, time_ns=1) for op in captured.ops))
    decisions = decisions_keeping(trace, range(99) if keep else ())
    torch.manual_seed(0)
    model, (x,) = odd()
    plain, planned = copy.deepcopy(model), apply(model, replace(plan_of("mlp"), inputs={}, decisions=decisions), trace)
    results = []
    for module in (plain, planned):
        for _ in range(2):
            x.grad = None
            outputs = module(x)
            (outputs[0].pow(3).sum() + outputs[2]).backward()
        assert not outputs[1].requires_grad
        results.append([*outputs, x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for expected, found in zip(*results, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
