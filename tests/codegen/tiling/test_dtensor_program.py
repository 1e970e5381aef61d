"""Programs of arrays as PyTorch text for one worker: which transfers are called, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from tests.treadle.runtime.tiling.hand_made import HandMade
from treadle.codegen.python_form import require_form
from treadle.codegen.tiling.array_mesh import folded, on_mesh, projected
from treadle.codegen.tiling.dtensor_array import program_text
from treadle.codegen.tiling.moves import local_shape, moved
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TiledEdge, TransferStep
from treadle.planner.passes.tiling.problem import MeshAxis

FOUR = (MeshAxis(name="x0", size=4),)
GATHERED = (MeshAxis(name="x0", size=4, alltoall="gathered"),)


@pytest.mark.parametrize(
    ("transfer", "before", "after", "mesh", "calls"),
    [
        ("allgather", "S1", "R", FOUR, ["mesh.allgather(x, 0, 1)"]),
        ("allreduce", "P", "R", FOUR, ["mesh.allreduce(x, 0)"]),
        ("reduce-scatter", "P", "S1", FOUR, ["mesh.reduce_scatter(x, 0, 1)"]),
        ("slice", "R", "S0", FOUR, ["mesh.part(x, 0, 0)"]),
        ("alltoall", "S0", "S1", FOUR, ["mesh.alltoall(x, 0, 0, 1)"]),
        ("alltoall", "S0", "S1", GATHERED, ["mesh.allgather(x, 0, 0)", "mesh.part(_, 0, 1)"]),
    ],
)
def test_each_transfer_is_its_own_call(transfer, before, after, mesh, calls) -> None:
    steps = (TransferStep(transfer=transfer, tiling=(after,)),)
    edge = TiledEdge(array="x", node="n", steps=steps, bytes=0, cost=0)
    assert list(moved("x", edge, (before,), (after,), mesh)) == calls


def test_steps_that_lead_elsewhere_and_uneven_cuts_are_refused() -> None:
    edge = TiledEdge(array="x", node="n", steps=(), bytes=0, cost=0)
    with pytest.raises(InputError, match="expected R"):
        list(moved("x", edge, ("S0",), ("R",), FOUR))
    with pytest.raises(InputError, match="cut evenly"):
        local_shape((6, 4), ("S0",), FOUR)


def test_words_of_the_paper_on_a_mesh() -> None:
    assert on_mesh(("B",), 2, 2, published=True) == [("S0", "S1")]
    assert on_mesh(("D1",), 2, 2, published=True) == [("S1", "S1"), ("S0", "S0")]
    assert on_mesh(("S0",), 0, 1, published=True) == [("R",)]
    assert projected(("S0", "S1"), (1, 8), (4, 8)) == ("R", "S1")
    assert projected(("S1",), (8,), (4, 8)) == ("S0",)
    assert folded(("S0", "S2"), (0,), keepdims=False) == ("P", "S1")


def made() -> HandMade:
    plan = HandMade((4,))
    plan.value("x", np.ones((8, 8)), ("S0",))
    return plan


def test_second_copies_blocks_and_merges_are_in_the_text() -> None:
    plan = made()
    plan.add("y", "map", "multiply", ("x", "x"), (8, 8), ("D0",), reads=(("S0",), ("S0",)), makes=("S0",))
    plan.add("z", "fold", "max", ("y",), (8,), ("S0",), reads=(("S1",),), makes=("S0",), axes=(0,))
    plan.add("w", "fold", "max", ("x",), (), ("S0",), reads=(("S0",),), makes=("P",), axes=(0, 1))
    text = program_text(plan.plan("z", "w"))
    require_form("dtensor", text, "program.py")
    assert "y_second = mesh.alltoall(y, 0, 0, 1)" in text
    assert "z = torch.amax(y_second, dim=[0], keepdim=False)" in text
    assert 'w = mesh.allreduce(w, 0, "max")' in text
    assert 'COLLECTIVES = {"all_reduce": 1, "all_to_all_single": 1}' in text


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"operator": "filter", "function": "filter"}, "'y.filter' filters, and the tiles of a mesh are equal"),
        ({"operator": "scan", "function": "cumulative_sum", "axes": (0,)}, "runs along an axis that is cut"),
        (
            {"operator": "slice", "function": "slice", "params": {"region": [[0, 4, 1], [0, 8, 1]]}},
            "takes a part of axis 0",
        ),
        ({"operator": "fold", "function": "first", "axes": (0,), "makes": ("P",)}, "that no collective merges"),
    ],
)
def test_what_equal_tiles_cannot_do_is_refused_by_name(node, why) -> None:
    plan = made()
    shape = {"slice": (4, 8), "fold": (8,)}.get(node["operator"], (8, 8))
    plan.add("y", inputs=("x",), shape=shape, tiling=("S0",), **node)
    with pytest.raises(InputError, match=why):
        program_text(plan.plan("y"))


def test_names_of_arrays_and_functions_stay_data() -> None:
    plan = made()
    plan.add('y"; import os #', "map", 'math:no"()', ("x",), (8, 8), ("S0",))
    text = program_text(plan.plan('y"; import os #'))
    require_form("dtensor", text, "program.py")
    with pytest.raises(InputError, match="expected nothing but what treadle generates for dtensor"):
        require_form("dtensor", text + "\nimport os\n", "program.py")
