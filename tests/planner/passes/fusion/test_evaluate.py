"""The reference interpreter: the worked examples, the laws of layouts, and that wrong layouts are noticed."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.planner.passes.fusion.by_hand import SCHEDULES, by_hand
from tests.planner.passes.fusion.random_programs import programs
from treadle.fusion import *
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.fusion import evaluate as interpreter
from treadle.planner.passes.fusion.arithmetic import rounded
from treadle.planner.passes.fusion.evaluate import evaluate, held, states
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings

EXAMPLES = Path(__file__).parents[4] / "examples/fusion"
N = dims("N")


def example(name):
    path = EXAMPLES / f"{name}.py"
    return parse(path.read_text(), path.name)


def everywhere(array, expected):
    """Every rank of every group has these values."""
    assert (array == np.asarray(expected)).all(), array


SGD = {"g": [[1, 2, 3, 4], [3, 2, 1, 0]], "p": [10] * 4, "lr": 0.5}
ADAM = {
    "g": [[1, -1, -2, 3], [3, -3, -2, 1]],
    "p": [1, 2, 3, 4],
    "m": 0,
    "v": 0,
    "lr": 1,
    "b1": 0.5,
    "b2": 0.75,
    "t": 1,
    "eps": 0,
}
TAIL = {
    "x": [[[1, 0, 1, 1], [0, 1, 2, 0]]],
    "w": [[1, 2, 3, 4], [5, 6, 7, 8], [1, 0, 1, 0], [0, 1, 0, 1]],
    "b": 1,
    "r": [[[10, 20, 30, 40], [50, 60, 70, 80]]],
}
KEEP = [[1, 0, 1, 1], [0, 1, 1, 0]]
HALF = Bindings({"B": 1, "S": 2, "H": 4}, 2)


def test_sgd_by_hand():
    """Spec, section 7.1."""
    values = evaluate(example("sgd"), Bindings({"N": 4}, 2), SGD)
    everywhere(values["sum_"], [4, 4, 4, 4])
    everywhere(values["p_"], [8, 8, 8, 8])
    everywhere(values["p"], [10] * 4)
    everywhere(states(example("sgd"), values)["p"], [8] * 4)
    assert values["p_"].shape == (1, 2, 4)


def test_attention_tail_by_hand():
    """Spec, section 7.2."""
    program = by_hand("attention")["ar+"]
    values = evaluate(program, HALF, TAIL, keep={"attn.drop": KEEP})
    assert values["layer"][0, :, 0].tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 1, 1, 1], [2, 0, 2, 0]]]
    everywhere(values["total"], [[[2, 3, 4, 5], [7, 6, 9, 8]]])
    everywhere(values["d"], [[[6, 0, 10, 12], [0, 14, 20, 0]]])
    everywhere(values["out"], [[[16, 20, 40, 52], [50, 74, 90, 80]]])


def test_a_bias_before_the_sum_counts_twice():
    S, H = dims("S", "H")
    y = Tensor("y", f32, [S, H], Local)
    b = Tensor("b", f32, [H], Replicated)
    after = AllReduce("+", y) + b
    before = AllReduce("+", y + b)
    program = Execute("x", [y, b], [after, before])
    values = evaluate(program, HALF, {"y": [[[0] * 4] * 2, [[1] * 4] * 2], "b": [1, 2, 3, 4]})
    everywhere(values["after"], [[2, 3, 4, 5]] * 2)
    everywhere(values["before"], [[3, 5, 7, 9]] * 2)


@pytest.mark.parametrize(("at", "first"), [(1, [10, 20, 30, 40]), (2, [10, 20, 50, 60]), (0, None)])
def test_slices_of_the_tail(at, first):
    """Spec, section 7.2: rows, columns, and one row of batch for two ranks."""
    B, S, H = dims("B", "S", "H")
    r = Tensor("r", f32, [B, S, H], Replicated)
    b = Tensor("b", f32, [H], Replicated)
    part = Slice(r, dim=at)
    bias = Slice(b, dim=0)
    program = Execute("x", [r, b], [part])
    values = evaluate(program, HALF, TAIL)
    mine = [held(program.type_of("part"), HALF, values["part"], rank).tolist() for rank in (0, 1)]
    assert mine[0] == (first or np.asarray(TAIL["r"]).reshape(-1).tolist())
    assert (mine[1] == []) == (at == 0)
    assert held(program.type_of("bias"), HALF, values["bias"], 1).tolist() == [1, 1]
    assert np.isnan(values["part"]).sum() == 8


def test_adam_by_hand():
    """Spec, section 7.3."""
    two = Bindings({"N": 4}, 2)
    values = evaluate(example("adam_f32"), two, ADAM)
    everywhere(values["sum_"], [4, -4, -4, 4])
    everywhere(values["m_"], [2, -2, -2, 2])
    everywhere(values["v_"], [4, 4, 4, 4])
    everywhere(values["m1"], [4, -4, -4, 4])
    everywhere(values["v1"], [16] * 4)
    everywhere(values["p_"], [0, 3, 4, 3])
    text = (EXAMPLES / "adam_f32.py").read_text()
    typo = text.replace("(1 - b2) * sum_ * sum_", "(1 - b1) * sum_ * sum_")
    assert typo != text
    wrong = evaluate(parse(typo, "typo"), two, ADAM)["p_"]
    assert np.allclose(wrong, [0.293, 2.707, 3.707, 3.293], atol=5e-4)


@pytest.mark.parametrize("fixture", ["sgd extended", "attention", "attention apart", "adam", "pipeline"])
def test_schedules_by_hand_mean_the_same(fixture):
    """Spec, section 7: every schedule gives bit for bit what the program without one gives."""
    bindings, inputs, keep = {
        "sgd extended": (Bindings({"N": 4}, 2), SGD, {}),
        "attention": (HALF, TAIL, {"attn.drop": KEEP}),
        "attention apart": (HALF, TAIL, {}),
        "adam": (Bindings({"N": 4}, 2), ADAM, {}),
        "pipeline": (Bindings({"B": 1, "S": 2, "H": 2}, 2, 2), HANDED, {}),
    }[fixture]
    results = []
    for program in by_hand(fixture).values():
        given_values = {value.name: inputs[value.name] for value in program.inputs}
        values = evaluate(program, bindings, given_values, keep=keep, seed=5, step=2)
        results.append(tuple(values[name].tobytes() for name in program.outputs))
    assert len(results) == len(SCHEDULES[fixture][1])
    assert len(set(results)) == 1


HANDED = {"y": [[[[1, 2], [3, 4]]], [[[4, 3], [2, 1]]]], "b": 0, "r": [[[0, 1], [2, 3]]]}


def test_slices_of_adam_by_hand():
    two = Bindings({"N": 4}, 2)
    program = by_hand("adam")["fused"]
    values = evaluate(program, two, ADAM)
    for op, parts in {"p": ([0, 3], [4, 3]), "m": ([2, -2], [-2, 2])}.items():
        update = program.updates[op]
        assert [held(update.type, two, values[update.name], rank).tolist() for rank in (0, 1)] == list(parts)
    left = states(program, values)
    everywhere(left["p"], [0, 3, 4, 3])
    assert np.isnan(left["m"]).sum() == 4


def lamb_ratio(schedule):
    """LAMB with frozen state and without bias correction, whole or sliced; `wrong`: without the root."""
    p = Tensor("p", f32, [N], Replicated)
    m = Tensor("m", f32, [N], Replicated)
    v = Tensor("v", f32, [N], Replicated)
    if schedule == "sliced":
        u = Slice(m) / Sqrt(Slice(v))
        p_ = Update(p, Slice(p) - Norm(Slice(p)) / Norm(u) * u)
        whole = AllGather(p_)
    elif schedule == "per tensor":
        u = m / Sqrt(v)
        whole = Update(p, p - Norm(p, per="tensor") / Norm(u, per="tensor") * u)
    elif schedule == "squares":
        u = m / Sqrt(v)
        whole = Update(p, p - ReduceTensor("+", p * p) / ReduceTensor("+", u * u) * u)
    else:
        u = m / Sqrt(v)
        whole = Update(p, p - Norm(p) / Norm(u) * u)
    return Execute("lamb", [p, m, v], [whole])


@pytest.mark.parametrize(
    ("schedule", "parts", "expected"),
    [
        ("whole", {}, [-1, 1]),
        ("sliced", {}, [-1, 1]),
        ("per tensor", {}, [-1, 1]),
        ("per tensor", {"N": (2, 0)}, [-1, 1]),
        ("per tensor", {"N": (1, 1)}, [0, 0]),
        ("squares", {}, [1, 2.5]),
    ],
)
def test_lamb_by_hand(schedule, parts, expected):
    """Spec, section 7.3: [0, 0] is also what forgetting the other rank gives, [1, 2.5] what squared norms give."""
    values = evaluate(lamb_ratio(schedule), Bindings({"N": 2}, 2, 1, parts), {"p": [3, 4], "m": [8, 6], "v": 1})
    everywhere(values["whole"], expected)


def test_pipeline_by_hand():
    """Spec, section 7.4: only the second group has the result."""
    text = (EXAMPLES / "pipeline.py").read_text().replace("p=0.1", "p=0.0")
    program, bindings = parse(text, "pipeline"), Bindings({"B": 1, "S": 2, "H": 2}, 2, 2)
    values = evaluate(program, bindings, HANDED)
    everywhere(values["o"][1], [[[5, 6], [7, 8]]])
    assert np.isnan(values["o"][0]).all()
    everywhere(values["c"][0], [[[5, 6], [7, 8]]])
    assert np.isnan(values["c"][1]).all()


def test_pipelines_of_more_groups_run_in_every_group_but_the_last():
    program = example("pipeline")
    bindings = Bindings({"B": 1, "S": 1, "H": 1}, 1, 4)
    y = np.arange(4.0).reshape(4, 1, 1, 1, 1)
    values = evaluate(program, bindings, {"y": y, "b": 0, "r": 0}, keep={"mlp.dropout": True})
    expected = rounded(np.arange(3.0) * np.float32(1 / 0.9), "f16")
    assert values["o"].reshape(-1)[1:].tolist() == expected.tolist()
    assert np.isnan(values["o"][0]).all()
    with pytest.raises(InputError, match="found 1 groups, expected one more to send to"):
        evaluate(program, replace(bindings, groups=1), {"y": 0, "b": 0, "r": 0})


SIZES = st.fixed_dictionaries({"N": st.integers(1, 17)})
MAPS = st.sampled_from(
    [(0, Block()), (FLAT, Block()), (FLAT, RingTile(2, 2)), (FLAT, RingTile(1, 4, 2)), (FLAT, RingTile(3, 2, 1, True))]
)


def numbers(draw, size, ranks=None):
    """Values of which no sum is exact."""
    shape = (size,) if ranks is None else (ranks, size)
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@given(SIZES, st.integers(1, 5), MAPS, st.data())
@settings(max_examples=60, deadline=None)
def test_slice_and_gather_are_inverse_and_commute_with_maps(extents, ranks, where, data):
    """CoCoNet, section 2: slice and join, repl and drop; map commutes with both."""
    at, slices = where
    x = Tensor("x", f32, [N], Replicated)
    y = Tensor("y", f32, [N], Sliced(at, slices))
    lr = Scalars("lr", f32)
    back = AllGather(Slice(x, dim=at, map=slices))
    again = Slice(AllGather(y), dim=at, map=slices)

    def f(value, other):
        return Dropout(Exp(value) * lr + other, 0.5, "k")

    outer = f(back, x)
    inner = AllGather(f(Slice(x, dim=at, map=slices), Slice(x, dim=at, map=slices)))
    norm, parts_norm = Norm(x), Norm(Slice(x, dim=at, map=slices))
    most, parts_most = ReduceTensor("max", x), ReduceTensor("max", Slice(x, dim=at, map=slices))
    program = Execute("x", [x, y, lr], [back])
    bindings = Bindings(extents, ranks)
    given_values = {"x": numbers(data.draw, extents["N"]), "y": numbers(data.draw, extents["N"]), "lr": 0.3}
    values = evaluate(program, bindings, given_values, seed=1)
    for left, right in [("back", "x"), ("again", "y"), ("outer", "inner"), ("most", "parts_most")]:
        assert values[left].tobytes() == values[right].tobytes()
    assert np.allclose(values["norm"], values["parts_norm"], rtol=1e-5)


@given(SIZES, st.integers(1, 5), MAPS, st.sampled_from(["+", "max", "min"]), st.sampled_from(["f16", "f32"]), st.data())
@settings(max_examples=60, deadline=None)
def test_collectives_are_compositions(extents, ranks, where, op, dtype, data):
    """CoCoNet, section 2: AllReduce = AllGather of ReduceScatter = Broadcast of Reduce, bit by bit in one order."""
    at, slices = where
    root = data.draw(st.integers(0, ranks - 1))
    x = Tensor("x", dtype, [N], Local)
    r = Tensor("r", dtype, [N], Replicated)
    whole = AllReduce(op, x)
    scattered = AllGather(ReduceScatter(op, x, dim=at, map=slices))
    rooted = Broadcast(Reduce(op, x, root=root), root=root)
    loaded = Broadcast(Load(r, root=root), root=root)
    at_root = Load(Broadcast(Load(r, root=root), root=root), root=root)
    twice = Load(r, root=root)
    computed = Broadcast(_doubled(Load(r, root=root)), root=root)
    outside = _doubled(r)
    program = Execute("x", [x, r], [whole])
    bindings = Bindings(extents, ranks)
    values = evaluate(
        program, bindings, {"x": numbers(data.draw, extents["N"], ranks), "r": numbers(data.draw, extents["N"])}
    )
    pairs = [
        ("whole", "scattered"),
        ("whole", "rooted"),
        ("loaded", "r"),
        ("at_root", "twice"),
        ("computed", "outside"),
    ]
    for left, right in pairs:
        assert values[left].tobytes() == values[right].tobytes()
    exact = values["x"][0].astype(np.float64)
    expected = {"+": exact.sum(0), "max": exact.max(0), "min": exact.min(0)}[op]
    assert np.allclose(values["whole"][0, 0], expected, atol=1e-5 if dtype == "f32" else 2e-2)


def _doubled(x):
    return -(x * 2)


@pytest.mark.filterwarnings("ignore:AllReduce of a Replicated")
@given(programs(), st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_well_typed_programs_have_the_layouts_of_their_types(program, ranks, rows, width, seed):
    """The interpreter checks after every node."""
    bindings = Bindings({"T": rows, "H": width}, ranks)
    assume(rows % ranks == 0 or all(node.op != "AllToAll" for node in program.nodes))
    assume(rows % ranks == width % ranks == 0 or all(node.op != "AllToAll" for node in program.nodes))
    assume(ranks == 1 or not any(node.op == "AllToAll" and node.type.shape[0].one for node in program.nodes))
    generator = np.random.default_rng(seed)
    given_values = {}
    for value in program.inputs:
        shape = [extent.value(bindings.values) for extent in value.type.shape]
        given_values[value.name] = generator.integers(-4, 5, [ranks, *shape] if value.type.layout == Local() else shape)
    values = evaluate(program, bindings, given_values, seed=seed)
    assert set(values) == set(program.by_name)


def test_wrong_layouts_are_noticed(monkeypatch):
    g = Tensor("g", f32, [N], Local)
    y = g * 2
    rs = ReduceScatter("+", g)
    z = rs * 2
    program = Execute("x", [g], [y])
    claims = {"y": Replicated(), "z": Replicated()}
    for name, layout in claims.items():
        nodes = tuple(
            replace(node, type=replace(node.type, layout=layout)) if node.name == name else node
            for node in program.nodes
        )
        with pytest.raises(CheckFailed, match=f"{name}: found ranks with different values"):
            evaluate(replace(program, nodes=nodes), Bindings({"N": 4}, 2), {"g": [[1, 2, 3, 4], [5, 6, 7, 8]]})
    monkeypatch.setattr(interpreter, "global_indices", lambda layout, extents, ranks, rank: np.arange(rank, 4))
    with pytest.raises(CheckFailed, match="rs: found elements that not exactly one rank has"):
        evaluate(program, Bindings({"N": 4}, 2), {"g": 1})


def test_values_that_do_not_fit():
    program, two = example("sgd"), Bindings({"N": 4}, 2)
    with pytest.raises(InputError, match="sgd: found no value for 'lr', expected one"):
        evaluate(program, two, {"g": 0, "p": 0})
    with pytest.raises(InputError, match=r"p: found an array \[3\], expected \[1, 2, 4\]"):
        evaluate(program, two, {**SGD, "p": [1, 2, 3]})
    with pytest.raises(InputError, match="p: found ranks with different values"):
        evaluate(program, two, {**SGD, "p": SGD["g"]})
    with pytest.raises(InputError, match="found 2 groups, expected one WORLD"):
        evaluate(program, replace(two, groups=2), SGD)


def test_products_of_parts():
    """Rows 10 to 13: what ranks compute from their parts is the product, once the partial sums are added up."""
    T, K, H = dims("T", "K", "H")
    for x_layout, w_layout in [(Sliced(1), Sliced(0)), (Sliced(0), Replicated), (Replicated, Sliced(1))]:
        x, w = Tensor("x", f32, [T, K], x_layout), Tensor("w", f32, [K, H], w_layout)
        y = MatMul(x, w)
        whole = AllReduce("+", y) if isinstance(y.type.layout, Local) else AllGather(y)
        program = Execute("x", [x, w], [whole])
        values = {"x": np.arange(15).reshape(3, 5), "w": np.arange(20).reshape(5, 4) % 7}
        result = evaluate(program, Bindings({"T": 3, "K": 5, "H": 4}, 3), values)["whole"]
        everywhere(result, values["x"] @ values["w"])


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("sliced", ["channels", "batch", "kernels", "none"])
def test_convolutions(stride, padding, sliced):
    """Rows 16 to 17c against scipy, channel by channel."""
    layouts = {
        "channels": (Sliced(1), Sliced(1)),
        "batch": (Sliced(0), Replicated),
        "kernels": (Replicated, Sliced(0)),
        "none": (Replicated, Replicated),
    }[sliced]
    x = Tensor("x", f32, [2, 3, 5, 4], layouts[0])
    w = Tensor("w", f32, [2, 3, 3, 3], layouts[1])
    y = Conv2d(x, w, stride=stride, padding=padding)
    whole = AllReduce("+", y) if sliced == "channels" else AllGather(y) if sliced != "none" else y * 1
    program = Execute("x", [x, w], [whole])
    generator = np.random.default_rng(0)
    values = {"x": generator.integers(-4, 5, (2, 3, 5, 4)), "w": generator.integers(-4, 5, (2, 3, 3, 3))}
    padded = np.pad(values["x"], [(0, 0)] * 2 + [(padding, padding)] * 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("bchwij,ocij->bohw", windows, values["w"])
    result = evaluate(program, Bindings({}, 2), values)["whole"]
    everywhere(result, expected[..., ::stride, ::stride])


def test_all_to_all_and_permute():
    values = {"x": np.arange(8).reshape(2, 4, 1), "order": [[3, 2, 1, 0], [0, 0, 1, 1]], "gate": 1}
    result = evaluate(example("moe"), Bindings({"T": 4, "H": 1}, 2), values)
    assert result["rows"][0, :, :, 0].tolist() == [[3, 2, 1, 0], [4, 4, 5, 5]]
    assert result["out"][0, :, :, 0].tolist() == [[3, 2, 4, 4], [1, 0, 5, 5]]
    with pytest.raises(InputError, match="rows: found an index outside of 4 rows"):
        evaluate(example("moe"), Bindings({"T": 4, "H": 1}, 2), {**values, "order": [4, 0, 0, 0]})
    with pytest.raises(InputError, match="out: found 3 rows for 2 ranks, expected equal parts"):
        evaluate(example("moe"), Bindings({"T": 3, "H": 1}, 2), {"x": 0, "order": 0, "gate": 1})


def test_roots_that_are_no_ranks():
    x = Tensor("x", f32, [N], Local)
    there = Reduce("+", x, root=3)
    program = Execute("x", [x], [there])
    with pytest.raises(InputError, match="there: found root 3 of 2 ranks"):
        evaluate(program, Bindings({"N": 1}, 2), {"x": 0})
    values = evaluate(program, Bindings({"N": 1}, 4), {"x": 1})["there"]
    assert values[0, 3].tolist() == [4]
    assert np.isnan(values[0, :3]).all()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        *((Sqrt, math.sqrt), (Rsqrt, lambda x: 1 / math.sqrt(x)), (Exp, math.exp), (Log, math.log)),
        *((Tanh, math.tanh), (Abs, abs), (ReLU, lambda x: max(x, 0)), (lambda x: -x, lambda x: -x)),
        (Sigmoid, lambda x: 1 / (1 + math.exp(-x))),
        (SiLU, lambda x: x / (1 + math.exp(-x))),
        (GeLU, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
        (lambda x: Pow(x, 3), lambda x: x**3),
        (lambda x: 2 / x, lambda x: 2 / x),
        (lambda x: Max(x, 1) - Min(x, 2), lambda x: max(x, 1) - min(x, 2)),
        (lambda x: Where(x < 1, x, 7), lambda x: x if x < 1 else 7),
        (lambda x: Where(x < 1, 0.5, -1), lambda x: 0.5 if x < 1 else -1),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("f64", 1e-12), ("f32", 1e-6), ("f16", 2e-3), ("bf16", 2e-2)])
def test_functions(op, expected, dtype, tolerance):
    x = Tensor("x", dtype, [N], Replicated)
    y = op(x)
    points = np.array([0.125, 0.5, 1, 1.5, 2.75])
    values = evaluate(Execute("x", [x], [y]), Bindings({"N": 5}, 1), {"x": points})["y"]
    assert np.allclose(values[0, 0].astype(float), [expected(x) for x in points], rtol=tolerance, atol=tolerance)
    assert (rounded(values, dtype) == values).all()


def test_whole_numbers_and_logic():
    x = Tensor("x", i32, [N], Replicated)
    y = Where(~Eq(x & 1, 1) | (x > 4), Pow(x, 2) ^ 1, -x)
    program = Execute("x", [x], [y])
    assert evaluate(program, Bindings({"N": 6}, 1), {"x": range(6)})["y"][0, 0].tolist() == [1, -1, 5, -3, 17, 24]
    z = Cast(i32, Cast(f16, x) / 4 - 0.5)
    program = Execute("x", [x], [z])
    assert evaluate(program, Bindings({"N": 6}, 1), {"x": range(6)})["z"][0, 0].tolist() == [0, 0, 0, 0, 0, 0]


def test_sixteen_bits_are_rounded_after_every_operation():
    x = Tensor("x", f16, [N], Local)
    total = AllReduce("+", x)
    y = x * 3 / 3
    program = Execute("x", [x], [y])
    values = evaluate(program, Bindings({"N": 1}, 3), {"x": [[2048], [1], [1]]})
    everywhere(values["total"], 2048)
    steps = np.float16(np.float32(np.float16(np.float32(0.1) * 1)) * 3)
    tenth = evaluate(program, Bindings({"N": 1}, 1), {"x": 0.1})
    assert tenth["_y_1"] == np.float16(np.float32(np.float16(0.1)) * 3) == steps


@given(st.floats(width=32, allow_nan=False))
def test_bf16_is_the_nearest_and_even_of_equals(x):
    near = rounded(np.float32(x), "bf16")
    assert near.view(np.uint32) & 0xFFFF == 0
    below = (np.float32(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = (below.view(np.uint32) + np.uint32(0x10000)).view(np.float32)
    assert near in (below, above)
    if np.isfinite(above):
        low, high = (abs(float(x) - float(side)) for side in (below, above))
        assert near == (below if low < high or (low == high and not below.view(np.uint32) >> 16 & 1) else above)


def test_from_f64_there_is_one_rounding():
    assert rounded(np.float64(1 + 2**-8 + 2**-40), "bf16") == 1 + 2**-7
    assert rounded(np.float64(1 + 2**-8), "bf16") == 1
    assert rounded(np.float64(-1 - 2**-8 - 2**-40), "bf16") == -1 - 2**-7
    assert rounded(np.array([np.nan, np.inf]), "bf16").tolist()[1] == math.inf
    assert np.isnan(rounded(np.nan, "bf16"))


def test_dropout_is_the_same_for_every_layout_and_different_for_local():
    x = Tensor("x", f32, [N], Replicated)
    y = Tensor("y", f32, [N], Local)
    whole = Dropout(x, 0.5, "k")
    sliced = AllGather(Dropout(Slice(x, map=RingTile(2, 2)), 0.5, "k"))
    own = Dropout(y, 0.5, "k")
    program = Execute("x", [x, y], [whole])
    values = evaluate(program, Bindings({"N": 64}, 3), {"x": 1, "y": 1}, seed=3, step=9)
    assert values["whole"].tobytes() == values["sliced"].tobytes()
    assert set(values["whole"].reshape(-1)) == {0, 2}
    assert (values["own"][0, 0] == values["whole"][0, 0]).all()
    assert (values["own"][0, 1] != values["own"][0, 0]).any()
    assert (evaluate(program, Bindings({"N": 64}, 3), {"x": 1, "y": 1}, seed=3)["whole"] != values["whole"]).any()


def test_lamb_norms_are_those_of_each_tensor():
    values = dict.fromkeys(("g", "m", "v", "b1", "b2", "eps"), 0) | {"ph": 0, "lr": 1, "t": 1, "decay": 1}
    p = np.array([3, 4, 1, 2, 2], np.float32)
    bindings = Bindings({"N": 5}, 2, 1, {"N": (2, 0, 3)})
    result = evaluate(example("lamb"), bindings, {**values, "p": p, "g": [[1] * 5, [3] * 5]})
    assert result["norm_p"][0, 0].tolist() == [5, 0, 3]
    everywhere(result["avg"], 2)
    u = 1 + p
    ratio = np.repeat([5 / np.linalg.norm(u[:2]), 3 / np.linalg.norm(u[2:])], [2, 3])
    assert np.allclose(result["p_"][0, 0], p - ratio * u, rtol=1e-6)


def test_rmsnorm_and_mixed_precision():
    generator = np.random.default_rng(1)
    y, r = generator.normal(size=(2, 3, 8)), generator.normal(size=(3, 8))
    values = {"y": y, "r": r, "weight": 2, "share": 1 / 8, "eps": 0}
    result = evaluate(example("rmsnorm"), Bindings({"T": 3, "H": 8}, 2), values)
    h = y.sum(0) + r
    expected = 2 * h / np.sqrt((h * h).mean(axis=1, keepdims=True))
    assert result["out"].dtype == np.float16
    assert np.allclose(result["out"][0, 0], expected, atol=2e-2)
