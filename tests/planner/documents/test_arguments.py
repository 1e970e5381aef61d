"""Calls of a trace: what programs would spell without quotation marks has a grammar or a closed list."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from tests.planner.samples import TRACE
from treadle import kernels
from treadle.planner.documents import store
from treadle.planner.documents.arguments import (
    DTYPES,
    FLOATS,
    KERNELS,
    LAYOUTS,
    MEMORY_FORMATS,
    SPECIAL,
    target_problem,
)
from treadle.planner.documents.trace import Implementation, Trace
from treadle.planner.errors import InputError

ATTACK = "__import__('os').system('touch PWNED')"


def test_the_lists_are_those_of_pytorch_and_of_our_kernels():
    named = {kind: set() for kind in (torch.dtype, torch.layout, torch.memory_format)}
    for value in vars(torch).values():
        if type(value) in named:
            named[type(value)].add(str(value).removeprefix("torch."))
    assert named[torch.dtype] <= DTYPES
    assert named[torch.layout] <= LAYOUTS
    assert named[torch.memory_format] <= MEMORY_FORMATS
    assert set(kernels.__all__) == KERNELS
    assert {str(float(word)) for word in FLOATS} == FLOATS


def test_operators_of_pytorch_are_targets_unless_they_touch_files():
    for name in SPECIAL:
        assert hasattr(torch.ops.aten, name)
    for overload in ("aten.mm.default", "aten.__and__.Tensor", "mylib.op.out", "treadle.relu_mask"):
        assert target_problem(overload) is None
    touching = {
        schema.name.replace("::", ".")
        for schema in torch._C._jit_get_all_schemas()
        if any(argument.name == "filename" for argument in schema.arguments)
    }
    assert touching
    for operator in touching:
        assert target_problem(f"{operator}.default") is not None


@pytest.mark.parametrize(
    "target",
    [
        *("mm", "aten.mm", "aten..default", "aten.mm.default.x", "aten.mm.default\n", "aten.mm.default;x", ATTACK),
        *("aten.__class__.x", "aten.mm.__init__", "__a__.b.c", "prim.Print.default", "aten.ｍm.default"),
        *("treadle.os", "treadle.relu_mask.x", "treadle.__doc__", "os.system", ""),
    ],
)
def test_other_targets_are_refused(target: str):
    assert target_problem(target) is not None


@pytest.mark.parametrize(
    ("tree", "path", "message"),
    [
        ({"float": f'1") or {ATTACK} or float("1'}, ".float", "expected one of -inf, inf, nan"),
        ({"float": 1.0}, ".float", "found 1.0, expected one of"),
        ({"dtype": f"float32 or {ATTACK}"}, ".dtype", "expected an element type of PyTorch such as float32"),
        ({"dtype": "load"}, ".dtype", "found 'load' (text)"),
        ({"layout": "strided.x"}, ".layout", "expected one of _mkldnn"),
        ({"memory_format": ["channels_last"]}, ".memory_format", "found an array of 1 value"),
        ({"device": "cpu\n"}, ".device", "expected a device such as cpu or cuda:0"),
        ({"tensor": 3}, ".tensor", "found 3, expected the id of a tensor"),
        ({"eval": "1"}, ".eval", "found an unknown field, expected one of tensor, dtype"),
        ({}, "", "found an object of other than one field"),
        ([1, [{"float": "Infinity"}]], "[1][0].float", "expected one of"),
    ],
)
def test_an_argument_that_stands_for_nothing_is_named(tree, path: str, message: str):
    op = replace(TRACE.ops[0], args=(None, tree), kwargs=None)
    with pytest.raises(InputError) as error:
        read(replace(TRACE, ops=(op, *TRACE.ops[1:])))
    assert str(error.value).startswith(f"step.json: $.ops[0].args[1]{path}: found ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_keywords_targets_types_and_implementations_are_checked_too():
    first, *others = TRACE.ops
    way = Implementation(name="w", family="", target=ATTACK, outputs=("y", None))
    cases = {
        f"$.ops[0].kwargs['{ATTACK[:6]}": replace(first, kwargs={ATTACK: 1}),
        "$.ops[0].kwargs.alpha.dtype": replace(first, kwargs={"alpha": {"dtype": "x"}}),
        "$.ops[0].target": replace(first, target=ATTACK),
        "$.ops[0].implementations[0].target": replace(first, implementations=(way,)),
    }
    for path, op in cases.items():
        with pytest.raises(InputError) as error:
            read(replace(TRACE, ops=(op, *others)))
        assert error.value.path.replace('"', "'").startswith(path)
    for path, changed in (
        ("$.autocast", replace(TRACE, autocast="load")),
        ("$.tensors[0].dtype", replace(TRACE, tensors=(replace(TRACE.tensors[0], dtype=ATTACK), *TRACE.tensors[1:]))),
    ):
        with pytest.raises(InputError, match="element type of PyTorch") as error:
            read(changed)
        assert error.value.path == path


def test_calls_that_were_not_recorded_may_have_any_name():
    """An imported trace has names of kernels, and nothing is generated from it."""
    op = replace(TRACE.ops[0], target="void gemm<float, 4>(int)", args=None)
    read(replace(TRACE, ops=(op, *TRACE.ops[1:])))


def read(trace: Trace) -> Trace:
    return store.loads(store.dumps(trace), "step.json", Trace)
