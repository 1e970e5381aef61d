"""Programs found in traces: optimizer steps from gradients or recorded buckets, tails of layers; what is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.find import find
from treadle.planner.passes.fusion.find.optimizers import OPTIMIZERS, text_of
from treadle.planner.passes.fusion.parsing import parse


def tensor(name: str, *shape: int, role: str = "activation", dtype: str = "float32", **more: object) -> Tensor:
    return Tensor(id=name, role=role, shape=shape, bytes=4, dtype=dtype, **more)  # type: ignore[arg-type]


def op(name: str, target: str, inputs: str, output: str, **more: object) -> Op:
    more.setdefault("phase", "forward")
    return Op(id=name, target=target, inputs=tuple(inputs.split()), outputs=(output,), **more)  # type: ignore[arg-type]


LAYER = Trace(
    version=1,
    name="a layer",
    mode="train",
    source="hand",
    costs=Costs(model="absent"),
    tensors=(
        tensor("x", 6, 8),
        tensor("w", 4, 8, role="parameter"),
        tensor("b", 4, role="parameter"),
        tensor("wt", 8, 4, alias_of="w"),
        tensor("y", 6, 4),
        tensor("y3", 2, 3, 4, alias_of="y"),
        tensor("d", 2, 3, 4),
        tensor("r", 2, 3, 4),
        tensor("out", 2, 3, 4),
        tensor("gw", 4, 8, role="gradient", gradient_of="w"),
        tensor("gb", 4, role="gradient", gradient_of="b"),
    ),
    ops=(
        op("t", "aten.t.default", "w", "wt"),
        op("mm", "aten.addmm.default", "b x wt", "y", modules=("block", "block.output")),
        op("view", "aten.view.default", "y", "y3"),
        op("drop", "aten.native_dropout.default", "y3", "d", args=({"tensor": "y3"}, 0.25, True)),
        op("add", "aten.add.Tensor", "r d", "out"),
        op("back", "aten.sum.default", "out", "gw", phase="backward"),
        op("back_b", "aten.sum.default", "out", "gb", phase="backward"),
    ),
)


def test_a_tail_with_bias_and_dropout_has_the_extents_of_the_trace() -> None:
    found, passed = find(LAYER, tensor_ranks=2)
    tail = next(each for each in found if each.parallel == "tensor")
    assert tail.extents == {"B": 2, "S": 3, "K": 8, "H": 4}
    assert tail.where == "block.output"
    assert tail.count == 1
    program = parse(tail.text, "tail")
    assert [node.op for node in program.nodes if not node.anonymous] == ["MatMul", "AllReduce", "Add", "Dropout", "Add"]
    assert next(node for node in program.nodes if node.op == "Dropout").attribute("p") == 0.25
    assert not passed


def test_gradients_become_one_step_over_all_tensors() -> None:
    found, _ = find(LAYER, tensor_ranks=1)
    (step,) = found
    assert step.extents == {"N": 36}
    assert step.parts == {"N": (32, 4)}
    assert "assumed" in step.assumed
    assert {"m", "v", "p"} <= set(parse(step.text, "step").updates)


def test_equal_layers_are_counted_together() -> None:
    again = [
        replace(each, id=f"{each.id}2") for each in LAYER.tensors if each.role == "activation" and not each.alias_of
    ]
    second = (
        op("mm2", "aten.addmm.default", "b x2 wt", "y2"),
        op("view2", "aten.view.default", "y2", "y32"),
        op("drop2", "aten.native_dropout.default", "y32", "d2", args=({"tensor": "y32"}, 0.25, True)),
        op("add2", "aten.add.Tensor", "r2 d2", "out2"),
    )
    view = tensor("y32", 2, 3, 4, alias_of="y2")
    twice = replace(LAYER, tensors=(*LAYER.tensors, *again, view), ops=(*LAYER.ops, *second))
    tails = [each for each in find(twice, tensor_ranks=2)[0] if each.parallel == "tensor"]
    assert [each.count for each in tails] == [2]


def test_a_captured_allreduce_makes_the_inner_dimension_that_of_one_rank() -> None:
    ops = tuple(replace(each, inputs=("s",)) if each.id == "view" else each for each in LAYER.ops)
    reduced = op("ar", "_c10d_functional.all_reduce.default", "y", "s0")
    waited = op("wait", "_c10d_functional.wait_tensor.default", "s0", "s")
    trace = replace(
        LAYER,
        tensors=(*LAYER.tensors, tensor("s0", 6, 4), tensor("s", 6, 4)),
        ops=(*ops[:2], reduced, waited, *ops[2:]),
    )
    tail = next(each for each in find(trace, tensor_ranks=4)[0] if each.parallel == "tensor")
    assert tail.extents["K"] == 32
    assert tail.assumed == ""


def test_what_is_passed_over_is_told_with_its_reason() -> None:
    activated = replace(LAYER, ops=tuple(
        op("gelu", "aten.gelu.default", "y3", "d") if each.id == "drop" else each for each in LAYER.ops
    ))  # fmt: skip
    _, passed = find(activated, tensor_ranks=2)
    assert [(each.what, each.why) for each in passed] == [
        ("block.output", "its result goes to aten.gelu.default, not into a sum with a residual")
    ]


def test_too_many_ranks_for_a_layer_are_told() -> None:
    _, passed = find(LAYER, tensor_ranks=16)
    assert "inner dimension of 8" in passed[0].why


def test_recorded_buckets_become_steps() -> None:
    comm = {"collective": "allreduce", "bytes": 4096}
    bucket = Op(id="ar", target="nccl:all_reduce", phase="unknown", comm=comm)
    trace = replace(LAYER, tensors=(), ops=(bucket, replace(bucket, id="ar2")))
    (step,) = find(trace, tensor_ranks=2)[0]
    assert (step.extents, step.count) == ({"N": 1024}, 2)


def test_a_trace_with_nothing_to_find_is_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="neither gradients nor layers"):
        find(replace(LAYER, tensors=(), ops=()), tensor_ranks=2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_every_optimizer_is_a_program(optimizer: str, dtype: str) -> None:
    program = parse(text_of(optimizer, dtype), optimizer)  # type: ignore[arg-type]
    assert "p" in program.updates
    assert any(node.op == "AllReduce" for node in program.nodes)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match="'adagrad'"):
        find(LAYER, tensor_ranks=1, optimizer="adagrad")


def test_under_autocast_the_residual_stays_wide() -> None:
    narrow = dict.fromkeys(("y", "y3", "d", "wt"), "float16")
    tensors = tuple(replace(each, dtype=narrow.get(each.id, each.dtype)) for each in LAYER.tensors)
    cast = (tensor("wh", 4, 8, dtype="float16"), tensor("bh", 4, dtype="float16"))
    ops = (
        op("cast_w", "aten._to_copy.default", "w", "wh"),
        op("cast_b", "aten._to_copy.default", "b", "bh"),
        op("t", "aten.t.default", "wh", "wt"),
        op("mm", "aten.addmm.default", "bh x wt", "y"),
        *LAYER.ops[2:],
    )
    found, _ = find(replace(LAYER, tensors=(*tensors, *cast), ops=ops), tensor_ranks=2)
    text = next(each.text for each in found if each.parallel == "tensor")
    assert 'w = Tensor("w", f16, [K, H], Sliced(0))' in text
    assert 'r = Tensor("r", f32, [B, S, H], Replicated)' in text
    assert "out = Cast(f32, d) + r" in text
    parse(text, "tail")


def test_what_keeps_the_random_numbers_of_a_dropout_reads_no_element() -> None:
    kept = op("state", "treadle.rng_state", "y3", "s")
    trace = replace(LAYER, tensors=(*LAYER.tensors, tensor("s", 1)), ops=(*LAYER.ops, kept))
    assert find(trace, tensor_ranks=2)[0] == find(LAYER, tensor_ranks=2)[0]
