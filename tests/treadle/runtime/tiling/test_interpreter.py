"""Values are NumPy's and movement is that of the paper's formulas, whatever the tilings and the number of workers."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tests.treadle.runtime.tiling.hand_made import HandMade
from treadle.planner.errors import InputError
from treadle.runtime.tiling.interpreter import run
from treadle.runtime.tiling.tasks import MovedEdge

RNG = np.random.default_rng(22)


@pytest.mark.parametrize(("shape", "workers", "moved"), [((4, 6), 2, 12), ((8, 8), 4, 48)])
def test_rows_to_columns(shape, workers, moved):
    plan, x = HandMade((workers,)), RNG.random(shape)
    plan.value("x", x, ["S0"])
    plan.add("y", "map", "negative", ["x"], shape, ["S1"], reads=[["S1"]])
    found = run(plan.plan("y"))
    assert np.array_equal(found.outputs["y"], -x)
    assert (found.elements, found.bytes) == (moved, 8 * moved)
    assert found.moved[MovedEdge("x", "y.map", 0)].elements == moved


@pytest.mark.parametrize(
    ("shape", "workers", "cut", "axis", "moved"),
    [
        ((4, 6), 2, "S0", 0, 6),
        ((4, 6), 2, "S0", 1, 0),
        ((4, 6), 2, "S1", 0, 0),
        ((4, 6), 2, "S1", 1, 4),
        ((8, 4), 4, "S0", 0, 12),
        ((8, 4), 4, "S1", 0, 0),
    ],
)
def test_folds_move_what_the_paper_says(shape, workers, cut, axis, moved):
    plan, x = HandMade((workers,)), RNG.random(shape)
    plan.value("x", x, [cut])
    plan.add("y", "fold", "sum", ["x"], (shape[1 - axis],), ["S0"], axes=(axis,))
    found = run(plan.plan("y"))
    assert np.allclose(found.outputs["y"], x.sum(axis))
    assert found.elements == moved


@pytest.mark.parametrize(("variant", "moved"), [("a", 24), ("b", 48)])
def test_both_variants_of_a_matrix_product(variant, moved):
    plan, x, y = HandMade((4,)), RNG.random((8, 4)), RNG.random((4, 2))
    plan.value("x", x, ["S0" if variant == "a" else "S1"])
    plan.value("y", y, ["S0"])
    axes, update = ((0, -1), "each") if variant == "a" else ((1, 0), "all")
    plan.add("z", "join_update", "matmul", ["x", "y"], (8, 2), ["S0"], axes=axes, update=update)
    found = run(plan.plan("z"))
    assert np.allclose(found.outputs["z"], x @ y)
    assert found.elements == moved


def random_program(plan: HandMade, rng: np.random.Generator, shape: tuple[int, int], *, copies: bool) -> dict:
    """A program with every operator on matrices of `shape`, tiled at random; returns what NumPy makes of it."""
    labels = ["S0", "S1", "B", *(["D0", "D1"] if copies else [])]

    def label() -> str:
        return str(rng.choice(labels))

    def copy_of(name: str, axis: int) -> str:
        """The placement in which a fold reads: of two copies the one that keeps the axis whole."""
        tiling = plan.tilings[[array.id for array in plan.arrays].index(name)][0]
        return f"S{1 - axis}" if tiling.startswith("D") else tiling

    n, m = shape
    x, w = rng.random(shape), rng.random(m)
    have = {"x": x, "w": w, "k": rng.random(n) > 0.5}
    plan.value("x", x, [label()])
    plan.value("w", w, ["S0"])
    plan.value("k", have["k"], ["S0"])
    have["a"] = x + w
    plan.add("a", "map", "add", ["x", "w"], shape, [label()])
    have["p"] = np.cumsum(have["a"], 0)
    plan.add("p", "scan", "cumulative_sum", ["a"], shape, [label()], axes=(0,), reads=[[copy_of("a", 0)]])
    have["t"] = have["p"].T
    mirrored = {"S0": "S1", "S1": "S0", "D0": "D1", "D1": "D0", "B": "B"}[plan.tilings[-1][0]]
    plan.add("t", "swapaxis", "swapaxis", ["p"], (m, n), [mirrored], axes=(0, 1))
    region = [[1 if m > 1 else 0, m, 2], [0, max(1, n - 1), 1]]
    have["s"] = have["t"][region[0][0] :: 2, : region[1][1]]
    plan.add("s", "slice", "slice", ["t"], have["s"].shape, [mirrored], params={"region": region})
    have["q"] = np.sqrt(np.abs(have["s"]))
    plan.add("abs", "map", "absolute", ["s"], have["s"].shape, [label()])
    plan.add("q", "map", "sqrt", ["abs"], have["s"].shape, [label()])
    have["f"] = x[have["k"]]
    plan.add("f", "filter", "filter", ["x", "k"], shape, plan.tilings[0], masked=True)
    have["g"] = have["f"] * w
    plan.add("g", "map", "multiply", ["f", "w"], shape, [label()], masked=True)
    have["h"] = have["g"].sum(0)
    plan.add("h", "fold", "sum", ["g"], (m,), ["S0"], axes=(0,), reads=[[copy_of("g", 0)]])
    have["r"] = have["g"].sum(1)
    plan.add("r", "fold", "sum", ["g"], (n,), ["S0"], axes=(1,), reads=[[copy_of("g", 1)]], masked=True)
    have["u"] = have["a"].max(keepdims=True)
    plan.add("u", "fold", "max", ["a"], (1, 1), [label()], axes=(0, 1), params={"keepdims": True},
             reads=[[copy_of("a", 0)]])  # fmt: skip
    have["z"] = have["p"] @ have["t"]
    plan.add("z", "join_update", "matmul", ["p", "t"], (n, n), [label()], axes=(0, -1))
    have["v"] = have["t"] @ have["a"]
    plan.add("v", "join_update", "matmul", ["t", "a"], (m, m), [label()], axes=(1, 0), update="all")
    have["e"] = np.asarray(have["v"].sum())
    plan.add("e", "fold", "sum", ["v"], (), ["S0"], axes=(0, 1), reads=[[copy_of("v", 0)]])
    return have


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7])
def test_every_operator_on_any_tilings_is_numpy(workers):
    rng = np.random.default_rng(workers)
    for shape in [(7, 5), (4, 8), (1, 3), (12, 1)]:
        for _ in range(4):
            plan = HandMade((workers,))
            have = random_program(plan, rng, shape, copies=True)
            found = run(plan.plan(*have))
            for name, data in have.items():
                assert found.outputs[name].shape == data.shape, name
                assert np.allclose(found.outputs[name], data), name


def test_one_worker_moves_nothing():
    plan = HandMade((1,))
    have = random_program(plan, np.random.default_rng(0), (6, 5), copies=True)
    assert run(plan.plan(*have)).moved == {}


def test_equal_tilings_lie_on_the_same_workers():
    plan = HandMade((3,))
    for name in "xy":
        plan.value(name, RNG.random((5, 4)), ["S1"])
    plan.add("z", "map", "add", ["x", "y"], (5, 4), ["S1"])
    found = run(plan.plan("z"))
    assert found.moved == {}
    assert found.maps["x"] == found.maps["y"] == found.maps["z"]


def test_a_scan_along_the_cut_axis_passes_totals_on():
    plan, x = HandMade((4,)), RNG.random((10, 3))  # chunks of 3, 3, 3, 1
    plan.value("x", x, ["S0"])
    plan.add("y", "scan", "cumulative_sum", ["x"], (10, 3), ["S0"], axes=(0,))
    found = run(plan.plan("y"))
    assert np.allclose(found.outputs["y"], np.cumsum(x, 0))
    assert found.elements == 3 * 3


def test_the_second_copy_is_paid_by_its_maker():
    plan, x = HandMade((4,)), RNG.random((8, 8))
    plan.value("x", x, ["D0"])
    plan.add("rows", "map", "negative", ["x"], (8, 8), ["S0"])
    plan.add("columns", "map", "negative", ["x"], (8, 8), ["S1"])
    found = run(plan.plan("rows", "columns"))
    assert {edge: count.elements for edge, count in found.moved.items()} == {MovedEdge("x", "x.value", None): 48}


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_arrays_without_elements(shape):
    plan, x = HandMade((2,)), np.zeros(shape)
    plan.value("x", x, ["S0"])
    plan.value("y", x.T.copy(), ["S0"])
    plan.add("s", "fold", "sum", ["x"], (shape[1],), ["S0"], axes=(0,))
    plan.add("z", "join_update", "matmul", ["x", "y"], (shape[0], shape[0]), ["S0"], axes=(0, -1))
    found = run(plan.plan("s", "z")).outputs
    assert np.array_equal(found["s"], x.sum(0))
    assert np.array_equal(found["z"], x @ x.T)


def test_the_largest_of_rows_that_a_filter_left_on_some_workers():
    plan, x = HandMade((3,)), RNG.random((6, 2)) - 5
    keep = np.array([False, False, True, True, False, False])
    plan.value("x", x, ["S0"])
    plan.value("k", keep, ["S0"])
    plan.add("f", "filter", "filter", ["x", "k"], (6, 2), ["S0"], masked=True)
    plan.add("m", "fold", "max", ["f"], (2,), ["S0"], axes=(0,))
    assert np.array_equal(run(plan.plan("m")).outputs["m"], x[keep].max(0))


def test_what_does_not_run_on_tiles_is_named():
    plan = HandMade((2,))
    plan.add("x", "newarray", "zeros", [], (4,), ["S0"], params={"init": "zeros"})
    made = plan.plan("x")
    node = replace(made.problem.nodes[0], operator="rule", function="aten.zeros.default")
    with pytest.raises(InputError, match="operator rule of aten"):
        run(replace(made, problem=replace(made.problem, nodes=(node,))))


def test_collectives_on_a_mesh_move_what_they_must():
    plan, x = HandMade((2, 3), model="time"), RNG.random((12, 6))
    plan.value("x", x, ["R", "R"])
    plan.add("a", "map", "negative", ["x"], (12, 6), ["S0", "S0"], reads=[["S0", "S0"]])
    plan.steps("x", "a.map", 0, ("slice", 0, ("S0", "R")), ("slice", 1, ("S0", "S0")))
    plan.add("b", "map", "negative", ["a"], (12, 6), ["S0", "S1"], reads=[["S0", "S1"]])
    plan.steps("a", "b.map", 0, ("alltoall", 1, ("S0", "S1")))
    plan.add("c", "map", "negative", ["b"], (12, 6), ["R", "S1"], reads=[["R", "S1"]])
    plan.steps("b", "c.map", 0, ("allgather", 0, ("R", "S1")))
    plan.add("d", "fold", "sum", ["a"], (6,), ["R", "S0"], axes=(0,), makes=["P", "P"])
    plan.steps("d", "d.fold", None, ("reduce-scatter", 1, ("P", "S0")), ("allreduce", 0, ("R", "S0")))
    found = run(plan.plan("a", "b", "c", "d"))
    for name, data in {"a": -x, "b": x, "c": -x, "d": -x.sum(0)}.items():
        assert np.allclose(found.outputs[name], data), name
    moved = {edge.array: count.elements for edge, count in found.moved.items()}
    assert moved == {
        "a": 2 * 36 * 2 // 3,  # two groups, each exchanges two thirds of its 36 elements
        "b": 3 * 24,  # three groups, each gathers 24
        "d": 2 * 6 * 2 + 3 * 2 * 2,  # two groups reduce 6 with three workers, three groups reduce 2 with two
    }


def test_a_gathered_alltoall_moves_as_much_as_an_allgather():
    plan, x = HandMade((4,), model="time", alltoall="gathered"), RNG.random((4, 8))
    plan.value("x", x, ["S0"])
    plan.add("y", "map", "negative", ["x"], (4, 8), ["S1"], reads=[["S1"]])
    plan.steps("x", "y.map", 0, ("alltoall", 0, ("S1",)))
    found = run(plan.plan("y"))
    assert np.array_equal(found.outputs["y"], -x)
    assert found.elements == 3 * 32
