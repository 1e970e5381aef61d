"""Expressions in C++ against the interpreter: every operation in every type, broadcasting, dropout, what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.fusion.sessions import Session, compare, fill, integers, session, stored, wrong
from treadle.codegen.fusion.broadcast import index_of
from treadle.codegen.fusion.expression import Scope, elements_per_pack, functor, identifier, literal
from treadle.codegen.fusion.kernel import Buffer
from treadle.codegen.fusion.lower import lower
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import FLOATS
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.dims import ONE, Dim
from treadle.planner.passes.fusion.evaluate import evaluate
from treadle.planner.passes.fusion.operations import ARITHMETIC, COMPARISONS, FLOAT_UNARY
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings, Program

ROUGH = ("Exp", "Log", "Tanh", "GeLU", "SiLU", "Sigmoid", "Pow")
"""Operations that libraries of mathematics round as they like."""
CLOSE = {"f16": 2**-10, "bf16": 2**-7, "f32": 2**-20, "f64": 2**-48}
SIZE = 13


def every_operation() -> Program:
    """All pointwise operations of all types, each an output called OP_TYPE."""
    n = cc.dims("N")
    found: dict[str, Any] = {}
    tensors = []
    for dtype in (*FLOATS, "i32", "i64"):
        a, b = (cc.Tensor(f"{name}_{dtype}", dtype, [n], cc.Replicated) for name in "ab")
        tensors += [a, b]
        unary = ("Neg", "ReLU", "Abs", *(FLOAT_UNARY if dtype in FLOATS else ()))
        found |= {f"{op}_{dtype}": getattr(cc, op)(a) if op != "Neg" else -a for op in unary}
        binary = {
            "Add": a + b,
            "Sub": a - b,
            "Mul": a * b,
            "Pow": cc.Pow(a, b),
            "Max": cc.Max(a, b),
            "Min": cc.Min(a, b),
        }
        if dtype in FLOATS:
            binary["Div"] = a / b
        binary |= {"Eq": cc.Eq(a, b), "Ne": cc.Ne(a, b), "Lt": a < b, "Le": a <= b, "Gt": a > b, "Ge": a >= b}
        binary |= {"Where": cc.Where(a < b, a, 1), "Sign": cc.Where(a < b, 0.1, -1)}
        binary["Literal"] = a * (0.1 if dtype in FLOATS else 3) + 7
        if dtype not in FLOATS:
            binary |= {"And": a & b, "Or": a | b, "Xor": a ^ b, "Not": ~a}
        found |= {f"{op}_{dtype}": value for op, value in binary.items()}
        for to in (*FLOATS, "i32", "i64", "bool"):
            found[f"Cast_{dtype}_{to}"] = cc.Cast(to, a)
    return cc.Execute("every_operation", tensors, [_named(value, name) for name, value in found.items()])


def _named(value: Any, name: str) -> Any:
    value.name = name
    return value


@pytest.fixture(scope="module")
def everything() -> Iterator[tuple[Session, dict[str, NDArray[Any]]]]:
    program = every_operation()
    rng = np.random.default_rng(1)
    given = {
        value.name: rng.integers(-30, 30, SIZE) / (8 if value.type.dtype in FLOATS else 1) for value in program.inputs
    }
    given |= {name: np.abs(array) % 5 for name, array in given.items() if name.startswith("b_i")}
    bindings = Bindings({"N": SIZE}, 1)
    values = evaluate(program, bindings, given)
    with session(lower(program, bindings)) as live:
        fill(live, values)
        assert live.run() == []
        yield live, values


def _found(live: Session, name: str) -> NDArray[Any]:
    place = live.lowered.places[name]
    return live.tensors[0][place]


def test_operations_give_the_numbers_of_the_interpreter(everything: tuple[Session, dict[str, NDArray[Any]]]) -> None:
    live, values = everything
    checked = 0
    for name in live.lowered.program.outputs:
        op, dtype = name.split("_")[0], live.lowered.program.by_name[name].type.dtype
        got, expected = _found(live, name), stored(values[name][0, 0], dtype)
        got, expected = _wide(got, dtype), _wide(expected, dtype)
        if op in ROUGH and dtype in FLOATS:
            np.testing.assert_allclose(got, expected, rtol=CLOSE[dtype], err_msg=name)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=name)
        checked += 1
    assert checked == len({*live.lowered.program.outputs}) > 100
    assert {name.split("_")[0] for name in live.lowered.program.outputs} >= {*ARITHMETIC, *COMPARISONS, *FLOAT_UNARY}


def _wide(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype == "bf16" else array


def placed() -> Program:
    """Broadcasting, scalars of tensors, dropout and updates in every layout; names that C++ cannot take."""
    n, t, h = cc.dims("N", "T", "H")
    p = cc.Tensor("p", "f32", [n], cc.Replicated)
    q = cc.Tensor("q", "f16", [n], cc.Sliced(cc.FLAT, cc.RingTile(2, 3)))
    scale = cc.Tensor("scale", "f32", [cc.parts(n)], cc.Replicated)
    x = cc.Tensor("x", "f16", [2, t, h], cc.Sliced(1))
    y = cc.Tensor("y", "f16", [2, t, h], cc.Local)
    int_ = cc.Tensor("int", "f16", [t, 1], cc.Sliced(0))
    bias = cc.Tensor("bias", "f16", [h], cc.Replicated)
    lead = cc.Tensor("lead", "f16", [2, 1, 1], cc.Replicated)
    k = cc.Scalars("k", "f32")
    state = cc.Tensor("state", "f16", [2, t, h], cc.Sliced(1))
    return cc.Execute(
        "placed",
        [p, q, scale, x, y, int_, bias, lead, k, state],
        [
            _named(p * scale + 2 * k * (1 - k), "per_tensor"),
            _named(cc.Slice(p, cc.FLAT, cc.RingTile(2, 3)) * 2 + cc.Cast("f32", q), "tiles"),
            _named(cc.Dropout(p, 0.4, "a"), "whole_mask"),
            _named(cc.Dropout(cc.Slice(p, cc.FLAT, cc.RingTile(2, 3)), 0.4, "a"), "tile_mask"),
            _named(cc.Dropout(x, 0.25, "b"), "slice_mask"),
            _named(cc.Dropout(y, 0.25, "b"), "local_mask"),
            _named(x + bias + lead * int_, "operands"),
            _named(y * bias + lead, "local_operands"),
            _named(cc.Update(state, cc.Dropout(int_ * 1, 0.5, "c") * x + state), "new_state"),
        ],
    )


@pytest.mark.parametrize("ranks", [3])
def test_operands_are_found_in_every_layout_and_masks_depend_on_the_global_index(ranks: int) -> None:
    program, bindings = placed(), Bindings({"N": 41, "T": 7, "H": 6}, ranks, parts={"N": (20, 1, 0, 17, 3)})
    rng = np.random.default_rng(0)
    given = {}
    for value in program.inputs:
        extents = [extent.value(bindings.values) for extent in value.type.shape]
        lead = [1, ranks] if value.name == "y" else []
        given[value.name] = rng.integers(-4, 5, [*lead, *extents])
    values = evaluate(program, bindings, given, seed=77, step=(1 << 40) + 3)
    lowered = lower(program, bindings)
    with session(lowered) as live:
        for order in range(3):
            fill(live, values)
            assert live.run(order=order, seed=77, step=(1 << 40) + 3) == []
            assert wrong(live, values) == []
        assert _found(live, "whole_mask")[:41].astype(bool).sum() not in (0, 41)
        fill(live, values)
        live.run(seed=78, step=0)
        assert any("mask" in found for found in wrong(live, values))
        assert not any("operands" in found for found in wrong(live, values))


def _scope(program: Program, extents: dict[str, int]) -> Scope:
    bindings = Bindings(extents, 2)
    kept = [value for value in program.by_name.values() if getattr(value, "op", "") != "Update"]
    buffers = [Buffer(value.name, value.type.dtype, 64, "temporary", value.type.layout) for value in kept]
    return Scope(program, bindings, buffers, {buffer.name: number for number, buffer in enumerate(buffers)})


def test_an_expression_reads_like_its_program() -> None:
    n = cc.dims("N")
    g, m = cc.Tensor("g", "f16", [n], cc.Replicated), cc.Tensor("m", "f32", [n], cc.Replicated)
    b1, t = cc.Scalars("b1 t", "f32")
    avg = cc.Cast("f32", g) / cc.group_size(cc.WORLD)
    m_ = cc.Update(m, m * b1 + (1 - b1) * avg)
    out = cc.Cast("f16", m_ / (1 - cc.Pow(b1, t)))
    program = cc.Execute("momentum", [g, m, b1, t], [out])
    made = functor(_scope(program, {"N": 9}), "step", program.nodes, value="g", result="out", stores=["m_"])
    lines = [line.strip() for line in made.text.splitlines()]
    assert "const auto avg = op::div(cast<float>(g), 2.0f);" in lines
    assert "const auto m_ = op::add(op::mul(m, at.b1), op::mul(at._m__2, avg));" in lines
    assert "at._out_2 = op::sub(1.0f, op::pow(at.b1, at.t));" in lines
    assert "const auto out = cast<f16>(op::div(m_, at._out_2));" in lines
    assert "store_user(at.m + global, m_);" in lines
    assert "return out;" in lines
    assert (made.pack, made.value, made.result, made.loads, made.stores) == (4, "f16", "f16", ("m",), ("m_",))


def test_the_widest_type_decides_how_many_elements_a_thread_takes() -> None:
    assert [elements_per_pack(types) for types in (["f16"], ["f16", "f32"], ["f64", "f16"], ["bool"])] == [8, 4, 2, 16]


def test_what_is_stored_has_the_size_of_all() -> None:
    t, h = cc.dims("T", "H")
    x, w = cc.Tensor("x", "f32", [t, h], cc.Replicated), cc.Tensor("w", "f32", [h], cc.Replicated)
    double = w * 2
    out = x * double
    program = cc.Execute("small", [x, w], [out, double])
    with pytest.raises(InputError, match="found double stored among larger tensors"):
        functor(_scope(program, {"T": 3, "H": 4}), "f", program.nodes, stores=["out", "double"])


def test_only_pointwise_operations_are_expressions() -> None:
    n = cc.dims("N")
    x = cc.Tensor("x", "f32", [n], cc.Local)
    program = cc.Execute("sum", [x], [_named(cc.AllReduce("+", x), "a")])
    with pytest.raises(InputError, match="a: found AllReduce among pointwise operations"):
        functor(_scope(program, {"N": 3}), "f", program.nodes, stores=["a"])


def test_names_and_numbers_of_cpp() -> None:
    assert [identifier(name) for name in ("in", "int", "N", "m_", "2x")] == ["in", "int_", "N_", "m_", "x2x"]
    assert [
        literal(0.1, "f32"),
        literal(0.1, "f64"),
        literal(0.1, "f16"),
        literal(2, "i64"),
        literal(True, "bool"),
    ] == [
        "0.1f",
        "0.1",
        "convert<f16>(0.1)",
        "int64_t(2)",
        "true",
    ]


@pytest.mark.parametrize("kept", list(product([False, True], repeat=4)))
@pytest.mark.parametrize("sizes", [(2, 0, 3), (0, 1)])
def test_indices_of_broadcast_tensors_are_those_of_numpy(kept: tuple[bool, ...], sizes: tuple[int, ...]) -> None:
    """All choices of dimensions left out, the last one counted tensor by tensor or element by element."""
    extents = {"A": 2, "B": 1, "C": 3, "N": sum(sizes)}
    bindings = Bindings(extents, 1, parts={"N": sizes})
    whole = tuple(Dim((name,)) for name in extents)
    parts = np.repeat(np.arange(len(sizes)), sizes)
    for last in (Dim(("N",)), Dim(("N.parts",))):
        own = [extent if keep else ONE for extent, keep in zip((*whole[:3], last), kept, strict=True)]
        shape = [extent.value(bindings.values) for extent in own]
        elements = np.arange(int(np.prod(shape))).reshape(shape)
        if kept[3] and last != whole[3]:
            elements = elements[..., parts]
        expected = np.broadcast_to(elements, list(extents.values())).reshape(-1)
        text, period = index_of(tuple(own), whole, bindings, "f")
        names = {"part_of": lambda table, count, at: int(parts[at]), "f_N_ENDS": None}
        code = compile(text.replace("/", "//"), "index", "eval")
        assert [eval(code, {**names, "i": i}) for i in range(expected.size)] == expected.tolist()
        assert expected.size % period == 0
        assert (expected.reshape(-1, period) == expected[:period]).all()


def test_sizes_of_groups_are_stored_as_tensors_are() -> None:
    text = 'H = dims("H")\ns, t = Scalars("s", f32), Scalars("t", i32)\nx = Tensor("x", f32, [H], Local)\n'
    text += 'size, whole, half = group_size(WORLD), group_size(WORLD, "i32"), group_size(WORLD, "bf16")\n'
    text += 'twice = size * group_size(WORLD)\nless = Abs(whole - whole * whole)\nlike = Cast("f16", whole)\n'
    text += (
        'more = size > 2\nkept = Dropout(size, 0.5, "key")\ns_ = Update(s, size)\nt_ = Update(t, less)\ny = x / size\n'
    )
    outputs = "size, whole, half, twice, less, like, more, kept, y"
    program = parse(f'{text}program = Execute("sizes", [s, t, x], [{outputs}])\n', "sizes")
    bindings = Bindings({"H": 5}, 3)
    assert compare(lower(program, bindings), integers(program, bindings)) == []
