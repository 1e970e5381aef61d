"""Where storages lie over an iteration, and which objects stand where in the next."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.treadle.runtime.swap.steps import batch, model_of, step_of
from treadle.planner.errors import InputError
from treadle.runtime.swap.places import moved, objects_of, places_of
from treadle.runtime.swap.step import TensorLayout, load_swap_step, tensors_of
from treadle.runtime.swap.swapped import SwappedStep
from treadle.runtime.swap.work import out_variant

aten = torch.ops.aten


def test_objects_change_their_roles_within_their_class():
    step = dataclasses.replace(
        step_of("tiny", "sgd"),
        pool=[[0, 4, 3], [12, 8, 2]],
        initial={"a": 0, "b": 4, "c": 12},
        final={"a": 8, "b": 4, "c": 12},
    )
    first = objects_of(step)
    assert first == {0: 0, 4: 4, 8: 8, 12: 12, 20: 20}
    second = moved(step, first)
    assert second == {0: 8, 4: 4, 8: 0, 12: 12, 20: 20}, "a stands where the plan has it at the start"
    assert moved(step, second) == first
    assert moved(dataclasses.replace(step, final=step.initial), first) == first


def test_nodes_that_find_nothing_are_named():
    step = step_of("tiny", "sgd", extra=0)
    arrival = next(place for place, node in enumerate(step.nodes) if node.kind == "in")
    storage = step.nodes[arrival].item
    gone = [node for place, node in enumerate(step.nodes) if place != arrival]
    with pytest.raises(InputError, match=rf"tiny: node \d+ (runs '.*', which reads|takes) '{storage}'"):
        places_of(dataclasses.replace(step, nodes=gone))
    with pytest.raises(InputError, match="the iteration ends with other residents than it says"):
        places_of(dataclasses.replace(step, final={**step.final, storage: 0}))


def test_views_lie_where_pytorch_puts_them():
    """Layouts come from running views without memory; the same views of true tensors lie there too."""
    step = step_of("lstm", "sgd")
    computed = {node.item for node in step.nodes if node.kind == "compute"}
    values = {name: each.empty("cpu") for name, each in step.storages.items()}
    seen = 0
    for call in step.calls(torch.device("cpu")).values():
        if call.name in computed or not all(name in values for name in tensors_of(call)):
            continue
        for name, view in zip(call.outputs, call.run(values), strict=True):
            values[name] = view
            layout = step.layouts[name]
            seen += layout.offset > 0
            found = layout.on(values[layout.storage].untyped_storage())
            assert (found.data_ptr(), found.shape, found.stride()) == (view.data_ptr(), view.shape, view.stride())
    assert seen


def test_elements_lie_where_their_type_can():
    arena = torch.zeros(64, dtype=torch.uint8)
    layout = TensorLayout("x", torch.int64, (2,), (1,))
    layout.place(arena, 8).fill_(-1)
    assert arena.nonzero().flatten().tolist() == list(range(8, 24))
    with pytest.raises(InputError, match="found 'x' at address 12, where no int64 can lie; plan with"):
        layout.place(arena, 12)


def test_operators_that_write_into_given_tensors():
    assert out_variant(aten.mm.default).function == aten.mm.out
    assert out_variant(aten.sum.dim_IntList).function == aten.sum.IntList_out
    assert out_variant(aten.topk.default).names == ("values", "indices")
    assert out_variant(aten.add_.Tensor) is None, "it writes in place itself"
    assert out_variant(aten.arange.default) is None
    assert out_variant(aten.convolution.default) is None, "what PyTorch generates for it copies"
    assert out_variant(len) is None


def test_only_what_needs_no_more_room_on_the_way_writes_straight_into_its_place():
    """PyTorch's `mse_loss` first makes its result as large as its input, which would not fit."""
    ours = SwappedStep(model_of("moe"), step_of("moe", "sgd"), "cpu")
    direct = ours.memory._direct
    assert direct["mm"]
    assert not direct["mse_loss"]
    ours(*batch("moe", 0))
    assert ours.memory.written()["direct"] == sum(direct.values()) > 20


def test_a_call_of_anything_but_an_operator_is_refused():
    text = step_of("tiny", "sgd").text.replace("(aten.relu.default,", "(returned,")
    assert "(returned," in text
    with pytest.raises(InputError, match=r"tiny: found a call of .*, expected operators and kernels"):
        load_swap_step(text)


def test_a_text_for_another_pytorch_is_refused():
    text = step_of("tiny", "sgd").text.replace("aten.relu.default", "aten.reluu.default")
    with pytest.raises(InputError, match=r"tiny: .*reluu.*; expected operators that this PyTorch has"):
        load_swap_step(text)
