"""The inference table of docs/fusion.md: what each row gives, and what each row refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.dims import ONE, Dim, dim
from treadle.planner.passes.fusion.infer import infer, retyped, stale, typed
from treadle.planner.passes.fusion.layouts import (
    FLAT,
    GROUP,
    WORLD,
    At,
    Block,
    Local,
    Replicated,
    RingTile,
    Sliced,
    layout_text,
)
from treadle.planner.passes.fusion.operations import OPERATIONS
from treadle.planner.passes.fusion.program import Input, Program, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal

R, L = Replicated(), Local()
TILES = Sliced(FLAT, RingTile(2, 4))


def S(at, slices=Block()):  # noqa: B008
    return Sliced(at, slices)


def t(layout, shape="T H", dtype="f32", group=WORLD):
    """A tensor; `shape` has names, numbers and `N.parts`, with blanks between."""
    extents = tuple(dim(int(word)) if word.isdigit() else Dim((word,)) for word in shape.split())
    return TensorType(dtype, extents, layout, group)


SCALAR = t(R, "")
IMAGE, KERNEL = "N C 8 8", "K C 3 3"
GIVES = [
    # row, operation, operands, attributes, layout, shape
    ("1", "Sqrt", [t(R)], {}, R, "T H"),
    ("1", "Neg", [t(L)], {}, L, "T H"),
    ("1", "ReLU", [t(S(1))], {}, S(1), "T H"),
    ("1", "Tanh", [t(At(2))], {}, At(2), "T H"),
    ("1", "Cast", [t(TILES)], {"dtype": "f16"}, TILES, "T H"),
    ("2", "Add", [t(R), t(R, "H")], {}, R, "T H"),
    ("2", "Add", [t(R, "T 1"), t(R, "1 H")], {}, R, "T H"),
    ("2", "Mul", [t(R), 2], {}, R, "T H"),
    ("2", "Mul", [t(R, "N"), t(R, "N.parts")], {}, R, "N"),
    ("3", "Sub", [t(L), t(L, "1")], {}, L, "T H"),
    ("3", "Sub", [t(At(1)), t(At(1))], {}, At(1), "T H"),
    ("4", "Mul", [t(S(0)), t(S(0))], {}, S(0), "T H"),
    ("4", "Mul", [t(TILES), t(TILES)], {}, TILES, "T H"),
    ("4", "Mul", [t(S(1)), t(S(0), "H")], {}, S(1), "T H"),
    ("5", "Div", [SCALAR, t(S(0))], {}, S(0), "T H"),
    ("5", "Div", [SCALAR, t(L)], {}, L, "T H"),
    ("5", "Div", [t(At(0)), SCALAR], {}, At(0), "T H"),
    ("5", "Add", [SCALAR, SCALAR], {}, R, ""),
    ("5", "Add", [t(L, "T H", group=GROUP), SCALAR], {}, L, "T H"),
    ("6", "Add", [t(R), t(L)], {}, L, "T H"),
    ("6", "Add", [t(L, ""), t(R)], {}, L, "T H"),
    ("7", "Add", [t(R, "H"), t(S(0))], {}, S(0), "T H"),
    ("7", "Add", [t(S(0)), t(R, "1 H")], {}, S(0), "T H"),
    ("7", "Add", [t(S(0), "1 H"), t(R, "1 H")], {}, S(0), "1 H"),
    ("7", "Add", [t(R, "T 1"), t(S(1))], {}, S(1), "T H"),
    ("7", "Add", [t(R, "H"), t(S(FLAT))], {}, S(FLAT), "T H"),
    ("7", "Mul", [t(S(FLAT), "N"), t(R, "N.parts")], {}, S(FLAT), "N"),
    ("7", "Where", [t(S(0), dtype="bool"), t(S(0)), 0], {}, S(0), "T H"),
    ("10", "MatMul", [t(S(1), "T K"), t(S(0), "K H")], {}, L, "T H"),
    ("10", "MatMul", [t(S(2), "B T K"), t(S(0), "K H")], {}, L, "B T H"),
    ("11", "MatMul", [t(R, "T K"), t(R, "K H")], {}, R, "T H"),
    ("12", "MatMul", [t(S(0), "B T K"), t(R, "K H")], {}, S(0), "B T H"),
    ("13", "MatMul", [t(R, "B T K"), t(S(1), "K H")], {}, S(2), "B T H"),
    ("14", "MatMul", [t(L, "T K"), t(R, "K H")], {}, L, "T H"),
    ("14", "MatMul", [t(R, "T K"), t(L, "K H")], {}, L, "T H"),
    ("14", "MatMul", [t(L, "T K"), t(L, "K H")], {}, L, "T H"),
    ("16", "Conv2d", [t(S(1), IMAGE), t(S(1), KERNEL)], {}, L, "N K 6 6"),
    ("17a", "Conv2d", [t(S(0), IMAGE), t(R, KERNEL)], {"stride": 2, "padding": 1}, S(0), "N K 4 4"),
    ("17a", "Conv2d", [t(S(0), "N C X Y"), t(R, KERNEL)], {"padding": 1}, S(0), "N K X Y"),
    ("17b", "Conv2d", [t(R, IMAGE), t(S(0), KERNEL)], {}, S(1), "N K 6 6"),
    ("17c", "Conv2d", [t(R, IMAGE), t(R, KERNEL)], {}, R, "N K 6 6"),
    ("17c", "Conv2d", [t(L, IMAGE), t(R, KERNEL)], {}, L, "N K 6 6"),
    ("18", "Dropout", [t(S(1))], {"p": 0.5, "key": "k"}, S(1), "T H"),
    ("18", "Dropout", [t(R)], {"p": 0, "key": "k"}, R, "T H"),
    ("19", "AllReduce", [t(L)], {"op": "max"}, R, "T H"),
    ("19", "AllReduce", [t(R)], {"op": "+"}, R, "T H"),
    ("20", "ReduceScatter", [t(L)], {"op": "+"}, S(FLAT), "T H"),
    ("20", "ReduceScatter", [t(L)], {"op": "+", "dim": 1}, S(1), "T H"),
    ("20", "ReduceScatter", [t(L)], {"op": "+", "map": "ring_tile(2,4,1)"}, TILES, "T H"),
    ("21", "AllGather", [t(TILES)], {}, R, "T H"),
    ("22", "Reduce", [t(L)], {"op": "+", "root": 3}, At(3), "T H"),
    ("23", "Broadcast", [t(At(3))], {"root": 3}, R, "T H"),
    ("24", "Slice", [t(R)], {"dim": 0}, S(0), "T H"),
    ("25", "Load", [t(R)], {"root": 1}, At(1), "T H"),
    ("26", "Send", [t(R, group=GROUP)], {}, R, "T H"),
    ("26", "Send", [t(S(0), group=GROUP)], {}, S(0), "T H"),
    ("26", "Send", [t(L, group=GROUP)], {"to": 1}, L, "T H"),
    ("27", "Norm", [t(R)], {}, R, ""),
    ("27", "ReduceTensor", [t(R)], {"op": "+", "dim": 1}, R, "T 1"),
    ("27", "ReduceTensor", [t(R, "N")], {"op": "max", "per": "tensor"}, R, "N.parts"),
    ("28", "Norm", [t(S(FLAT), "N")], {"per": "tensor"}, R, "N.parts"),
    ("28", "ReduceTensor", [t(TILES)], {"op": "min"}, R, ""),
    ("28", "ReduceTensor", [t(S(0))], {"op": "+", "dim": 0}, R, "1 H"),
    ("28", "ReduceTensor", [t(S(0))], {"op": "+", "dim": 1}, S(0), "T 1"),
    ("29", "Norm", [t(L)], {}, L, ""),
    ("29", "Norm", [t(L, "N")], {"per": "tensor"}, L, "N.parts"),
    ("30", "Update", [t(R), t(R)], {}, R, "T H"),
    ("30", "Update", [t(S(0)), t(S(0))], {}, S(0), "T H"),
    ("31", "Update", [t(R), t(TILES)], {}, TILES, "T H"),
    ("32", "AllToAll", [t(L)], {}, L, "T H"),
    ("33", "Permute", [t(R), t(R, "X", "i32")], {}, R, "X H"),
    ("33", "Permute", [t(L), t(L, "X", "i64")], {}, L, "X H"),
    ("33", "Permute", [t(S(1)), t(R, "X", "i32")], {}, S(1), "X H"),
    ("34", "GroupSize", [], {}, R, ""),
]

REFUSED = [
    # row, operation, operands, attributes
    ("4", "Add", [t(S(FLAT)), t(TILES)], {}),
    ("4", "Add", [t(TILES), t(Sliced(FLAT, RingTile(4, 4)))], {}),
    ("4", "Add", [t(S(FLAT), "H"), t(R, "T 1")], {}),
    ("4", "Add", [t(S(0), "1 H"), t(R)], {}),
    ("8", "Add", [t(R), t(S(0))], {}),
    ("8", "Add", [t(R), t(S(FLAT))], {}),
    ("8", "Add", [t(S(1)), t(R, "H")], {}),
    ("8", "Add", [t(TILES), t(R)], {}),
    ("9", "Add", [t(S(0)), t(L)], {}),
    ("9", "Add", [t(S(0)), t(L, "")], {}),
    ("9", "Add", [t(S(0)), t(S(1))], {}),
    ("9", "Add", [t(S(0)), t(S(FLAT))], {}),
    ("9", "Add", [t(S(0)), t(S(0), "H")], {}),
    ("9", "Add", [t(S(0), group=GROUP), t(R, "H")], {}),
    ("9", "Add", [t(R, group=GROUP), t(R, group=GROUP + 1)], {}),
    ("9", "Add", [t(R, group=GROUP), t(R, "", group=GROUP + 1)], {}),
    ("9", "Add", [t(At(0)), t(At(1))], {}),
    ("9", "Add", [t(At(0)), t(R)], {}),
    ("9", "Add", [t(At(0)), t(L)], {}),
    ("15", "MatMul", [t(S(0), "T K"), t(S(0), "K H")], {}),
    ("15", "MatMul", [t(S(1), "T K"), t(S(1), "K H")], {}),
    ("15", "MatMul", [t(S(0), "T K"), t(S(1), "K H")], {}),
    ("15", "MatMul", [t(S(1), "T K"), t(R, "K H")], {}),
    ("15", "MatMul", [t(R, "T K"), t(S(0), "K H")], {}),
    ("15", "MatMul", [t(S(FLAT), "T K"), t(R, "K H")], {}),
    ("15", "MatMul", [t(R, "T K"), t(S(FLAT), "K H")], {}),
    ("15", "MatMul", [t(S(0), "T K"), t(L, "K H")], {}),
    ("15", "MatMul", [t(At(0), "T K"), t(At(0), "K H")], {}),
    ("16", "Conv2d", [t(S(1), IMAGE), t(R, KERNEL)], {}),
    ("16", "Conv2d", [t(R, IMAGE), t(S(1), KERNEL)], {}),
    ("16", "Conv2d", [t(S(0), IMAGE), t(S(0), KERNEL)], {}),
    ("17b", "Conv2d", [t(S(2), IMAGE), t(R, KERNEL)], {}),
    ("17b", "Conv2d", [t(S(3), IMAGE), t(R, KERNEL)], {}),
    ("18", "Dropout", [t(R)], {"p": 1, "key": "k"}),
    ("18", "Dropout", [t(R)], {"p": -0.1, "key": "k"}),
    ("19", "AllReduce", [t(S(0))], {"op": "+"}),
    ("19", "AllReduce", [t(At(0))], {"op": "+"}),
    ("19", "AllReduce", [t(L)], {"op": "-"}),
    ("20", "ReduceScatter", [t(R)], {"op": "+"}),
    ("20", "ReduceScatter", [t(S(0))], {"op": "+"}),
    ("20", "ReduceScatter", [t(At(0))], {"op": "+"}),
    ("20", "ReduceScatter", [t(L)], {"op": "+", "dim": 2}),
    ("20", "ReduceScatter", [t(L, "")], {"op": "+"}),
    ("20", "ReduceScatter", [t(L)], {"op": "+", "dim": 0, "map": "ring_tile(2,4,1)"}),
    ("21", "AllGather", [t(R)], {}),
    ("21", "AllGather", [t(L)], {}),
    ("21", "AllGather", [t(At(0))], {}),
    ("22", "Reduce", [t(R)], {"op": "+", "root": 0}),
    ("22", "Reduce", [t(S(0))], {"op": "+", "root": 0}),
    ("22", "Reduce", [t(At(0))], {"op": "+", "root": 0}),
    ("22", "Reduce", [t(L)], {"op": "+", "root": -1}),
    ("23", "Broadcast", [t(R)], {"root": 0}),
    ("23", "Broadcast", [t(L)], {"root": 0}),
    ("23", "Broadcast", [t(S(0))], {"root": 0}),
    ("23", "Broadcast", [t(At(1))], {"root": 0}),
    ("24", "Slice", [t(L)], {}),
    ("24", "Slice", [t(S(0))], {}),
    ("24", "Slice", [t(At(0))], {}),
    ("24", "Slice", [t(R)], {"dim": 2}),
    ("24", "Slice", [t(R, "")], {}),
    ("25", "Load", [t(L)], {"root": 0}),
    ("25", "Load", [t(S(0))], {"root": 0}),
    ("25", "Load", [t(At(0))], {"root": 0}),
    ("26", "Send", [t(At(0), group=GROUP)], {}),
    ("26", "Send", [t(R)], {}),
    ("26", "Send", [t(R, group=GROUP)], {"to": 2}),
    ("27", "Norm", [t(At(0))], {}),
    ("28", "ReduceTensor", [t(S(FLAT))], {"op": "+", "dim": 0}),
    ("28", "Norm", [t(TILES)], {"dim": 1}),
    ("30", "Update", [t(R), t(L)], {}),
    ("30", "Update", [t(L), t(R)], {}),
    ("30", "Update", [t(S(0)), t(R)], {}),
    ("30", "Update", [t(S(0)), t(S(1))], {}),
    ("30", "Update", [t(L), t(S(0))], {}),
    ("30", "Update", [t(R), 1], {}),
    ("32", "AllToAll", [t(R)], {}),
    ("32", "AllToAll", [t(S(0))], {}),
    ("32", "AllToAll", [t(L, "")], {}),
    ("33", "Permute", [t(S(0)), t(R, "X", "i32")], {}),
    ("33", "Permute", [t(S(FLAT)), t(R, "X", "i32")], {}),
    ("33", "Permute", [t(R), t(S(0), "X", "i32")], {}),
    ("group", "MatMul", [t(R, "T K", group=GROUP), t(R, "K H")], {}),
    ("group", "Permute", [t(R, group=GROUP), t(R, "X", "i32", GROUP + 1)], {}),
    ("shape", "Add", [t(R, "T"), t(R, "H")], {}),
    ("shape", "Add", [t(R, "2"), t(R, "3")], {}),
    ("shape", "Add", [t(R, "M.parts"), t(R, "N")], {}),
    ("shape", "MatMul", [t(R, "T K"), t(R, "H K")], {}),
    ("shape", "MatMul", [t(R, "K"), t(R, "K H")], {}),
    ("shape", "MatMul", [t(R, "B T K"), t(R, "B K H")], {}),
    ("shape", "Conv2d", [t(R, IMAGE), t(R, "K X 3 3")], {}),
    ("shape", "Conv2d", [t(R, "N C X 8"), t(R, KERNEL)], {}),
    ("shape", "Conv2d", [t(R, "N C 2 8"), t(R, KERNEL)], {}),
    ("shape", "Conv2d", [t(R, IMAGE), t(R, "K C X X")], {}),
    ("shape", "Conv2d", [t(R, IMAGE), t(R, KERNEL)], {"stride": 0}),
    ("shape", "Update", [t(R), t(R, "H")], {}),
    ("shape", "Permute", [t(R), t(R, "X")], {}),
    ("shape", "Norm", [t(R)], {"dim": 2}),
    ("shape", "Norm", [t(R)], {"per": "tensor"}),
    ("shape", "Norm", [t(R, "4")], {"per": "tensor"}),
    ("shape", "Norm", [t(R, "N")], {"per": "row"}),
    ("shape", "Load", [t(R)], {"root": "0"}),
    ("dtype", "Add", [t(R), t(R, dtype="f16")], {}),
    ("dtype", "Add", [1, 2], {}),
    ("dtype", "Add", [t(R, dtype="i32"), 0.5], {}),
    ("dtype", "Add", [t(R, dtype="bool"), t(R, dtype="bool")], {}),
    ("dtype", "And", [t(R), t(R)], {}),
    ("dtype", "Not", [t(R)], {}),
    ("dtype", "Sqrt", [t(R, dtype="i32")], {}),
    ("dtype", "Div", [t(R, dtype="i32"), 2], {}),
    ("dtype", "Dropout", [t(R, dtype="i32")], {"p": 0.5, "key": "k"}),
    ("dtype", "Cast", [t(R)], {"dtype": "f8"}),
    ("dtype", "Where", [t(R), t(R), t(R)], {}),
    ("dtype", "Where", [t(R, dtype="bool"), t(R), t(R, dtype="f16")], {}),
    ("dtype", "Update", [t(R), t(R, dtype="f16")], {}),
    ("dtype", "MatMul", [t(R, "T K"), t(R, "K H", "f16")], {}),
    ("dtype", "MatMul", [t(R, "T K", "bool"), t(R, "K H", "bool")], {}),
    ("dtype", "AllReduce", [t(L, dtype="bool")], {"op": "+"}),
    ("dtype", "AllReduce", [3], {"op": "+"}),
    ("dtype", "Norm", [t(R, dtype="i32")], {}),
]


def _case(case: tuple) -> str:
    return f"{case[0]}-{case[1]}"


@pytest.mark.parametrize(("row", "op", "operands", "attributes", "layout", "shape"), GIVES, ids=map(_case, GIVES))
def test_row_gives(row, op, operands, attributes, layout, shape):
    result = infer(op, operands, attributes)
    assert (result.layout, result.shape) == (layout, t(R, shape).shape)


@pytest.mark.parametrize(("row", "op", "operands", "attributes"), REFUSED, ids=map(_case, REFUSED))
def test_row_refuses(row, op, operands, attributes):
    with pytest.raises(TypeRefusal) as refused:
        infer(op, operands, attributes)
    assert (refused.value.row, refused.value.op) == (row, op), str(refused.value)
    assert re.match(rf"{op}: found .+", str(refused.value))


def test_every_refusal_has_a_case_and_every_operation_a_result():
    source = Path(__file__).parents[4] / "planner/passes/fusion/infer.py"
    rows = set(re.findall(r'_refuse\(\s*(?:op|"\w+"),\s*"(\w+)"|: \("(\d+)", "', source.read_text()))
    rows = {first or second for first, second in rows} | {"9"}
    assert rows <= {row for row, *_ in REFUSED}
    assert {op for _, op, *_ in GIVES} | {"Rsqrt"} > {name for name, of in OPERATIONS.items() if of.kind != "pointwise"}
    for name in OPERATIONS:
        if OPERATIONS[name].kind == "pointwise" and not OPERATIONS[name].attributes and name not in ("Where", "Update"):
            dtype = "bool" if name in ("And", "Or", "Xor", "Not") else "f32"
            assert infer(name, [t(S(0), dtype=dtype)] * OPERATIONS[name].arity, {}).layout == S(0)


def test_dtypes_of_results():
    assert infer("Lt", [t(R), 0], {}).dtype == "bool"
    assert infer("Cast", [t(R)], {"dtype": "f16"}).dtype == "f16"
    assert infer("Add", [t(R, dtype="bf16"), 1.5], {}).dtype == "bf16"
    assert infer("Where", [t(R, dtype="bool"), t(R, dtype="i32"), 3], {}).dtype == "i32"
    assert infer("Where", [t(R, dtype="bool"), 1, -1], {}).dtype == "f32", "a sign needs no tensor, as Cast would"
    assert infer("Xor", [t(R, dtype="i64"), 3], {}).dtype == "i64"
    assert infer("GroupSize", [], {"dtype": "f16"}).dtype == "f16"
    assert infer("Norm", [t(L, dtype="f16")], {}).dtype == "f16"


def test_send_moves_to_the_next_group_and_scalars_are_everywhere():
    sent = infer("Send", [t(S(0), group=GROUP)], {})
    assert sent.group == GROUP + 1
    assert str(sent.group) == "GROUP + 1"
    assert infer("Mul", [sent, SCALAR], {}).group == GROUP + 1
    assert infer("MatMul", [t(R, "T K", group=GROUP), t(R, "K H", group=GROUP)], {}).group == GROUP


def test_usage_errors_are_no_type_refusals():
    for op, operands, attributes, message in [
        ("Conv3d", [t(R)], {}, "found operation 'Conv3d', did you mean 'Conv2d'?"),
        ("Add", [t(R)], {}, "Add: found 1 operands, expected 2"),
        ("AllReduce", [t(L)], {}, "AllReduce: found no op, expected one"),
        ("AllReduce", [t(L)], {"op": "+", "dim": 0}, "AllReduce: found attribute 'dim', expected op"),
        ("ReduceScatter", [t(L)], {"op": "+", "map": "ring_tile(2,3,2)"}, "a multiple of align"),
        ("Slice", [t(R)], {"map": "spiral"}, "expected block or ring_tile"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)) as refused:
            infer(op, operands, attributes)
        assert not isinstance(refused.value, TypeRefusal)


LAYOUTS = [R, L, At(0), At(1), S(0), S(1), S(FLAT), TILES, Sliced(FLAT, RingTile(2, 4, 2, True))]


@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_same_layout_rule_does_not_depend_on_the_order_of_operands(left, right):
    """And where it gives something, that is the layout of an operand."""

    def outcome(first, second):
        try:
            return infer("Add", [t(first), t(second)], {}).layout
        except TypeRefusal as refused:
            return refused.row

    assert outcome(left, right) == outcome(right, left)
    if left == right:
        assert outcome(left, right) == left
    elif {left, right} == {R, L}:
        assert outcome(left, right) == L
    else:
        assert outcome(left, right) in ("4", "8", "9")


def test_exactly_these_pairs_are_well_typed_products():
    """Brute force: a product of sliced operands is what the ranks can compute from their parts alone."""

    def outcome(x, w):
        try:
            return layout_text(infer("MatMul", [t(x, "T K"), t(w, "K H")], {}).layout)
        except TypeRefusal as refused:
            return refused.row

    layouts = [R, L, At(0), S(0), S(1), S(FLAT)]
    allowed = {(layout_text(x), layout_text(w)): outcome(x, w) for x, w in product(layouts, layouts)}
    assert {pair: result for pair, result in allowed.items() if result != "15"} == {
        ("Replicated", "Replicated"): "Replicated",
        ("Replicated", "Local"): "Local",
        ("Local", "Replicated"): "Local",
        ("Local", "Local"): "Local",
        ("Sliced(1)", "Sliced(0)"): "Local",
        ("Sliced(0)", "Replicated"): "Sliced(0)",
        ("Replicated", "Sliced(1)"): "Sliced(1)",
    }


def _program(*nodes, outputs=("a",)):
    inputs = (Input("g", t(L, "N")), Input("p", t(R, "N")))
    types = {value.name: value.type for value in inputs}
    made = []
    for name, op, operands, attributes in nodes:
        made.append(typed(name, op, operands, attributes, types))
        types[name] = made[-1].type
    return Program("x", inputs, tuple(made), outputs)


def test_stale_targets():
    """Row 31: a Replicated target needs its gather."""
    whole = [
        ("rs", "ReduceScatter", ["g"], {"op": "+"}),
        ("p_", "Update", ["p", "rs"], {}),
        ("a", "AllGather", ["p_"], {}),
    ]
    assert stale(_program(*whole)) == ()
    assert retyped(_program(*whole)) == _program(*whole)
    part = _program(*whole[:2], outputs=("p_",))
    assert stale(part) == ("p",)
    with pytest.raises(TypeRefusal, match="p is Replicated and its Update sliced") as refused:
        retyped(part)
    assert refused.value.row == "31"


def test_retyped_infers_everything_again():
    program = _program(("rs", "ReduceScatter", ["g"], {"op": "+"}), ("a", "Neg", ["rs"], {}))
    other = replace(program.nodes[0], attributes=(("dim", 0), ("map", "block"), ("op", "+")))
    again = retyped(replace(program, nodes=(other, program.nodes[1])))
    assert [node.type.layout for node in again.nodes] == [S(0), S(0)]
    wrong = replace(program.nodes[0], op="AllGather", attributes=())
    with pytest.raises(TypeRefusal) as refused:
        retyped(replace(program, nodes=(wrong, program.nodes[1])))
    assert refused.value.row == "21"


def test_running_order():
    program = _program(("rs", "ReduceScatter", ["g"], {"op": "+"}), ("a", "Neg", ["rs"], {}))
    with pytest.raises(InputError, match="a: found 'rs' read before it is made"):
        retyped(replace(program, nodes=program.nodes[::-1]))
    late = _program(("u", "Update", ["p", "p"], {}), ("a", "Neg", ["p"], {}))
    with pytest.raises(InputError, match="a: found the old value of 'p' read after u has written it"):
        retyped(late)


def test_extents_of_one_broadcast():
    assert infer("Add", [t(R, "1 1"), t(R, "1")], {}).shape == (ONE, ONE)


def test_documented_rows_are_the_tested_ones():
    table = (Path(__file__).parents[4] / "docs/fusion.md").read_text()
    rows = [line.split("|")[1:6] for line in table.splitlines() if re.match(r"\| \d+[abc]? \|", line)]
    documented = {row.strip() for row, *_ in rows}
    refusing = {row.strip() for row, *_, refused in rows if refused.strip()}
    tested = {row for row, *_ in REFUSED}
    assert tested - {"shape", "dtype", "group"} | {"31"} == refusing
    assert {row for row, *_ in GIVES} | {"8", "9", "15"} == documented
