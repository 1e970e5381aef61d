"""A swap plan for torch.compile: what is carried, and that the compiled step moves it and changes no bit.

PyTorch's offloading operators need an accelerator; here stand-ins of them run that copy as late as is allowed and
poison what is not there (treadle.runtime.offload_ops).
"""

from __future__ import annotations

import copy
import shutil
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional as F

from examples.models.gpt2 import TINY, step
from tests.codegen.swap.swap_plans import plan_with, swapped, timed
from tests.torch_versions import OFFLOADS
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.codegen.swap.torch_offload import FILE_NAME, carry, generate
from treadle.codegen.targets import generate as generate_target
from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InputError, MissingBackendError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.graph.index import Graph
from treadle.planner.graph.unrolling import INPLACE, as_run
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.runtime.offload_ops import operators, stand_in

NEEDS_OFFLOADING = pytest.mark.skipif(not OFFLOADS, reason="PyTorch before 2.13 lacks ao::offload")
Step = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


def layers() -> Step:
    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*parts), (torch.randn(256, 32),), lambda model, x: model(x).square().mean()


def transformer() -> Step:
    torch.manual_seed(0)
    return step(TINY, 2, 16)


class Convolutions(nn.Module):
    """Running statistics, views that are saved, a sum that two branches read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(8), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = x + self.second(x).relu()
        return self.last(F.avg_pool2d(x, 2).flatten(1).tanh())


def convolutions() -> Step:
    torch.manual_seed(0)
    return (
        Convolutions(),
        (torch.randn(4, 3, 16, 16), torch.randint(10, (4,))),
        lambda m, x, y: F.cross_entropy(m(x), y),
    )


@pytest.fixture(scope="module")
def trace() -> Trace:
    return timed(capture(layers, "layers", "train"))


@pytest.fixture(scope="module")
def decisions(trace: Trace) -> SwapDecisions:
    return swapped(trace, 1)


def module(text: str) -> types.ModuleType:
    made = types.ModuleType("offload")
    made.__file__ = FILE_NAME
    exec(compile(text, FILE_NAME, "exec"), made.__dict__)
    return made


def test_text(trace: Trace, decisions: SwapDecisions, golden: Any) -> None:
    files, _ = generate(decisions, trace)
    golden("torch/layers.offload.py", files[FILE_NAME])
    assert generate(decisions, trace)[0] == files


def test_what_is_carried_leaves_in_the_forward_pass_and_returns_in_the_backward_pass(
    trace: Trace, decisions: SwapDecisions
) -> None:
    carried = carry(decisions, trace)
    graph = Graph(trace)
    names = [tensor.id for tensor in decisions.problem.tensors]
    kinds = {node.item: [n.kind for n in decisions.nodes if n.item == node.item and n.kind != "compute"]
             for node in decisions.nodes if node.kind == "out"}  # fmt: skip
    assert carried.moves
    assert carried.planned_copies == sum(node.kind in ("in", "out") for node in decisions.nodes)
    assert carried.planned_bytes == decisions.in_bytes + decisions.out_bytes
    assert carried.bytes == sum(graph.storage_bytes(move.tensor) for move in carried.moves)
    order = {op.id: at for at, op in enumerate(trace.ops)}
    for move in carried.moves:
        assert "out" in kinds[names.index(move.tensor)]
        assert "in" in kinds[names.index(move.tensor)]
        assert graph.ops[move.offload].phase == "forward"
        assert order[graph.producer[move.tensor].id] <= order[move.offload]
        assert move.reload is None or graph.ops[move.reload].phase == "backward"
        assert move.free is None or order[move.offload] < order[move.free]


@NEEDS_OFFLOADING
@pytest.mark.parametrize("make", [layers, transformer, convolutions])
def test_a_compiled_step_moves_what_is_carried_and_changes_no_bit(make: Callable[[], Step]) -> None:
    """Through AOT autograd, operator by operator."""
    follow(make, timed(capture(make, make.__name__, "train")))


@NEEDS_OFFLOADING
def test_what_lies_in_place_of_another_is_carried_under_its_own_name() -> None:
    """The plan covers storages: the one that a sum of two ReLUs takes over holds three tensors in turn."""
    trace = timed(with_implementations(capture(convolutions, "convolutions", "train")))
    decisions = swapped(trace, 1)
    assert sum(run.implementation == INPLACE for run in decisions.runs) > 2
    carried, graph = carry(decisions, trace), Graph(as_run(trace, decisions.runs))
    renamed = [move for move in carried.moves if graph.owner[move.tensor] != move.tensor]
    assert renamed
    late = {t for op in graph.trace.ops if op.phase == "backward" for t in op.inputs}
    assert {move.tensor for move in renamed} <= late
    follow(convolutions, trace)


def follow(make: Callable[[], Step], trace: Trace) -> None:
    from treadle.runtime.followers import _partitioned

    files, carried = generate(swapped(trace, 1), trace)
    made = module(files[FILE_NAME])
    assert carried.moves
    torch._dynamo.reset()
    traffic = stand_in()
    model, inputs, loss = make()
    reference = copy.deepcopy(model)
    follower = _partitioned(made.partition, model, loss)
    for _ in range(2):
        before = counts(traffic)
        follower.call(*inputs).backward()
        loss(reference, *inputs).backward()
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for (_, a), (_, b) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
            assert torch.equal(a, b)
        (found,) = made.carried
        assert found["of"] == len(carried.moves)
        assert found["bytes"] >= 0.95 * carried.bytes  # statistics of batch norms are other results in the graph
        assert counts(traffic) == tuple(
            count + more for count, more in zip(before, (found["moves"], found["bytes"]) * 2, strict=True)
        )
        assert not traffic.pending


def counts(traffic: Any) -> tuple[int, ...]:
    return traffic.out_copies, traffic.out_bytes, traffic.in_copies, traffic.in_bytes


@NEEDS_OFFLOADING
def test_the_graphs_copy_where_the_plan_says(trace: Trace, decisions: SwapDecisions) -> None:
    """Copies out are issued after their operator and the last use, waited for before the memory is wanted or the pass
    ends; copies in vice versa."""
    from torch._functorch.aot_autograd import aot_module_simplified

    made = module(generate(decisions, trace)[0][FILE_NAME])
    graphs = []

    def partition(joint: Any, inputs: Any, **arguments: Any) -> Any:
        graphs.extend(made.partition(joint, inputs, **arguments))
        return graphs[-2:]

    def backend(graph: Any, inputs: Any) -> Any:
        run = lambda module, _: module.forward  # noqa: E731
        from functorch.compile import make_boxed_func

        return aot_module_simplified(
            graph, inputs, fw_compiler=lambda m, i: make_boxed_func(run(m, i)), partition_fn=partition
        )

    torch._dynamo.reset()
    stand_in()
    model, inputs, loss = layers()
    torch.compile(lambda x: loss(model, x), backend=backend)(*inputs).backward()
    forward, backward = ([str(node.target) for node in graph.graph.nodes] for graph in graphs)
    count = made.carried[0]["moves"]
    assert count == len(made.MOVES) > 0
    assert forward.count("ao.offload.default") == backward.count("ao.reload.default") == count
    assert forward.count("ao.wait_tensor.default") == backward.count("ao.wait_tensor.default") == count
    early = 0
    for node in graphs[0].graph.nodes:
        if str(node.target) == "ao.offload.default":
            nodes = list(graphs[0].graph.nodes)
            source = node.args[0]
            others = [
                user for user in source.users if str(user.target) != "ao.wait_tensor.default" and user is not node
            ]
            assert all(nodes.index(user) < nodes.index(node) for user in others)
            (wait,) = node.users
            early += wait.next.op != "output" and "ao.wait" not in str(wait.next.target)
    assert early or all(free is None for *_, free, _ in made.MOVES)
    for node in graphs[1].graph.nodes:
        if str(node.target) == "ao.reload.default":
            assert node.args[0].op == "placeholder"
            (wait,) = node.users
            nodes = list(graphs[1].graph.nodes)
            assert all(nodes.index(user) > nodes.index(wait) for user in wait.users)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which Inductor compiles with")
@NEEDS_OFFLOADING
def test_inductor_takes_the_copies(trace: Trace, decisions: SwapDecisions) -> None:
    made = module(generate(decisions, trace)[0][FILE_NAME])
    made.__dict__["__file__"] = __file__
    stand_in()
    torch._dynamo.reset()
    model, inputs, loss = layers()
    reference = copy.deepcopy(model)
    loss(reference, *inputs).backward()
    made.compile(lambda *arguments: loss(model, *arguments))(*inputs).backward()
    assert made.carried[0]["moves"] == made.carried[0]["of"] > 0
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(OFFLOADS, reason="PyTorch has ao::offload")
def test_without_the_operators_the_version_is_named() -> None:
    with pytest.raises(MissingBackendError, match=r"without ao::offload, which .* needs; install PyTorch 2\.13"):
        operators()


def test_other_traces_other_steps_and_plans_that_recompute_are_refused(trace: Trace, decisions: SwapDecisions) -> None:
    renamed = replace(trace, ops=tuple(replace(op, id=f"{op.id}.") for op in trace.ops))
    with pytest.raises(InputError, match="not the plan's trace"):
        generate(decisions, renamed)
    with pytest.raises(InputError, match="without --with-recompute"):
        generate(replace(decisions, runs=(OpRun(op="addmm"),) * 2), trace)
    with pytest.raises(InputError, match="without --with-recompute"):
        generate(replace(decisions, runs=(OpRun(op="addmm", implementation="fft"),)), trace)
    inference = timed(capture(layers, "layers", "infer"))
    with pytest.raises(InputError, match="expected a training step"):
        generate(swapped(inference, 1), inference)


def test_targets(trace: Trace, decisions: SwapDecisions) -> None:
    made = generate_target(plan_with(decisions), "plan.json", trace, "torch-offload")
    assert set(made.files) == {FILE_NAME, "plan.json"}
    assert made.facts["carried"]["moves"] == len(carry(decisions, trace).moves)
    with pytest.raises(InputError, match="name it with --trace"):
        generate_target(plan_with(decisions), "plan.json", None, "torch-offload")
    with pytest.raises(
        InputError, match="no target torch-sac, which is for memory plans; expected --target torch-swap, torch-offload"
    ):
        generate_target(plan_with(decisions), "plan.json", trace, "torch-sac")


@NEEDS_OFFLOADING
@pytest.mark.parametrize("share", [1, 1.3, 2])
def test_updates_between_backward_operators_are_no_places_in_the_graphs(share: float) -> None:
    """A plan with an optimizer in its step: copies are issued after operators that the compiled graphs have."""
    adam = timed(with_optimizer(capture(layers, "layers", "train"), "adam"))
    files, carried = generate(swapped(adam, share), adam)
    phases = {op.id: op.phase for op in adam.ops}
    assert {phases[move.reload] for move in carried.moves if move.reload} <= {"backward"}
    assert len(module(files[FILE_NAME]).MOVES) == len(carried.moves)
