"""Plans as shardings of JAX: what each device then holds, what is left to JAX, and that names stay data."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.conftest import Golden
from tests.planner.passes.tiling.elementwise import share
from tests.planner.passes.tiling.tiling_plans import by_hand
from tests.planner.samples import TILING_PLAN
from treadle.codegen.python_form import require_form
from treadle.codegen.tiling.jax import FILE_NAME, shardings
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis, TiledArray

WORKER = Path(__file__).with_name("jax_worker.py")


def tiled(mesh: dict[str, int], **arrays: tuple[tuple[int, ...], ArrayTiling]) -> TilingDecisions:
    """Decisions of which only arrays and their tilings count."""
    decisions = by_hand()
    problem = replace(
        decisions.problem,
        mesh=tuple(MeshAxis(name=name, size=size) for name, size in mesh.items()),
        arrays=tuple(
            TiledArray(id=name, shape=shape, dtype="float64", item_bytes=8) for name, (shape, _) in arrays.items()
        ),
    )
    return replace(decisions, problem=problem, tilings=tuple(tiling for _, tiling in arrays.values()))


def text_of(decisions: TilingDecisions) -> str:
    return shardings(replace(TILING_PLAN, decisions=decisions)).files[FILE_NAME]


def tables(text: str) -> dict[str, Any]:
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}


ONE = tiled(
    {"workers": 4},
    rows=((8, 6), ("S0",)),
    columns=((2, 8), ("S1",)),
    blocks=((4, 6), ("B",)),
    twice=((4, 8), ("D1",)),
    number=((), ("S0",)),
    uneven=((6, 2), ("S0",)),
)
TWO = tiled(
    {"outer": 2, "inner": 4},
    both=((8, 3), ("S0", "S0")),
    grid=((4, 8), ("S0", "S1")),
    part=((4, 8), ("R", "S0")),
    whole=((5,), ("R", "R")),
    partial=((4, 4), ("P", "S0")),
)


def test_specifications_name_the_axes_that_cut_and_the_rest_is_left_with_a_reason() -> None:
    one, two = tables(text_of(ONE)), tables(text_of(TWO))
    assert (one["AXES"], one["SIZES"]) == (["workers_rows", "workers_columns"], [2, 2])
    grid = ["workers_rows", "workers_columns"]
    assert one["SPECS"]["rows"] == [grid, []]
    assert one["SPECS"]["blocks"] == [grid[:1], grid[1:]]
    assert (one["SPECS"]["twice"], one["SECOND"]) == ([[], grid], {"twice": [grid, []]})
    assert one["LEFT"] == {"uneven": "an axis of 6 does not divide into 4 equal parts"}
    assert two["SPECS"]["both"] == [["outer", "inner"], []]
    assert two["SPECS"]["whole"] == [[]]
    assert two["LEFT"] == {"partial": "a partial result on each worker"}


def test_a_foreign_name_stays_data_and_a_foreign_module_is_refused() -> None:
    hostile = 'x""" \n' + "import os\nos.system('x')\n"
    decisions = tiled({hostile: 2}, **{hostile: ((4, 4), ("S0",))})
    text = text_of(replace(decisions, problem=replace(decisions.problem, name=hostile)))
    require_form("jax", text, "shardings.py")
    assert tables(text)["SPECS"] == {hostile: [[hostile], []]}
    with pytest.raises(InputError, match="nothing but what treadle generates"):
        require_form("jax", text + "import os\n", "shardings.py")


@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
@pytest.mark.slow
@pytest.mark.parametrize("decisions", [ONE, TWO], ids=["one axis", "two axes"])
def test_jax_holds_what_the_plan_says(decisions: TilingDecisions, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text_of(decisions))
    shapes = {array.id: array.shape for array in decisions.problem.arrays}
    run = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path / FILE_NAME)],
        input=json.dumps(shapes),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert len(found) == (6 if decisions is ONE else 4)
    sizes = [axis.size for axis in decisions.problem.mesh]
    for array, tiling in zip(decisions.problem.arrays, decisions.tilings, strict=True):
        for copy, words in (("first", {"D1": "S1"}), ("second", {"D1": "S0"})):
            if f"{array.id} {copy}" in found:
                held = held_by(array.shape, [words.get(word, word) for word in tiling], sizes)
                assert found[f"{array.id} {copy}"] == held, (array.id, copy)


def held_by(shape: tuple[int, ...], words: list[str], sizes: list[int]) -> list[list[int]]:
    """The elements of each worker, by their places in the array: the first axis of the mesh cuts first."""
    parts = [np.arange(np.prod(shape, dtype=int)).reshape(shape)]
    for word, size in zip(words, sizes, strict=True):
        if word == "R" or not shape:
            parts = [part for part in parts for _ in range(size)]
        elif word == "B":
            parts = [part[mask] for part in parts for mask in share(part.shape, word, size)]
        else:
            parts = [piece for part in parts for piece in np.split(part, size, axis=int(word[1:]))]
    return [part.ravel().tolist() for part in parts]


@pytest.mark.golden
def test_the_module_is_golden(golden: Golden) -> None:
    golden(f"tiling/{FILE_NAME}", text_of(ONE))
