"""Matrix products on fibers against NumPy: every layout of the table, ragged edges, all types; the text for GPUs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from codegen.fusion.expression import Scope
from codegen.fusion.kernel import Buffer
from codegen.fusion.matmul import Product, matmul, product, tile_of
from planner.errors import InputError
from planner.fusion import language as cc
from planner.fusion.layouts import Layout, Local, Replicated, Sliced
from planner.fusion.program import Bindings, Dtype, Program, TensorType
from planner.fusion.slice_maps import capacity
from tests.codegen.fusion.on_fibers import NUMPY, Kernels, compiled, sources

RANKS = 3
EXTENTS = {"B": 2, "M": 11, "K": 13, "N": 19}


@dataclass(frozen=True)
class Case:
    left: Layout
    right: Layout
    dtype: Dtype = "f32"
    tile: tuple[int, int] = (8, 16)


CASES = {
    "row10": Case(Sliced(2), Sliced(0)),
    "row11": Case(Replicated(), Replicated(), tile=(16, 32)),
    "row12": Case(Sliced(1), Replicated()),
    "row12_outermost": Case(Sliced(0), Replicated(), tile=(32, 32)),
    "row13": Case(Replicated(), Sliced(1)),
    "row14": Case(Local(), Replicated(), "f16"),
    "row14_both": Case(Local(), Local(), "i32", tile=(8, 8)),
    "partial_f16": Case(Sliced(2), Sliced(0), "f16", tile=(32, 32)),
    "partial_f64": Case(Sliced(2), Sliced(0), "f64"),
    "partial_bf16": Case(Sliced(2), Sliced(0), "bf16", tile=(32, 64)),
}


def program(case: Case, name: str) -> Program:
    b, m, k, n = cc.dims("B", "M", "K", "N")
    x = cc.Tensor("x", case.dtype, [b, m, k], case.left, cc.WORLD)
    w = cc.Tensor("w", case.dtype, [k, n], case.right, cc.WORLD)
    return cc.Execute("product", [x, w], [cc.MatMul(x, w)])


def held(type_: TensorType, bindings: Bindings) -> int:
    extents = tuple(extent.value(bindings.values) for extent in type_.shape)
    return (
        capacity(type_.layout, extents, bindings.ranks) if isinstance(type_.layout, Sliced) else int(np.prod(extents))
    )


def scope(case: Case, number: int) -> Scope:
    bindings = Bindings(EXTENTS, RANKS)
    made = program(case, f"p{number}")
    names = [*made.input_names, made.nodes[0].name]
    buffers = [
        Buffer(name, case.dtype, held(made.by_name[name].type, bindings), "input", made.by_name[name].type.layout)
        for name in names
    ]
    # Buffers of all cases stand one after the other, for one compilation serves them all.
    return Scope(made, bindings, [None] * 3 * number + buffers, {name: 3 * number + i for i, name in enumerate(names)})  # type: ignore[list-item]


@pytest.fixture(scope="module")
def everything() -> tuple[Kernels, dict[str, tuple[int, Product]]]:
    texts, buffers, products = [], [], {}
    for number, (name, case) in enumerate(CASES.items()):
        its = scope(case, number)
        node = its.program.nodes[0]
        text = matmul(its, node, case.tile)
        names = f"{node.name}_product", f" {node.name}("
        texts.append(
            type(text)(
                name, text.text.replace(names[0], f"{name}_product").replace(names[1], f" {name}("), *vars_of(text)
            )
        )
        buffers += its.buffers[3 * number :]
        products[name] = number, product(its, node, case.tile)
    return compiled(texts, buffers, RANKS), products


def vars_of(text: object) -> tuple[object, ...]:
    return text.blocks, text.stream, text.about  # type: ignore[attr-defined]


def as_numbers(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """bf16 has no type of NumPy: the upper half of an f32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else values


def as_memory(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else values


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [0, 1])
def test_product_is_exact_for_whole_numbers(
    everything: tuple[Kernels, dict[str, tuple[int, Product]]], name: str, order: int
) -> None:
    kernels, products = everything
    number, of = products[name]
    dtype = CASES[name].dtype
    random = np.random.default_rng(order)
    given = []
    for rank in range(RANKS):
        left, right, result = kernels.tensors[rank][3 * number : 3 * number + 3]
        given.append(
            tuple(
                random.integers(
                    -3, 4, (of.rows[rank], of.depth[rank]) if side == 0 else (of.depth[rank], of.columns[rank])
                )
                for side in (0, 1)
            )
        )
        for memory, values in zip((left, right), given[-1], strict=True):
            memory[:] = 99  # what lies behind a short part is never read
            memory[: values.size] = as_memory(values, dtype).reshape(-1)
        result[:] = 77
    assert kernels.run([number], order=order)
    for rank in range(RANKS):
        result = kernels.tensors[rank][3 * number + 2]
        size = of.rows[rank] * of.columns[rank]
        expected = given[rank][0] @ given[rank][1]
        np.testing.assert_array_equal(as_numbers(result[:size], dtype).reshape(expected.shape), expected)
        assert (result[size:] == 77).all()  # nor written


def test_extents_of_every_row() -> None:
    made = {name: product(scope(case, 0), scope(case, 0).program.nodes[0]) for name, case in CASES.items()}
    assert made["row10"].depth == (5, 5, 3)
    assert made["row12"].rows == (2 * 4, 2 * 4, 2 * 3)
    assert made["row12_outermost"].rows == (11, 11, 0)
    assert made["row13"].columns == (7, 7, 5)
    assert made["row10"].rows == made["row11"].rows == (22, 22, 22)


def test_a_right_operand_of_three_dimensions_is_refused() -> None:
    its = scope(CASES["row11"], 0)
    node = its.program.nodes[0]
    with pytest.raises(InputError, match="right operand"):
        product(its, type(node)(node.name, node.op, (node.inputs[1], node.inputs[0]), node.type))


def test_tiles_fit_the_result_and_leave_work_for_all() -> None:
    assert tile_of(8192, 3072, "f16") == (128, 128)
    assert tile_of(1024, 512, "f32") == (64, 128)
    assert tile_of(5, 3, "f16") == (8, 8)
    assert tile_of(16, 4096, "f16") == (16, 64)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_text_for_gpus_spills_no_registers(tmp_path: object) -> None:
    texts = []
    for number, (dtype, tile) in enumerate([("f32", (128, 128)), ("f16", (128, 128)), ("bf16", (64, 128))]):
        its = scope(Case(Sliced(2), Sliced(0), dtype), number)  # type: ignore[arg-type]
        text = matmul(its, its.program.nodes[0], tile)
        name = its.program.nodes[0].name
        texts.append(
            type(text)(
                dtype + "_",
                text.text.replace(f"{name}_product", f"{dtype}_product").replace(f" {name}(", f" {dtype}_("),
                *vars_of(text),
            )
        )
    for file, content in sources(texts).items():
        (tmp_path / file).write_text(content)  # type: ignore[operator]
    command = ["nvcc", "-std=c++17", "-O3", "-arch=sm_80", "-Xptxas", "-v", "-c", "schedule.cu", "-o", "schedule.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" 0 bytes spill stores") == 3
