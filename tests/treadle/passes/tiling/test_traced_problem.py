"""Problems of traces: what is kept, shared and returned; rules; blocks; operators without a rule."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.conftest import GOLDEN
from tests.treadle.passes.tiling.traced_layers import layers
from treadle.passes.tiling.blocks import blocks_of
from treadle.passes.tiling.extract import ModelTiling, problem_of_trace
from treadle.planner.documents import store
from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.extract import mesh_axes

MESH = ModelTiling(mesh_axes((2,)), "exact")


@pytest.fixture(scope="module")
def step() -> Trace:
    return store.load(GOLDEN / "inputs" / "step.json", Trace)


def test_a_step_becomes_nodes_with_rules_and_gradients_like_their_weights(step: Trace) -> None:
    made = problem_of_trace(step, MESH)
    problem = made.problem
    assert list(problem.problems()) == []
    assert made.unruled == {}
    arrays = {array.id: array for array in problem.arrays}
    for tensor in step.tensors:
        if tensor.gradient_of is not None and tensor.id in arrays:
            assert arrays[tensor.id].like == tensor.gradient_of
            assert tensor.id in problem.outputs
        if tensor.role == "parameter":
            assert (arrays[tensor.id].kept_item_bytes, tensor.id in problem.outputs) == (8, True)  # two states of Adam
        if tensor.alias_of in arrays and tensor.id in arrays:
            assert arrays[tensor.id].shares == tensor.alias_of
    assert problem.outputs[: len(step.outputs)] == step.outputs
    assert {node.function for node in problem.nodes if not node.inputs} >= {"parameter", "input", "tangent"}
    assert max(len(node.rules) for node in problem.nodes) < 10


def test_optional_ops_and_updates_of_an_optimizer_are_no_nodes(step: Trace) -> None:
    ids = {node.id for node in problem_of_trace(step, MESH).problem.nodes}
    assert ids.isdisjoint(op.id for op in step.ops if op.intermediate_of is not None or op.phase == "optimizer")


def test_repeated_layers_have_the_words_of_one_block() -> None:
    trace = layers(3)
    words = blocks_of(trace.ops, {tensor.id: tensor for tensor in trace.tensors})
    assert words["f0"] == words["f1"] == words["f2"] == "layers.*/1"
    assert words["w0"] == words["w2"] == "layers.*/0"
    assert words["b1"] == "layers.*/2"


def test_layers_that_differ_are_no_block() -> None:
    trace = layers(2)
    other = replace(trace.ops[1], target="aten.add.Tensor")
    words = blocks_of((trace.ops[0], other, *trace.ops[2:]), {tensor.id: tensor for tensor in trace.tensors})
    assert words == {}


def test_an_operator_without_a_rule_is_replicated_and_counted() -> None:
    trace = layers(1)
    unknown = Op(
        id="far", target="aten._pdist_forward.default", phase="forward", inputs=("x1",), outputs=("r",),
        args=({"tensor": "x1"}, 2.0),
    )  # fmt: skip
    result = Tensor(id="r", role="output", shape=(6,), stride=(1,), dtype="float32", bytes=24)
    made = problem_of_trace(replace(trace, ops=(*trace.ops, unknown), tensors=(*trace.tensors, result)), MESH)
    assert made.unruled == {"aten._pdist_forward.default": 1}
    node = made.problem.nodes[-1]
    assert [made.problem.rules[rule].outputs for rule in node.rules] == [("R",)]


def test_a_trace_says_arguments_and_shapes() -> None:
    trace = layers(1)
    silent = replace(trace, ops=(replace(trace.ops[0], args=None), trace.ops[1]))
    with pytest.raises(InputError, match="op 'f0' has no recorded arguments"):
        problem_of_trace(silent, MESH)
    shapeless = tuple(replace(tensor, shape=None) if tensor.id == "x1" else tensor for tensor in trace.tensors)
    with pytest.raises(InputError, match="expected shapes that do not depend on data"):
        problem_of_trace(replace(trace, tensors=shapeless), MESH)
